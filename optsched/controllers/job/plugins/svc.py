"""The plugin env, which sets each pod's index, and the plugin svc, which gives pods host names.

svc creates a headless Service, which gives every pod a host name. A ConfigMap lists each task's
host names, as files in /etc/volcano and as environment variables. A NetworkPolicy blocks traffic
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
    """Set environment variables to the pod's index and to the number of pods of its task.

    Volcano sets only the index, although its guides document the variables for the number of pods.
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
    """Return the name of the ConfigMap that lists a job's hosts."""
    return f"{job.meta.name}-svc"


def hosts_data(job: Job) -> dict[str, str]:
    """Return the ConfigMap's data: a hosts file, a host list and the number of hosts per task."""
    data = {}
    for task in job.spec.tasks:
        found, key = addresses(job.meta.name, task), variable_of(task.name)
        data[f"{task.name.replace('-', '_')}.host"] = "\n".join(found)
        data[f"VC_{key}_HOSTS"] = ",".join(found)
        data[f"VC_{key}_NUM"] = str(len(found))
    return data


def dress_svc(draft: Draft, flags: Flags) -> None:
    """Set the pod's host name and subdomain, and pass all tasks' hosts to its containers.

    Volcano does not set `VC_<TASK>_HOST`, a task's first host, although a guide documents it.
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
    """Return the variables with each task's hosts, and with each task's first host."""
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
    """Return the plugin's ConfigMap and Service and, unless disabled, its NetworkPolicy."""
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
    """Return the labels that all pods of the job have and no other pods have."""
    meta = job.meta
    return {wellknown.JOB_NAME: meta.name, wellknown.JOB_NAMESPACE: meta.namespace}


SVC = Plugin("svc", ((_PUBLISH, False), (_OPEN, False), (_INJECT, True)), dress_svc, extras_svc)
