"""pytorch: where the master is, how many take part, and which of them the pod is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.controllers.job.object_names import host
from optsched.controllers.job.plugins.base import Plugin, replicas_of, task_named, variable
from optsched.controllers.job.pod_draft import add_env, add_port

if TYPE_CHECKING:
    from optsched.controllers.job.plugins.flags import Flags
    from optsched.controllers.job.pod_draft import Draft


def dress(draft: Draft, flags: Flags) -> None:
    """Add the variables and the port; nothing without a master.

    Ranks continue from the masters to the workers, so that each exists once.
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
        draft.init_containers.append(_waiting(address, flags))


def _waiting(address: str, flags: Flags) -> dict[str, Any]:
    """A container that lets the others start once the master listens, or fails."""
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
    dress,
    needs=("svc",),
)
