"""Changes that this process has made and that the API server has not confirmed yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from optsched.api.wellknown import MOVES
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import QueueGate, Task, TaskStatus
from optsched.formats.codec.pod_groups import has_lost_its_pods

if TYPE_CHECKING:
    from optsched.api.podgroup import PodGroup
    from optsched.cluster.dra_devices import DeviceAllocation, DeviceClaim
    from optsched.cluster.node_resources import GpuShare, NumaPart
    from optsched.cluster.snapshot import Gang


@dataclass(frozen=True, slots=True)
class AssumedBind:
    """The assumption that a pending task is bound with the given GPU shares and NUMA cells."""

    node: str
    shared_gpus: tuple[GpuShare, ...] = ()
    numa: tuple[NumaPart, ...] = ()

    def apply_to(self, reported: Task) -> Task:
        """Apply the assumption to a task as reported by the API server."""
        shape = reported.shape
        if reported.device_claims:
            shape = replace(shape, device_claims=(), devices=())
        bound = replace(reported, shape=shape, status=TaskStatus.BOUND, node=self.node)
        return replace(bound, shared_gpus=self.shared_gpus, numa=self.numa, gate=QueueGate.NONE)

    def is_unconfirmed(self, reported: Task) -> bool:
        """Return whether the API server has neither confirmed nor contradicted the assumption."""
        return reported.status is TaskStatus.PENDING


@dataclass(frozen=True, slots=True)
class AssumedEviction:
    """The assumption that a task is evicted; the task was running or assumed bound.

    Attributes
    ----------
    bound
        The assumed bind, if it was unconfirmed when the eviction was planned, or None.

    """

    bound: AssumedBind | None = None

    def apply_to(self, reported: Task) -> Task:
        """Apply the assumption to a task as reported by the API server."""
        if self.bound is not None and self.bound.is_unconfirmed(reported):
            reported = self.bound.apply_to(reported)
        return replace(reported, status=TaskStatus.RELEASING, is_evicted=True)

    def is_unconfirmed(self, reported: Task) -> bool:
        """Return whether the task still runs, or its assumed bind is unconfirmed."""
        awaits_bind = self.bound is not None and self.bound.is_unconfirmed(reported)
        return awaits_bind or reported.status.is_standing


@dataclass(frozen=True, slots=True)
class AssumedNomination:
    """The assumption that a pending task is nominated to a node.

    An empty `node` means that the task is not nominated.
    """

    node: str

    def apply_to(self, reported: Task) -> Task:
        """Apply the assumption to a task as reported by the API server."""
        return replace(reported, nominated_node=self.node)

    def is_unconfirmed(self, reported: Task) -> bool:
        """Return whether the task is pending without the assumed nomination."""
        is_confirmed = reported.nominated_node == self.node
        return reported.status is TaskStatus.PENDING and not is_confirmed


Assumption: TypeAlias = AssumedBind | AssumedEviction | AssumedNomination


@dataclass(frozen=True, slots=True)
class AssumedAllocation:
    """The assumption that devices are allocated to a claim, because a task is being bound.

    `stored_at` is the resource version with which the server stored the allocation, if known.
    """

    task: str
    uid: str
    allocation: DeviceAllocation
    stored_at: int | None = None

    def is_unconfirmed(self, claim: DeviceClaim | None, version: int | None) -> bool:
        """Return whether the reported claim neither confirms nor contradicts the assumption.

        `version` is the reported resource version. A claim without an allocation has been released
        if `version` is newer than `stored_at`.
        """
        is_same = claim is not None and claim.allocation is None and claim.uid == self.uid
        return is_same and not is_newer(version, self.stored_at)


def is_newer(reported: int | None, stored: int | None) -> bool:
    """Return whether a reported version is at least the stored version; False if one is unknown."""
    return reported is not None and stored is not None and reported >= stored


def uid_of(gang: Gang) -> str:
    """Return the UID of a gang's PodGroup, or of the pod if the gang is a bare pod."""
    return gang.tasks[0].uid if gang.is_implicit else gang.uid


@dataclass(frozen=True, slots=True)
class GangAssumptions:
    """Assumed phases of PodGroups, and assumed annotations that record moves of pods.

    Attributes
    ----------
    moves
        UID of the PodGroup, and its assumed annotation `wellknown.MOVES`, keyed by gang.
    enqueued
        UIDs of PodGroups that are assumed to be enqueued, keyed by gang.

    """

    moves: dict[str, tuple[str, str]] = field(default_factory=dict)
    enqueued: dict[str, str] = field(default_factory=dict)

    def apply_to(self, gang: Gang, group: PodGroup | None) -> Gang:
        """Apply the assumptions to a gang; drop confirmed and contradicted assumptions.

        A new gang with the same key has a new UID, which contradicts all assumptions. A PodGroup
        whose pods are deleted is never enqueued, so an assumption about its phase is dropped too.
        """
        if gang.key in self.moves:
            uid, text = self.moves[gang.key]
            if gang.annotations.get(MOVES, "") == text or uid_of(gang) != uid:
                del self.moves[gang.key]
            else:
                others = {key: value for key, value in gang.annotations.items() if key != MOVES}
                gang = replace(gang, annotations={**others, MOVES: text} if text else others)
        if gang.key in self.enqueued:
            is_confirmed = gang.phase is not GangPhase.PENDING
            is_same = gang.uid == self.enqueued[gang.key]
            if is_confirmed or not is_same or (group and has_lost_its_pods(gang.tasks, group)):
                del self.enqueued[gang.key]
            else:
                gang = replace(gang, phase=GangPhase.INQUEUE)
        return gang
