"""Backfill reservations in the snapshot, for gangs that have waited too long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.plugins.ordering.fifo import NO_GANG, FifoLines
from optsched.plugins.ordering.gang_order import Sla
from optsched.plugins.ordering.reservation import describe_reservation
from optsched.problem.compile import compile_problem
from optsched.session.entitled_gangs import find_entitled_gangs
from optsched.solver.greedy.reservations import ReservationRequest, make_reservations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import CapacityReservation, Gang, Snapshot
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem

HOLD_MS = 600_000
"""Duration in milliseconds of each time slot in `reserves_nodes`."""

MOST_EXPECTED = 256
"""Maximum number of waiting gangs whose start time is predicted."""


@dataclass(frozen=True, eq=False)
class Reserved:
    """A snapshot and the backfill reservations for its gangs that have waited too long.

    Attributes
    ----------
    snapshot
        The snapshot with the reservations that other gangs must respect. A reservation that starts
        now may reserve no nodes; it is kept because later reservations depend on its gang.
    reservations
        All reservations, including those of gangs that can start now.
    problem
        The problem compiled from the snapshot; it speeds up the next compilation.
    outside
        Keys of gangs that have waited too long and have no pods yet, sorted by priority and waiting
        time.

    """

    snapshot: Snapshot
    reservations: tuple[CapacityReservation, ...] = ()
    problem: Problem | None = None
    outside: tuple[str, ...] = ()

    def late(self, problem: Problem) -> list[int]:
        """Return the indices of the gangs in `outside`."""
        if not self.outside:
            return []
        number = {gang.key: i for i, gang in enumerate(problem.snapshot.gangs)}
        return [number[key] for key in self.outside]

    def heads(self, problem: Problem) -> list[int]:
        """Return the indices of the gangs whose reservation starts now, in reservation order."""
        if not self.reservations:
            return []
        number = {gang.key: i for i, gang in enumerate(problem.snapshot.gangs)}
        now = self.snapshot.taken_ms
        return [number[b.gang] for b in self.reservations if b.start_ms <= now and not b.is_open]

    def add_expectations(self, pending: Mapping[str, Reason]) -> dict[str, Reason]:
        """Map each gang with a reservation to the reason why it waits, with its expected start.

        Gangs whose reservation starts now are omitted.
        """
        return {
            b.gang: replace(reason, message=f"{reason.message}; {describe_reservation(b)}")
            for b in self.reservations
            if (reason := pending.get(b.gang)) is not None
            and reason.code is not ReasonCode.WAITING
            and (b.is_open or b.start_ms > self.snapshot.taken_ms)
        }


def reserve(
    snapshot: Snapshot, policy: Policy, previous: Problem | None, *, is_ordered: bool
) -> Reserved:
    """Compute capacity reservations for the gangs that have waited too long.

    Parameters
    ----------
    snapshot, policy
        The cluster snapshot, and the policy, which sets the maximum number of reservations.
    previous
        The problem of an earlier session, which speeds up compiling and does not change the result.
    is_ordered
        Whether the session places gangs whose reservation starts now before all other gangs of the
        same priority. If True, no capacity has to be reserved for gangs whose reservation starts
        now.

    """
    snapshot = replace(snapshot, reservations=()) if snapshot.reservations else snapshot
    late = _bypassed(snapshot, policy) if policy.reservations else []
    now_ms = snapshot.taken_ms
    # Nodes are reserved for the gangs in `outside`, although their pods are not created yet.
    outside = tuple(
        g.key
        for g in late
        if g.phase is GangPhase.PENDING
        and not (g.is_implicit or g.tasks)
        and reserves_nodes(now_ms, _late_by(g, now_ms, policy))
    )
    waiting: list[Gang] = []
    for gang in late:
        pending = [t for t in gang.tasks if t.status is TaskStatus.PENDING]
        if pending and not any(t.nominated_node for t in pending):
            waiting.append(gang)
    if not waiting:
        return Reserved(snapshot, (), previous, outside)
    before = () if previous is None else previous.snapshot.reservations
    problem = compile_problem(replace(snapshot, reservations=before), previous)
    request = _reservation_request(problem, policy, waiting)
    reservations = make_reservations(problem, policy.rules, request) if request.gangs else ()
    kept = tuple(
        b if not is_ordered or b.is_open or b.start_ms > now_ms else b.without_capacity
        for b in reservations
    )
    kept = kept if any(b.reserves_capacity for b in kept) else ()
    kept = find_entitled_gangs(problem, policy.rules, kept)
    snapshot = replace(snapshot, reservations=kept) if kept != before else problem.snapshot
    return Reserved(snapshot, reservations, problem, outside)


def expected(
    snapshot: Snapshot, policy: Policy, keys: Collection[str]
) -> dict[str, CapacityReservation]:
    """Return the reservations that the given gangs would get if they had waited too long.

    The result is keyed by gang. A gang gets its reservation after all gangs that have waited too
    long and have at least the same priority. A gang that cannot start in an empty cluster gets no
    reservation. At most `MOST_EXPECTED` gangs get reservations.
    """
    due_ms = snapshot.taken_ms - policy.budgets.starvation_after_ms - 1
    gangs = (
        replace(g, waiting_since_ms=min(g.waiting_since_ms, due_ms)) if g.key in keys else g
        for g in snapshot.gangs
    )
    aged = replace(snapshot, gangs=tuple(gangs))
    eager = replace(policy, reservations=MOST_EXPECTED)
    found = reserve(aged, eager, None, is_ordered=False).reservations
    return {reservation.gang: reservation for reservation in found if reservation.gang in keys}


def _bypassed(snapshot: Snapshot, policy: Policy) -> list[Gang]:
    """Return the gangs that have waited too long, sorted by priority and waiting time."""
    found = policy.rules.find_rule(Sla.name)
    sla = found.rule if found is not None and isinstance(found.rule, Sla) else None
    late = snapshot.taken_ms - policy.budgets.starvation_after_ms

    waiting: list[Gang] = []
    for gang in snapshot.gangs:
        if gang.is_loose or any(t.status.counts_as_ready for t in gang.tasks):
            continue
        due = None if sla is None else sla.due_ms(gang)
        if gang.waiting_since_ms < late or (due is not None and due <= snapshot.taken_ms):
            waiting.append(gang)
    knows = policy.rules.find_rule("priority") is not None
    return sorted(waiting, key=lambda g: (-g.priority if knows else 0, g.waiting_since_ms, g.key))


def _late_by(gang: Gang, now_ms: int, policy: Policy) -> int:
    """Return by how many ms a gang's waiting time exceeds `starvationAfter`; at least 0."""
    return max(now_ms - gang.waiting_since_ms - policy.budgets.starvation_after_ms, 0)


def _reservation_request(
    problem: Problem, policy: Policy, waiting: Sequence[Gang]
) -> ReservationRequest:
    number = {gang.key: i for i, gang in enumerate(problem.snapshot.gangs)}
    lines = FifoLines(problem, lambda _: False)
    gangs = [
        g
        for gang in waiting
        if problem.shape_of[g := number[gang.key]] >= 0 and lines.ahead(g) == NO_GANG
    ]
    now = problem.snapshot.taken_ms
    domain = problem.snapshot.gangs
    may_hold = (g for g in gangs if reserves_nodes(now, _late_by(domain[g], now, policy)))
    return ReservationRequest(gangs, frozenset(may_hold), policy.reservations)


def reserves_nodes(now_ms: int, late_ms: int) -> bool:
    """Return whether to reserve nodes for a gang that waited `late_ms` beyond `starvationAfter`.

    Time is divided into slots that last `HOLD_MS` each. In the last of every 2^k slots, other gangs
    may use the reserved nodes; k grows with `late_ms`. The last of every 2^k slots is also the last
    of every 2^j slots for each j < k. Other gangs may therefore use the nodes of several
    reservations in the same slot. A period of 2^k slots lasts at most `late_ms` + 2 `HOLD_MS`.
    Other gangs therefore wait for the reserved nodes only slightly longer than `late_ms`.
    """
    period = 1 << (1 + late_ms // (2 * HOLD_MS)).bit_length()
    return (now_ms // HOLD_MS + 1) % period != 0
