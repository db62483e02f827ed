"""Room that is promised to a gang from an instant on, and when running tasks are expected to end.

A booking is made for a gang that has waited for too long and can not start now. Others may use its
room if they end by then.
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
    """The expected run time of a task: the shortest estimate; 0 without one."""
    said = (task.estimate_ms, 0 if gang is None else gang_estimate_ms(gang))
    return min((each for each in said if each), default=0)


def gang_estimate_ms(gang: Gang) -> int:
    """The run time that the PodGroup estimates; 0 where that is missing or can not be read."""
    text = gang.annotations.get(RUNNING_ESTIMATE)
    return 0 if text is None else _read_ms(text)


@lru_cache(maxsize=4096)
def _read_ms(text: str) -> int:
    try:
        return max(parse_duration_ms(text), 0)
    except DurationError:
        return 0


def end_ms(task: Task, gang: Gang | None, now_ms: int) -> int | None:
    """The expected end of a task on a node; None without an estimate.

    One that has outrun its estimate is given twice as long, again and again (Tsafrir, Etsion and
    Feitelson, TPDS 18(6), 2007, correct estimates in steps as well). Where its start is not known
    it has started now.
    """
    length = estimate_ms(task, gang)
    if not length:
        return None
    start = min(task.started_ms, now_ms) if task.started_ms else now_ms
    while start + length <= now_ms:
        length *= 2
    return start + length


def gang_end_ms(gang: Gang, now_ms: int) -> int | None:
    """When all tasks of a gang would have ended that start now; None where that is not known."""
    waiting = [t for t in gang.tasks if not t.status.holds_resources]
    lengths = {estimate_ms(t, gang) for t in waiting} or {gang_estimate_ms(gang)}
    return None if 0 in lengths else now_ms + max(lengths)


def binding_reservations(
    gang: Gang, bookings: Sequence[CapacityReservation], now_ms: int
) -> tuple[int, ...]:
    """Numbers of the reservations that tasks of a gang have to respect if they start now.

    Those before its own one, where it has one, and those of gangs at least as important; not those
    that begin after its tasks have ended, or for which nothing must be free. A gang that runs with
    less than its minimum is completed first: it holds room that is of no use to anybody. A gang
    with nominated nodes has its room: bookings are made in addition.
    """
    waiting = [t for t in gang.tasks if t.status is TaskStatus.PENDING]
    if not bookings or not waiting:
        return ()
    if _is_broken(gang) or any(t.nominated_node for t in waiting):
        return ()
    own = next((i for i, b in enumerate(bookings) if b.gang == gang.key), len(bookings))
    end = gang_end_ms(gang, now_ms)
    return tuple(
        i
        for i, booking in enumerate(bookings[:own])
        if booking.reserves_capacity
        and gang.priority <= booking.priority
        and (end is None or end > booking.start_ms)
    )


def _is_broken(gang: Gang) -> bool:
    ready = sum(t.status.counts_as_ready for t in gang.tasks)
    return not gang.is_loose and 0 < ready < gang.min_member
