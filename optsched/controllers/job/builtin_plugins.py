"""The built-in job plugins, and the lookup of a job's plugins.

Names, arguments and formats follow Volcano's pkg/controllers/job/plugins.

`env` sets each pod's index. `svc` gives each pod a host name, and creates a headless Service for
the host names. `svc` also creates a ConfigMap with the host names of each task. Pods read the host
names from files in /etc/volcano and from environment variables. A NetworkPolicy blocks traffic from
other pods. With `ssh`, a job's pods share one SSH key pair, so the pods can log in to each other.

The other plugins let the pods of a distributed framework find each other. `mpi` opens the SSH port
and passes the workers' host names to the master. `tensorflow` sets TF_CONFIG. `pytorch` sets the
master's address and each pod's rank. `ray` starts a Ray cluster. `hcclrank` sets the rank
annotation that NPUs require.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.kinds import CONFIG_MAP, NETWORK_POLICY, SECRET, SERVICE
from optsched.controllers.job.object_names import addresses, host, hosts, variable_of
from optsched.controllers.job.plugin_interface import (
    KeyPair,
    Plugin,
    PluginObject,
    add_mount,
    read_flags,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.controllers.job.plugin_interface import Container, Draft, Flags


def _variable(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "value": str(value)}


def _find_task(job: Job, name: str) -> TaskSpec | None:
    return next((task for task in job.spec.tasks if task.name == name), None)


def _count_replicas(job: Job, name: str) -> int:
    """Return the number of replicas of the task with this name; 0 if there is no such task."""
    task = _find_task(job, name)
    return 0 if task is None else task.replicas


def _add_env(containers: Iterable[Container], *variables: dict[str, Any]) -> None:
    for container in containers:
        container["env"] += variables


def _add_port(containers: Iterable[Container], name: str, port: int) -> None:
    """Add a port to each container that does not have a port with this number."""
    for container in containers:
        if all(known.get("containerPort") != port for known in container["ports"]):
            container["ports"].append({"name": name, "containerPort": port, "protocol": "TCP"})


def _change_env_pod(draft: Draft, flags: Flags) -> None:
    """Set the environment variables for the pod's index and its task's number of replicas.

    Volcano sets only the index, although its guides also document the number of replicas.
    """
    _add_env(
        draft.all_containers,
        _variable("VK_TASK_INDEX", draft.index),
        _variable("VC_TASK_INDEX", draft.index),
        _variable("VK_TASK_NUM", draft.task.replicas),
        _variable("VC_TASK_NUM", draft.task.replicas),
    )


ENV = Plugin("env", (), _change_env_pod)


_SVC_FOLDER: Final = "/etc/volcano"
_PUBLISH: Final = "publish-not-ready-addresses"
_NO_POLICY: Final = "disable-network-policy"
_INJECT: Final = "inject-hosts-env"


def _config_name(job: Job) -> str:
    return f"{job.meta.name}-svc"


def _change_svc_pod(draft: Draft, flags: Flags) -> None:
    """Set the pod's host name and subdomain, and pass the host names of all tasks to the pod.

    Volcano does not set `VC_<TASK>_HOST` (a task's first host), although its guides document it.
    """
    job = draft.job
    draft.spec["hostname"] = draft.spec.get("hostname") or draft.name
    draft.spec["subdomain"] = draft.spec.get("subdomain") or job.meta.name
    config = _config_name(job)
    if flags.boolean(_INJECT):
        hosts = draft.once_per_job(SVC.name, lambda: _list_host_variables(job, config))
        _add_env(draft.all_containers, *hosts)
    draft.add_volume({"name": config, "configMap": {"name": config}})
    add_mount(draft.all_containers, {"name": config, "mountPath": _SVC_FOLDER})


def _list_host_variables(job: Job, config: str) -> list[dict[str, Any]]:
    """Return the variables with each task's host names, number of hosts and first host name."""
    tasks = [variable_of(task.name) for task in job.spec.tasks]
    names = (f"VC_{task}_{suffix}" for task in tasks for suffix in ("HOSTS", "NUM"))
    listed = [
        {"name": name, "valueFrom": {"configMapKeyRef": {"name": config, "key": name}}}
        for name in names
    ]
    first_hosts = [
        _variable(f"VC_{variable_of(task.name)}_HOST", host(job.meta.name, task, 0)[1])
        for task in job.spec.tasks
        if task.replicas
    ]
    return [*listed, *first_hosts]


def _list_svc_objects(job: Job, flags: Flags) -> tuple[PluginObject, ...]:
    """Return the plugin's ConfigMap, Service and (unless disabled) NetworkPolicy."""
    name, data = job.meta.name, {}
    for task in job.spec.tasks:
        found, key = addresses(name, task), variable_of(task.name)
        data[f"{task.name.replace('-', '_')}.host"] = "\n".join(found)
        data[f"VC_{key}_HOSTS"] = ",".join(found)
        data[f"VC_{key}_NUM"] = str(len(found))
    config = PluginObject(CONFIG_MAP, _config_name(job), {"data": data}, {"data": data})
    service = {
        "spec": {
            "clusterIP": "None",
            "selector": _pod_labels(job),
            "publishNotReadyAddresses": flags.boolean(_PUBLISH),
        }
    }
    objects = (config, PluginObject(SERVICE, name, service, {}))
    if flags.boolean(_NO_POLICY):
        return objects
    pods = {"matchLabels": _pod_labels(job)}
    policy = {
        "spec": {
            "podSelector": pods,
            "ingress": [{"from": [{"podSelector": pods}]}],
            "policyTypes": ["Ingress"],
        }
    }
    return (*objects, PluginObject(NETWORK_POLICY, name, policy, {}))


def _pod_labels(job: Job) -> dict[str, str]:
    meta = job.meta
    return {wellknown.JOB_NAME: meta.name, wellknown.JOB_NAMESPACE: meta.namespace}


SVC = Plugin(
    "svc",
    ((_PUBLISH, False), (_NO_POLICY, False), (_INJECT, True)),
    _change_svc_pod,
    _list_svc_objects,
)


_SSH_HOME: Final = "/root/.ssh"
_SSH_SUBPATH: Final = ".ssh"
_SSH_FILES: Final = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
_SSH_FOLDER: Final = "ssh-key-file-path"
_SSH_PRIVATE_KEY: Final = "ssh-private-key"
_SSH_PUBLIC_KEY: Final = "ssh-public-key"
_SSH_PORT: Final = "ssh-port"
_STANDARD_SSH_PORT: Final = 22


def _secret_name(job: Job) -> str:
    return f"{job.meta.name}-ssh"


def _change_ssh_pod(draft: Draft, flags: Flags) -> None:
    """Mount the key pair and the SSH configuration in all containers."""
    name, path = _secret_name(draft.job), flags.text(_SSH_FOLDER)
    items = [{"key": key, "path": f"{_SSH_SUBPATH}/{key}"} for key in _SSH_FILES]
    mode = 0o600 if path == _SSH_HOME else 0o644
    secret = {"secretName": name, "items": items, "defaultMode": mode}
    draft.add_volume({"name": name, "secret": secret})
    mount = {"name": name, "mountPath": path, "subPath": _SSH_SUBPATH}
    add_mount(draft.all_containers, mount)


def _list_ssh_objects(job: Job, flags: Flags) -> tuple[PluginObject, ...]:
    """Return the Secret with the SSH configuration and a key pair.

    The plugin's arguments may contain a key pair; otherwise, a new key pair is generated.
    """
    port = flags.number(_SSH_PORT)
    lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    for task in job.spec.tasks:
        for name, address in hosts(job.meta.name, task):
            lines += [f"Host {name}", f"  HostName {address}"]
            if port != _STANDARD_SSH_PORT:
                lines.append(f"  Port {port}")
    config = {"data": {"config": _encode_base64("\n".join(lines) + "\n")}}
    make = partial(_build_ssh_secret, config["data"])
    given_keys = KeyPair(flags.text(_SSH_PRIVATE_KEY), flags.text(_SSH_PUBLIC_KEY))
    manifest = make(given_keys)
    secret_name = _secret_name(job)
    if given_keys.private:
        return (PluginObject(SECRET, secret_name, manifest, config),)
    return (PluginObject(SECRET, secret_name, manifest, config, make),)


def _build_ssh_secret(config: Mapping[str, str], keys: KeyPair) -> dict[str, Any]:
    public = _encode_base64(keys.public)
    data = {"id_rsa": _encode_base64(keys.private), "id_rsa.pub": public, "authorized_keys": public}
    return {"type": "Opaque", "data": {**data, **config}}


def _encode_base64(text: str) -> str:
    return b64encode(text.encode()).decode()


_SSH_FLAGS: Final = (
    (_SSH_FOLDER, _SSH_HOME),
    (_SSH_PRIVATE_KEY, ""),
    (_SSH_PUBLIC_KEY, ""),
    (_SSH_PORT, _STANDARD_SSH_PORT),
)
SSH = Plugin("ssh", _SSH_FLAGS, _change_ssh_pod, _list_ssh_objects)


def _change_mpi_pod(draft: Draft, flags: Flags) -> None:
    """Add the SSH port to all containers, and pass the workers' host names to the master."""
    _add_port(draft.all_containers, "mpijob-port", flags.number("port"))
    worker = _find_task(draft.job, flags.text("worker"))
    if draft.task.name == flags.text("master") and worker is not None:
        name = draft.job.meta.name
        hosts = draft.once_per_job(MPI.name, lambda: ",".join(addresses(name, worker)))
        _add_env(draft.all_containers, _variable("MPI_HOST", hosts))


MPI = Plugin(
    "mpi",
    (("master", "master"), ("worker", "worker"), ("port", 22)),
    _change_mpi_pod,
    needs=("svc", "ssh"),
)


_TENSORFLOW_ROLES: Final = ("ps", "worker", "chief", "evaluator")


def _change_tensorflow_pod(draft: Draft, flags: Flags) -> None:
    """Set the environment variable TF_CONFIG, unless the job has only one pod."""
    job = draft.job
    if len(job.spec.tasks) == 1 and draft.task.replicas == 1:
        return
    cluster = draft.once_per_job(
        TENSORFLOW.name, lambda: _write_json(_tensorflow_cluster(job, flags))
    )
    role_of = {flags.text(role): role for role in _TENSORFLOW_ROLES}
    tf_task = {"type": role_of.get(draft.task.name, draft.task.name), "index": draft.index}
    config = f'{{"cluster":{cluster},"task":{_write_json(tf_task)}}}'
    _add_env(draft.containers, _variable("TF_CONFIG", config))


def _tensorflow_cluster(job: Job, flags: Flags) -> dict[str, list[str]]:
    """Return the `host:port` addresses of the job's pods, keyed by TensorFlow role."""
    cluster = {}
    for role in _TENSORFLOW_ROLES:
        task = _find_task(job, flags.text(role))
        if task is not None and task.replicas:
            found = [host(job.meta.name, task, i)[1] for i in range(task.replicas)]
            cluster[role] = [f"{address}:{flags.number('port')}" for address in found]
    return cluster


def _write_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


TENSORFLOW = Plugin(
    "tensorflow",
    (*((role, role) for role in _TENSORFLOW_ROLES), ("port", 2222)),
    _change_tensorflow_pod,
    needs=("svc",),
)


def _change_pytorch_pod(draft: Draft, flags: Flags) -> None:
    """If the job has a master task, set PyTorch's environment variables and add PyTorch's port.

    The ranks of workers follow those of masters, so each rank is unique.
    """
    job, name = draft.job, draft.task.name
    master, worker = flags.text("master"), flags.text("worker")
    master_task = _find_task(job, master)
    if master_task is None:
        return
    address, port = host(job.meta.name, master_task, 0)[1], flags.number("port")
    _add_port(draft.containers, "pytorchjob-port", port)
    num_masters, num_workers = _count_replicas(job, master), _count_replicas(job, worker)
    size = num_masters + (num_workers if worker != master else 0)
    shared = {"MASTER_ADDR": address, "MASTER_PORT": port, "WORLD_SIZE": size}
    _add_env(draft.containers, *(_variable(key, value) for key, value in shared.items()))
    ranks = {worker: num_masters + draft.index, master: draft.index}
    if name in ranks:
        _add_env(draft.containers, _variable("RANK", ranks[name]))
    if name == worker != master and flags.boolean("wait-master-enabled"):
        draft.init_containers.append(_build_wait_container(address, flags))


def _build_wait_container(address: str, flags: Flags) -> dict[str, Any]:
    """Return an init container that waits for the master's port, and fails after a timeout."""
    port, seconds = flags.number("port"), flags.number("wait-master-timeout")
    script = (
        f"end=$(($(date +%s)+{seconds})); "
        f"until nc -z -w 2 {address} {port}; do "
        f'if [ "$(date +%s)" -ge "$end" ]; then '
        f'echo "{address}:{port} did not answer within {seconds} s"; exit 1; fi; '
        "sleep 2; done"
    )
    return {
        "name": "wait-for-master",
        "image": flags.text("wait-master-image"),
        "command": ["sh", "-c", script],
        "resources": {
            "requests": {"cpu": "10m", "memory": "16Mi"},
            "limits": {"cpu": "100m", "memory": "64Mi"},
        },
        "env": [],
        "volumeMounts": [],
        "ports": [],
    }


PYTORCH = Plugin(
    "pytorch",
    (
        ("master", "master"),
        ("worker", "worker"),
        ("port", 23456),
        ("wait-master-enabled", False),
        ("wait-master-timeout", 300),
        ("wait-master-image", "busybox:1.36.1"),
    ),
    _change_pytorch_pod,
    needs=("svc",),
)


_RAY_PORTS: Final = (
    ("gcs", "port"),
    ("dashboard", "dashboardPort"),
    ("client-server", "clientPort"),
)
"""For each port of a Ray head, the port's name and the plugin flag that sets its number."""


def _change_ray_pod(draft: Draft, flags: Flags) -> None:
    """Set the container commands that start Ray in the head pod and in the worker pods."""
    head = _find_task(draft.job, flags.text("head"))
    if head is None:
        return
    name, port = draft.task.name, flags.number("port")
    for container in draft.containers:
        if name == head.name and container.get("name") == flags.text("headContainer"):
            for port_name, flag in _RAY_PORTS:
                _add_port([container], port_name, flags.number(flag))
            command = (
                f"ray start --head --block --dashboard-host=0.0.0.0 --port={port}"
                f" --dashboard-port={flags.number('dashboardPort')}"
                f" --ray-client-server-port={flags.number('clientPort')}"
            )
            container["command"] = ["sh", "-c", command]
        is_worker = name == flags.text("worker") != head.name
        if is_worker and container.get("name") == flags.text("workerContainer"):
            address = host(draft.job.meta.name, head, 0)[1]
            command = f"ray start --block --address={address}:{port}"
            container["command"] = ["sh", "-c", command]


def _list_ray_objects(job: Job, flags: Flags) -> tuple[PluginObject, ...]:
    """Return the Ray head's Service."""
    selector = {**_pod_labels(job), wellknown.TASK_SPEC: flags.text("head")}
    ports: list[dict[str, Any]] = [
        {"name": name, "port": flags.number(flag), "targetPort": name, "protocol": "TCP"}
        for name, flag in _RAY_PORTS
    ]
    service = {"spec": {"selector": selector, "ports": ports}}
    return (PluginObject(SERVICE, f"{job.meta.name}-head-svc", service, {}),)


RAY = Plugin(
    "ray",
    (
        ("head", "head"),
        ("headContainer", "head"),
        ("worker", "worker"),
        ("workerContainer", "worker"),
        ("port", 6379),
        ("dashboardPort", 8265),
        ("clientPort", 10001),
    ),
    _change_ray_pod,
    _list_ray_objects,
    needs=("svc",),
)


_HCCL_RANK_INDEX: Final = "hccl/rankIndex"


def _change_hcclrank_pod(draft: Draft, flags: Flags) -> None:
    """Set a missing rank annotation to the value of the variable RANK, or else to the pod's rank.

    Ranks are assigned in index order, to masters first and then to workers.
    """
    if draft.annotations.get(_HCCL_RANK_INDEX):
        return
    variables = (each for container in draft.containers for each in container["env"])
    rank = next((str(v.get("value") or "") for v in variables if v.get("name") == "RANK"), "")
    master, name = flags.text("master"), draft.task.name
    if not rank and name == master:
        rank = str(draft.index)
    elif not rank and name == flags.text("worker"):
        rank = str(_count_replicas(draft.job, master) + draft.index)
    if rank:
        draft.annotations[_HCCL_RANK_INDEX] = rank


HCCLRANK = Plugin("hcclrank", (("master", "master"), ("worker", "worker")), _change_hcclrank_pod)


PLUGINS: Final = {
    plugin.name: plugin for plugin in (ENV, SVC, SSH, TENSORFLOW, PYTORCH, MPI, RAY, HCCLRANK)
}
"""Plugins by name, in the order of their changes to a pod; pytorch must precede hcclrank."""


def plugins_of(job: Job) -> tuple[tuple[Plugin, Flags], ...]:
    """Return (plugin, flags) pairs for a job's plugins and for the plugins that these require."""
    arguments_of = job.spec.plugins
    needed = {need for name in arguments_of if name in PLUGINS for need in PLUGINS[name].needs}
    return tuple(
        (plugin, read_flags(tuple(arguments_of.get(name, ())), plugin.flags))
        for name, plugin in PLUGINS.items()
        if name in arguments_of or name in needed
    )


def plugin_problems(job: Job) -> tuple[str, ...]:
    """Return a message for each unknown plugin and each invalid argument of a job."""
    known = ", ".join(PLUGINS)
    unknown = (
        f"unable to find job plugin: {name}; known plugins are {known}"
        for name in job.spec.plugins
        if name not in PLUGINS
    )
    invalid = (
        f"plugin {plugin.name}: argument {problem}"
        for plugin, flags in plugins_of(job)
        for problem in flags.problems
    )
    return (*unknown, *invalid)
