"""The positions of pending gangs in their queues, and their expected starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.api.kinds import POD, POD_GROUP, kind_of
from optsched.cluster.snapshot import GangPhase
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE
from optsched.formats.snapshots.assembly import assemble
from optsched.session.session import expected_starts, waiting_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from optsched.cluster.snapshot import CapacityReservation, Snapshot
    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.policy.policy import Policy
    from optsched.session.session import SessionContext

    Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class PredictionSettings:
    """The policy, the dependencies of a session, and the options for decoding objects."""

    policy: Policy
    context: SessionContext
    options: DecodeOptions


def name_of(obj: Manifest) -> tuple[str, str]:
    """Return the identity of an object: its `apiVersion` and kind, and its key."""
    return f"{obj.get('apiVersion')} {obj.get('kind')}", key_of(obj)


def key_of(obj: Manifest) -> str:
    """Return the key of an object: `namespace/name`, or only the name if it is cluster-scoped."""
    kind = kind_of(obj)
    meta = obj.get("metadata") or {}
    name = str(meta.get("name", ""))
    if kind is not None and not kind.namespaced:
        return name
    return f"{meta.get('namespace') or DEFAULT_NAMESPACE}/{name}"


def is_pod_of(obj: Manifest, keys: Collection[str]) -> bool:
    """Return whether an object is a pod, and `keys` contains its key."""
    return obj.get("kind") == POD.kind and key_of(obj) in keys


@dataclass(frozen=True, slots=True)
class Standing:
    """The position of a pending gang in its queue."""

    gang: str
    queue: str
    # Position in the queue, from 1; the next session considers position 1 first.
    position: int
    num_waiting: int  # Number of pending gangs in the queue, this gang included.
    ahead: tuple[str, ...]  # Keys of the gangs with lower positions, in queue order.


@dataclass(frozen=True, slots=True)
class Waiting:
    """The time since which a gang waits, and its position in the queue.

    `standing` is None if the gang has no pending pod. Times are in epoch milliseconds.
    """

    since_ms: int
    now_ms: int
    standing: Standing | None
    expected: CapacityReservation | None


def standings(objects: Sequence[Manifest], settings: PredictionSettings) -> dict[str, Standing]:
    """Return the queue position of each pending gang, keyed by gang."""
    return _queue_positions(assemble(objects, settings.options).snapshot, settings.policy)


def waiting(
    objects: Sequence[Manifest], key: str, pods: Sequence[Manifest], settings: PredictionSettings
) -> Waiting | None:
    """Return the queue position and expected start of a gang, or None if the gang does not exist.

    `pods` holds the pods that a controller will create after the gang is enqueued; their total
    request is the gang's demand.
    """
    snapshot = assemble(objects, settings.options).snapshot
    gang = next((gang for gang in snapshot.gangs if gang.key == key), None)
    if gang is None:
        return None
    standing = _queue_positions(snapshot, settings.policy).get(key)
    reservation = None
    if standing is not None:
        # Predict the start as if the controller had created all pods of the gang.
        names = {key_of(pod) for pod in pods}
        existing = {key_of(obj) for obj in objects if is_pod_of(obj, names)}
        created: list[Manifest] = [
            {**obj, "status": {"phase": GangPhase.INQUEUE.value}}
            if obj.get("kind") == POD_GROUP.kind and key_of(obj) == key and names - existing
            else obj
            for obj in objects
        ]
        created += [pod for pod in pods if key_of(pod) not in existing]
        complete = assemble(created, settings.options, snapshot.taken_ms).snapshot
        reservation = expected_starts(complete, settings.policy, {key}).get(key)
    if (
        reservation is not None
        and not reservation.is_open
        and reservation.start_ms <= snapshot.taken_ms
    ):
        reservation = None
    return Waiting(gang.waiting_since_ms, snapshot.taken_ms, standing, reservation)


def _queue_positions(snapshot: Snapshot, policy: Policy) -> dict[str, Standing]:
    return {
        key: Standing(key, queue, i + 1, len(line), tuple(line[:i]))
        for queue, line in waiting_lines(snapshot, policy).items()
        for i, key in enumerate(line)
    }
