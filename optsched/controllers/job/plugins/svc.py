"""The plugins env, which sets each pod's index, and svc, which gives each pod a host name.

svc creates a headless Service for the host names. A ConfigMap holds the host names of each task;
pods see them as files in /etc/volcano and as environment variables. A NetworkPolicy blocks traffic
from other pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.kinds import CONFIG_MAP, NETWORK_POLICY, SERVICE
from optsched.controllers.job.object_names import addresses, host, variable_of
from optsched.controllers.job.plugins.base import Extra, Plugin, add_env, add_mount, variable

if TYPE_CHECKING:
    from optsched.api.job import Job
    from optsched.controllers.job.plugins.base import Draft, Flags


def dress_env(draft: Draft, flags: Flags) -> None:
    """Set the environment variables with the pod's index and with its task's number of pods.

    Volcano sets only the index, although its guides also document the variables with the number.
    """
    add_env(
        draft.all_containers,
        variable("VK_TASK_INDEX", draft.index),
        variable("VC_TASK_INDEX", draft.index),
        variable("VK_TASK_NUM", draft.task.replicas),
        variable("VC_TASK_NUM", draft.task.replicas),
    )


ENV = Plugin("env", (), dress_env)


MOUNTED_AT: Final = "/etc/volcano"
_PUBLISH: Final = "publish-not-ready-addresses"
_OPEN: Final = "disable-network-policy"
_INJECT: Final = "inject-hosts-env"


def config_name(job: Job) -> str:
    """Return the name of the ConfigMap that holds the host names of a job's pods."""
    return f"{job.meta.name}-svc"


def hosts_data(job: Job) -> dict[str, str]:
    """Return the ConfigMap's data: each task's host names (as file and list) and their number."""
    data = {}
    for task in job.spec.tasks:
        found, key = addresses(job.meta.name, task), variable_of(task.name)
        data[f"{task.name.replace('-', '_')}.host"] = "\n".join(found)
        data[f"VC_{key}_HOSTS"] = ",".join(found)
        data[f"VC_{key}_NUM"] = str(len(found))
    return data


def dress_svc(draft: Draft, flags: Flags) -> None:
    """Set the pod's host name and subdomain, and pass the host names of all tasks to it.

    Volcano does not set `VC_<TASK>_HOST` (a task's first host), although its guides document it.
    """
    job = draft.job
    draft.spec["hostname"] = draft.spec.get("hostname") or draft.name
    draft.spec["subdomain"] = draft.spec.get("subdomain") or job.meta.name
    config = config_name(job)
    if flags.boolean(_INJECT):
        hosts = draft.once_per_job(SVC.name, lambda: _host_variables(job, config))
        add_env(draft.all_containers, *hosts)
    draft.add_volume({"name": config, "configMap": {"name": config}})
    add_mount(draft.all_containers, {"name": config, "mountPath": MOUNTED_AT})


def _host_variables(job: Job, config: str) -> list[dict[str, Any]]:
    """Return the environment variables with each task's hosts, their number and the first host."""
    tasks = [variable_of(task.name) for task in job.spec.tasks]
    names = (f"VC_{task}_{what}" for task in tasks for what in ("HOSTS", "NUM"))
    listed = [
        {"name": name, "valueFrom": {"configMapKeyRef": {"name": config, "key": name}}}
        for name in names
    ]
    first_hosts = [
        variable(f"VC_{variable_of(task.name)}_HOST", host(job.meta.name, task, 0)[1])
        for task in job.spec.tasks
        if task.replicas
    ]
    return [*listed, *first_hosts]


def extras_svc(job: Job, flags: Flags) -> tuple[Extra, ...]:
    """Return the plugin's ConfigMap, Service and (unless disabled) NetworkPolicy."""
    data, name = hosts_data(job), job.meta.name
    config = Extra(CONFIG_MAP, config_name(job), {"data": data}, {"data": data})
    service = {
        "spec": {
            "clusterIP": "None",
            "selector": pods_of(job),
            "publishNotReadyAddresses": flags.boolean(_PUBLISH),
        }
    }
    found = (config, Extra(SERVICE, name, service, {}))
    if flags.boolean(_OPEN):
        return found
    pods = {"matchLabels": pods_of(job)}
    policy = {
        "spec": {
            "podSelector": pods,
            "ingress": [{"from": [{"podSelector": pods}]}],
            "policyTypes": ["Ingress"],
        }
    }
    return (*found, Extra(NETWORK_POLICY, name, policy, {}))


def pods_of(job: Job) -> dict[str, str]:
    """Return the labels that select exactly the pods of the job."""
    meta = job.meta
    return {wellknown.JOB_NAME: meta.name, wellknown.JOB_NAMESPACE: meta.namespace}


SVC = Plugin("svc", ((_PUBLISH, False), (_OPEN, False), (_INJECT, True)), dress_svc, extras_svc)
