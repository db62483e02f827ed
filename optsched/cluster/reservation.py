"""Capacity reservations for gangs, and expected end times of running tasks.

A gang that has waited too long and cannot start now gets a reservation of future capacity. Gangs
that end before the reservation begins may use the reserved capacity (backfill).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from optsched.api.wellknown import RUNNING_ESTIMATE
from optsched.cluster.task import TaskStatus
from optsched.units import DurationError, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import CapacityReservation, Gang
    from optsched.cluster.task import Task


def estimate_ms(task: Task, gang: Gang | None) -> int:
    """Return the shorter run time estimate of task and gang in ms; 0 if neither has an estimate."""
    estimates = (task.estimate_ms, 0 if gang is None else gang_estimate_ms(gang))
    return min(filter(None, estimates), default=0)


def gang_estimate_ms(gang: Gang) -> int:
    """Return a PodGroup's run time estimate in ms; 0 if the annotation is missing or invalid."""
    text = gang.annotations.get(RUNNING_ESTIMATE)
    return 0 if text is None else _read_ms(text)


@lru_cache(maxsize=4096)
def _read_ms(text: str) -> int:
    try:
        return max(parse_duration_ms(text), 0)
    except DurationError:
        return 0


def end_ms(task: Task, gang: Gang | None, now_ms: int) -> int | None:
    """Return the expected end time of a task on a node in epoch ms, or None without an estimate.

    If a task has exceeded its estimate, the estimate is doubled until the end is after `now_ms`.
    The stepwise increase of exceeded estimates is from Tsafrir, Etsion and Feitelson, TPDS 18(6),
    2007. A task with an unknown start time is assumed to start at `now_ms`.
    """
    length = estimate_ms(task, gang)
    if not length:
        return None
    start = min(task.started_ms, now_ms) if task.started_ms else now_ms
    while start + length <= now_ms:
        length *= 2
    return start + length


def gang_end_ms(gang: Gang, now_ms: int) -> int | None:
    """Return the expected end time of a gang that starts at `now_ms`, or None if unknown."""
    waiting = [t for t in gang.tasks if not t.status.holds_resources]
    lengths = {estimate_ms(t, gang) for t in waiting} or {gang_estimate_ms(gang)}
    return None if 0 in lengths else now_ms + max(lengths)


def binding_reservations(
    gang: Gang, reservations: Sequence[CapacityReservation], now_ms: int
) -> tuple[int, ...]:
    """Return the indices of the reservations that a gang must respect if it starts at `now_ms`.

    A gang must respect reservation i only if the holder of the reservation has at least the same
    priority. In addition, reservation i must precede the gang's own reservation, reserve capacity,
    and begin before the gang ends.

    If the gang's queue is entitled to the reserved capacity (`CapacityReservation.entitled`), the
    gang may start before reservation i and must respect only the reservation's `entitlements`. The
    result then contains the bitwise complement `~i` instead of the index `i`.

    If some pods of a gang run, but fewer than its minimum, the gang respects no reservation: the
    capacity of the running pods is useless until the gang's minimum runs. A gang with nominated
    nodes respects no reservation, because no reservation contains nominated capacity.
    """
    waiting = [t for t in gang.tasks if t.status is TaskStatus.PENDING]
    if not reservations or not waiting or any(t.nominated_node for t in waiting):
        return ()
    ready = sum(t.status.counts_as_ready for t in gang.tasks)
    if not gang.is_loose and 0 < ready < gang.min_member:
        return ()
    own = next((i for i, b in enumerate(reservations) if b.gang == gang.key), len(reservations))
    end = gang_end_ms(gang, now_ms)
    return tuple(
        ~i if gang.key in reservation.entitled else i
        for i, reservation in enumerate(reservations[:own])
        if reservation.reserves_capacity
        and gang.priority <= reservation.priority
        and (end is None or end > reservation.start_ms)
    )
