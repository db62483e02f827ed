"""Plugins for distributed frameworks, with which the pods of a job find each other.

The plugin `mpi` opens the SSH port and passes the workers' host names to the master. `tensorflow`
sets TF_CONFIG. `pytorch` sets the master's address and each pod's rank. `ray` starts a Ray cluster.
`hcclrank` sets the rank annotation that NPUs require.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.kinds import SERVICE
from optsched.controllers.job.object_names import addresses, host
from optsched.controllers.job.plugins.base import (
    Extra,
    Plugin,
    add_env,
    add_port,
    replicas_of,
    task_named,
    variable,
)
from optsched.controllers.job.plugins.svc import pods_of

if TYPE_CHECKING:
    from optsched.api.job import Job
    from optsched.controllers.job.plugins.base import Draft, Flags


def dress_mpi(draft: Draft, flags: Flags) -> None:
    """Add the SSH port to all containers, and pass the workers' host names to the master."""
    add_port(draft.all_containers, "mpijob-port", flags.number("port"))
    worker = task_named(draft.job, flags.text("worker"))
    if draft.task.name == flags.text("master") and worker is not None:
        name = draft.job.meta.name
        hosts = draft.once_per_job(MPI.name, lambda: ",".join(addresses(name, worker)))
        add_env(draft.all_containers, variable("MPI_HOST", hosts))


MPI = Plugin(
    "mpi",
    (("master", "master"), ("worker", "worker"), ("port", 22)),
    dress_mpi,
    needs=("svc", "ssh"),
)


_ROLES: Final = ("ps", "worker", "chief", "evaluator")


def dress_tensorflow(draft: Draft, flags: Flags) -> None:
    """Set the environment variable TF_CONFIG, unless the job has only one pod."""
    job = draft.job
    if len(job.spec.tasks) == 1 and draft.task.replicas == 1:
        return
    cluster = draft.once_per_job(
        TENSORFLOW.name, lambda: _write_json(_tensorflow_cluster(job, flags))
    )
    role_of = {flags.text(role): role for role in _ROLES}
    place = {"type": role_of.get(draft.task.name, draft.task.name), "index": draft.index}
    config = f'{{"cluster":{cluster},"task":{_write_json(place)}}}'
    add_env(draft.containers, variable("TF_CONFIG", config))


def _tensorflow_cluster(job: Job, flags: Flags) -> dict[str, list[str]]:
    """Return the `host:port` addresses of the job's pods, keyed by TensorFlow role."""
    cluster = {}
    for role in _ROLES:
        task = task_named(job, flags.text(role))
        if task is not None and task.replicas:
            found = [host(job.meta.name, task, i)[1] for i in range(task.replicas)]
            cluster[role] = [f"{address}:{flags.number('port')}" for address in found]
    return cluster


def _write_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


TENSORFLOW = Plugin(
    "tensorflow",
    (*((role, role) for role in _ROLES), ("port", 2222)),
    dress_tensorflow,
    needs=("svc",),
)


def dress_pytorch(draft: Draft, flags: Flags) -> None:
    """Set PyTorch's environment variables and add its port, if the job has a master task.

    The ranks of workers follow those of masters, so each rank is unique.
    """
    job, name = draft.job, draft.task.name
    master, worker = flags.text("master"), flags.text("worker")
    master_task = task_named(job, master)
    if master_task is None:
        return
    address, port = host(job.meta.name, master_task, 0)[1], flags.number("port")
    add_port(draft.containers, "pytorchjob-port", port)
    num_masters, num_workers = replicas_of(job, master), replicas_of(job, worker)
    size = num_masters + (num_workers if worker != master else 0)
    shared = {"MASTER_ADDR": address, "MASTER_PORT": port, "WORLD_SIZE": size}
    add_env(draft.containers, *(variable(key, value) for key, value in shared.items()))
    ranks = {worker: num_masters + draft.index, master: draft.index}
    if name in ranks:
        add_env(draft.containers, variable("RANK", ranks[name]))
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
    dress_pytorch,
    needs=("svc",),
)


_PORTS: Final = (("gcs", "port"), ("dashboard", "dashboardPort"), ("client-server", "clientPort"))
"""(port name, plugin flag that sets the port) for each port of a Ray head."""


def dress_ray(draft: Draft, flags: Flags) -> None:
    """Set the container commands that start Ray in the head pod and in the worker pods."""
    head = task_named(draft.job, flags.text("head"))
    if head is None:
        return
    name, port = draft.task.name, flags.number("port")
    for container in draft.containers:
        if name == head.name and container.get("name") == flags.text("headContainer"):
            for port_name, flag in _PORTS:
                add_port([container], port_name, flags.number(flag))
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


def extras_ray(job: Job, flags: Flags) -> tuple[Extra, ...]:
    """Return the Ray head's Service."""
    selector = {**pods_of(job), wellknown.TASK_SPEC: flags.text("head")}
    ports: list[dict[str, Any]] = [
        {"name": name, "port": flags.number(flag), "targetPort": name, "protocol": "TCP"}
        for name, flag in _PORTS
    ]
    service = {"spec": {"selector": selector, "ports": ports}}
    return (Extra(SERVICE, f"{job.meta.name}-head-svc", service, {}),)


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
    dress_ray,
    extras_ray,
    needs=("svc",),
)


RANK_INDEX: Final = "hccl/rankIndex"


def dress_hcclrank(draft: Draft, flags: Flags) -> None:
    """If the rank annotation is missing, set it to the variable RANK or else to the pod's rank.

    Ranks are assigned in index order, to masters first and then to workers.
    """
    if draft.annotations.get(RANK_INDEX):
        return
    variables = (each for container in draft.containers for each in container["env"])
    rank = next((str(v.get("value") or "") for v in variables if v.get("name") == "RANK"), "")
    master, name = flags.text("master"), draft.task.name
    if not rank and name == master:
        rank = str(draft.index)
    elif not rank and name == flags.text("worker"):
        rank = str(replicas_of(draft.job, master) + draft.index)
    if rank:
        draft.annotations[RANK_INDEX] = rank


HCCLRANK = Plugin("hcclrank", (("master", "master"), ("worker", "worker")), dress_hcclrank)
