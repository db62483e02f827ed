"""ray: one head and its workers become a Ray cluster, with a Service for the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.kinds import SERVICE
from optsched.controllers.job.object_names import host
from optsched.controllers.job.plugins.base import Extra, Plugin, task_named
from optsched.controllers.job.plugins.svc import pods_of
from optsched.controllers.job.pod_draft import add_port

if TYPE_CHECKING:
    from optsched.api.job import Job
    from optsched.controllers.job.plugins.flags import Flags
    from optsched.controllers.job.pod_draft import Draft

_PORTS: Final = (("gcs", "port"), ("dashboard", "dashboardPort"), ("client-server", "clientPort"))
"""Names of ports, each with its flag."""


def dress(draft: Draft, flags: Flags) -> None:
    """Replace the commands of the head's container and of the workers'."""
    head = task_named(draft.job, flags.text("head"))
    if head is None:
        return
    name, port = draft.task.name, flags.number("port")
    for container in draft.containers:
        if name == head.name and container.get("name") == flags.text("headContainer"):
            for port_name, flag in _PORTS:
                add_port([container], port_name, flags.number(flag))
            container["command"] = _shell(
                f"ray start --head --block --dashboard-host=0.0.0.0 --port={port}"
                f" --dashboard-port={flags.number('dashboardPort')}"
                f" --ray-client-server-port={flags.number('clientPort')}"
            )
        is_worker = name == flags.text("worker") != head.name
        if is_worker and container.get("name") == flags.text("workerContainer"):
            address = host(draft.job.meta.name, head, 0)[1]
            container["command"] = _shell(f"ray start --block --address={address}:{port}")


def extras(job: Job, flags: Flags) -> tuple[Extra, ...]:
    """The Service by which the head is reached."""
    selector = {**pods_of(job), wellknown.TASK_SPEC: flags.text("head")}
    ports: list[dict[str, Any]] = [
        {"name": name, "port": flags.number(flag), "targetPort": name, "protocol": "TCP"}
        for name, flag in _PORTS
    ]
    service = {"spec": {"selector": selector, "ports": ports}}
    return (Extra(SERVICE, f"{job.meta.name}-head-svc", service, {}),)


def _shell(command: str) -> list[str]:
    return ["sh", "-c", command]


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
    dress,
    extras,
    needs=("svc",),
)
