"""The cluster as reviews see it, and the settings of the administrator."""

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
    """The cluster as a review sees it."""

    def queue(self, name: str) -> Queue | None:
        """The queue of that name."""

    def queues(self) -> Iterable[Queue]:
        """All queues."""

    def children(self, name: str) -> tuple[Queue, ...]:
        """The queues that name this one as their parent."""

    def namespace_annotations(self, name: str) -> Mapping[str, str]:
        """The annotations of a namespace; none where it is not known."""

    def has_priority_class(self, name: str) -> bool:
        """Whether there is a PriorityClass of that name."""

    def template_queue(self, namespace: str, name: str) -> str | None:
        """The queue that a JobTemplate names; None where there is no such template."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the administrator.

    scheduler_names: pods of these are ours; the first is the default. trusted: users that act for
    others, whose access was looked at before; lists of a queue do not bind them. zones: names of
    time zones; None where nobody knows them. checks_allocated: whether a queue whose pods hold
    something may not be deleted (Volcano's --enable-queue-allocated-pods-check). resource_groups:
    the first to which a pod belongs says where it runs. gates_pods: whether pods that ask for it
    are held back until their queue has room (Volcano's feature SchedulingGatesQueueAdmission).
    checks_use: whether a user needs the right `use` of a queue, unless its lists name him.
    tenant_annotations: guarded annotations that users without the right to update queues may write
    too. tenant_classes: PriorityClasses that tenants may name; None for all but those of the
    system. device_schedulers: others whose pods' annotations say which devices they hold.
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
