"""The cluster state that reviews read, and the administrator's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from optsched.api.wellknown import DEFAULT_SCHEDULER_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.admission.resource_groups import ResourceGroup
    from optsched.api.queue import Queue

JOB_PLUGINS: Final = frozenset(
    {"env", "hcclrank", "mpi", "pytorch", "ray", "ssh", "svc", "tensorflow"}
)
MAX_QUEUE_DEPTH: Final = 5


class World(Protocol):
    """The part of the cluster state that reviews of requests read."""

    def queue(self, name: str) -> Queue | None:
        """Return the queue with this name, or None if it does not exist."""

    def queues(self) -> Iterable[Queue]:
        """Return all queues in the cluster."""

    def children(self, name: str) -> tuple[Queue, ...]:
        """Return the queues whose parent has this name."""

    def namespace_annotations(self, name: str) -> Mapping[str, str]:
        """Return a namespace's annotations; empty if the namespace is unknown."""

    def has_priority_class(self, name: str) -> bool:
        """Return whether a PriorityClass with this name exists."""

    def default_priority_class(self) -> str | None:
        """Return the name of the default PriorityClass for pods, or None if there is none."""

    def template_queue(self, namespace: str, name: str) -> str | None:
        """Return the queue that a JobTemplate names, or None if the template does not exist."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The administrator's settings for admission.

    Attributes
    ----------
    scheduler_names
        The schedulers whose pods are reviewed; the first is the default for jobs.
    trusted
        Users that act for other users, such as optsched's controllers. Admission does not check
        whether these users may use a queue.
    zones
        The known time zone names, or None to accept every name.
    checks_allocated
        True if a queue with allocated pods may not be deleted (Volcano's option
        `--enable-queue-allocated-pods-check`).
    resource_groups
        Resource groups; a pod gets the fields of the first group that it matches.
    gates_pods
        True if pods with the gate annotation get a scheduling gate, which is removed when their
        queue has capacity (Volcano's feature SchedulingGatesQueueAdmission).
    checks_use
        True if a user needs the RBAC verb `use` on a queue whose access lists do not name the user.
    tenant_annotations
        Guarded annotations that tenants may write; tenants are users who may not update queues.
    tenant_classes
        PriorityClasses that tenants may name; None allows all except the system classes.
    device_schedulers
        Names of other schedulers that record a pod's devices in annotations of the pod.
    """

    scheduler_names: tuple[str, ...] = (DEFAULT_SCHEDULER_NAME,)
    trusted: frozenset[str] = frozenset()
    zones: frozenset[str] | None = None
    max_queue_depth: int = MAX_QUEUE_DEPTH
    protects_root: bool = True
    checks_allocated: bool = False
    job_plugins: frozenset[str] = JOB_PLUGINS
    resource_groups: tuple[ResourceGroup, ...] = ()
    gates_pods: bool = False
    checks_use: bool = False
    tenant_annotations: frozenset[str] = frozenset()
    tenant_classes: frozenset[str] | None = None
    device_schedulers: frozenset[str] = frozenset()
