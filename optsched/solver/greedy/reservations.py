"""Reservations for starving gangs: start times, nodes and capacity.

Running tasks have expected end times. For each gang, the planner searches for the earliest time at
which the greedy pipeline can start the gang. Candidate times are the end times of running tasks and
of earlier reservations. Sessions share no reservation state; if the cluster does not change, the
next session computes equal reservations.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reservation import estimate_ms
from optsched.cluster.snapshot import CapacityReservation
from optsched.plugins.devices.gpu_shares import shares_devices
from optsched.plugins.ordering.reservation import NEVER, expected_ends
from optsched.plugins.scores.nodeorder import find_preferences
from optsched.problem.arrays import UNLIMITED, frozen
from optsched.problem.columns import GangColumns
from optsched.problem.running import running_tasks
from optsched.solver.greedy.pipeline import find_start
from optsched.solver.model.node_masks import static_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


MOST_HOPELESS = 16
"""Planning stops after this number of gang classes without a possible reservation."""


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """The gangs that may get reservations, and the maximum number of reservations.

    Attributes
    ----------
    gangs
        Indices of gangs, in the order in which they get reservations.
    may_hold
        Gangs that may reserve nodes whose running pods have no known end time.

    """

    gangs: Sequence[int]
    may_hold: frozenset[int]
    most: int


def make_reservations(
    problem: Problem, rules: RuleSet, request: ReservationRequest
) -> tuple[CapacityReservation, ...]:
    """Make reservations for the gangs in `request` that can start at some time.

    At most one reservation is open, which means that its start time is unknown. An open reservation
    reserves each of its nodes as soon as the node becomes idle.
    """
    planner = _ReservationPlanner(problem, rules)
    made: list[CapacityReservation] = []
    hopeless: set[tuple[int, int, bool]] = set()
    for gang in request.gangs:
        if len(made) == request.most or len(hopeless) == MOST_HOPELESS:
            break
        may_hold = gang in request.may_hold and not any(reservation.is_open for reservation in made)
        gang_class = (int(problem.shape_of[gang]), int(problem.queue_of[gang]), may_hold)
        reservation = (
            None if gang_class in hopeless else planner.plan_reservation(gang, may_hold=may_hold)
        )
        if reservation is None:
            hopeless.add(gang_class)
        else:
            made.append(reservation)
    return tuple(made)


@dataclass(frozen=True, eq=False)
class _ReservedAmounts:
    """The amounts that a reservation holds on nodes (N, R) and in queues (Q, R) until `end_ms`."""

    on_nodes: I64
    of_queues: I64
    end_ms: int


@dataclass(frozen=True, eq=False)
class _Instant:
    """A time, and the mask (N,) of nodes on which tasks without a known end time count as ended."""

    at_ms: int
    emptied: Bool
    queues_too: bool = False
    """Whether the usage of queues excludes all tasks without a known end time."""


class _ReservationPlanner:
    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self._problem = problem
        self._rules = rules
        self._running = running_tasks(problem)
        self._ends = problem.derived(expected_ends)
        self._now = problem.snapshot.taken_ms
        self._held: list[_ReservedAmounts] = []
        # The requests (N, R) of pending tasks on nominated nodes.
        self._nominated = np.zeros_like(problem.used)
        index_of = {n.name: i for i, n in enumerate(problem.snapshot.nodes) if n.ready}
        for t, task in enumerate(problem.tasks):
            if task.nominated_node in index_of:
                request = problem.classes.request[problem.task_class[t]]
                self._nominated[index_of[task.nominated_node]] += request
        self._no_node = np.zeros(problem.num_nodes, np.bool_)

    def plan_reservation(self, gang: int, *, may_hold: bool) -> CapacityReservation | None:
        """Return the earliest reservation for a gang, or None if the gang can never start."""
        ends = {int(e) for e in np.unique(self._ends).tolist() if e < NEVER}
        ends |= {held.end_ms for held in self._held if held.end_ms < NEVER}
        if self._problem.releasing.any():
            ends.add(self._now + 1)
        instants = [self._now, *sorted(e for e in ends if e > self._now)]
        alone = _alone(self._problem, gang)
        found = self._earliest(alone, instants, self._no_node)
        if found is not None:
            return self._record_reservation(alone, *found)
        return self._reserve_emptied_nodes(alone, instants) if may_hold else None

    def _earliest(
        self, alone: Problem, instants: Sequence[int], emptied: Bool
    ) -> tuple[_Instant, I64] | None:
        """Return the first time at which a gang can start, and its tasks' nodes (T,), or None."""
        may_start = self._make_quick_check(alone)
        first = bisect_left(instants, True, key=lambda at: may_start(_Instant(at, emptied)))
        found = self._find_first_start(
            len(instants) - first,
            lambda i: self._start(alone, _Instant(instants[first + i], emptied)),
        )
        return None if found is None else (_Instant(instants[first + found[0]], emptied), found[1])

    def _find_first_start(
        self, number: int, start: Callable[[int], I64 | None]
    ) -> tuple[int, I64] | None:
        """Return the first of `number` attempts that succeeds, or None if all fail.

        Attempt 0 usually succeeds. A later attempt may fail although more capacity is idle, because
        placement is greedy. The bisection may therefore miss an earlier start, but the returned
        start is valid.
        """
        start = cache(start)
        if not number or (start(0) is None and start(number - 1) is None):
            return None
        at = 0
        if start(0) is None:
            at = bisect_left(range(number), True, key=lambda i: start(i) is not None)
        node_of = start(at)
        return None if node_of is None else (at, node_of)

    def _make_quick_check(self, alone: Problem) -> Callable[[_Instant], bool]:
        """Return a fast check, which returns False only for times at which the gang cannot start.

        The check counts how many tasks of each entry (equal tasks) fit if no other entry is placed.
        """
        problem, shapes = alone, alone.shapes
        number = int(alone.shape_of[0])
        shape, start = shapes.shapes[number], int(shapes.start[number])
        need = max(shape.min_members, 1)
        classes = [int(shapes.class_of[start + e]) for e in range(len(shape.entries))]
        masks = [static_mask(problem, self._rules.filters, c) for c in classes]
        counts = [entry.count for entry in shape.entries]

        def may_start(moment: _Instant) -> bool:
            free = np.maximum(problem.allocatable - self._sum_used(moment), 0)
            found = 0
            for c, mask, count in zip(classes, masks, counts, strict=True):
                request = problem.classes.request[c]
                requested = np.flatnonzero(request)
                ratios = free[:, requested] // request[requested]
                fits = ratios.min(axis=1, initial=int(UNLIMITED))
                fits = np.minimum(fits if mask is None else fits[mask], count)
                found += min(int(fits.sum()), count)
            return found >= need

        return may_start

    def _start(self, alone: Problem, moment: _Instant) -> I64 | None:
        """Return the nodes (T,) on which a gang starts at a given time; None if it cannot start."""
        used = self._sum_used(moment)
        finished = self._finished_tasks(moment)
        if moment.queues_too:
            finished = finished | (self._ends == NEVER)
        finished &= self._running.queue_of >= 0
        allocated = self._problem.queues.allocated.copy()
        np.subtract.at(allocated, self._running.queue_of[finished], self._running.request[finished])
        for held in self._held:
            if moment.at_ms < held.end_ms:
                allocated += held.of_queues
        releasing = np.zeros_like(alone.releasing)
        frozen(used, allocated, releasing)
        queues = replace(alone.queues, allocated=allocated)
        then = replace(alone, used=used, releasing=releasing, queues=queues)
        # The values inherited from the problem `alone` do not depend on used amounts.
        return find_start(
            then.inherit_derived(alone, shares_devices, find_preferences), self._rules, 0
        )

    def _finished_tasks(self, moment: _Instant) -> Bool:
        """Return a mask (V,) of the running tasks that have ended at a given time."""
        emptied = moment.emptied[self._running.node_of]
        finished: Bool = (self._ends <= moment.at_ms) | ((self._ends == NEVER) & emptied)
        return finished

    def _sum_used(self, moment: _Instant) -> I64:
        """Return the amounts (N, R) used or reserved at a given time, including nominations."""
        problem, finished = self._problem, self._finished_tasks(moment)
        used: I64 = problem.used + self._nominated
        if moment.at_ms > self._now:
            used -= problem.releasing
        np.subtract.at(used, self._running.node_of[finished], self._running.request[finished])
        for held in self._held:
            if moment.at_ms < held.end_ms:
                used += held.on_nodes
        return used

    # --- nodes without a known end ---------------------------------------------------------------

    def _reserve_emptied_nodes(
        self, alone: Problem, instants: Sequence[int]
    ) -> CapacityReservation | None:
        """Return a reservation that waits for as few nodes as possible to become empty.

        The search assumes that nodes with less load become empty earlier. Returns None if the gang
        cannot start even after all these nodes are empty.
        """
        last = instants[-1]
        if self._start(alone, _Instant(last, self._no_node, queues_too=True)) is not None:
            # The nodes can hold the gang, so the reservation needs only queue capacity.
            for at in instants:
                moment = _Instant(at, self._no_node, queues_too=True)
                node_of = self._start(alone, moment)
                if node_of is not None:
                    reservation = self._record_reservation(alone, moment, node_of, is_open=True)
                    return replace(reservation, nodes=())
            return None
        # The load of a node is the largest fraction of a resource that tasks without a known end
        # time request.
        problem = self._problem
        load = np.zeros_like(problem.used)
        stays = self._ends == NEVER
        np.add.at(load, self._running.node_of[stays], self._running.request[stays])
        share = (load / np.maximum(problem.allocatable, 1)).max(axis=1, initial=0.0)
        nodes = np.flatnonzero(share > 0)
        order = nodes[np.lexsort((nodes, share[nodes]))]
        # `rank < n` is the mask (N,) of the first n emptied nodes.
        rank = np.full(problem.num_nodes, len(order))
        rank[order] = np.arange(len(order))
        may_start = self._make_quick_check(alone)
        numbers = range(len(order) + 1)
        first = bisect_left(numbers, True, key=lambda n: may_start(_Instant(last, rank < n)))
        enough = self._find_first_start(
            len(numbers) - first,
            lambda i: self._start(alone, _Instant(last, rank < first + i)),
        )
        if enough is None:
            return None
        found = self._earliest(alone, instants, rank < first + enough[0])
        return None if found is None else self._record_reservation(alone, *found, is_open=True)

    # --- reservations ----------------------------------------------------------------------------

    def _record_reservation(
        self, alone: Problem, moment: _Instant, node_of: I64, *, is_open: bool = False
    ) -> CapacityReservation:
        problem, (gang,) = alone, alone.snapshot.gangs
        tasks = np.flatnonzero(node_of >= 0)
        request = problem.classes.request[problem.task_class[tasks]]
        mine = np.zeros_like(problem.used)
        np.add.at(mine, node_of[tasks], request)
        of_queues = np.zeros_like(problem.queues.allocated)
        of_queues[problem.queue_of[0]] = request.sum(axis=0)
        before = [held for held in self._held if held.end_ms > moment.at_ms]
        kept = mine + sum(held.on_nodes for held in before)
        names = [problem.snapshot.nodes[n].name for n in np.unique(node_of[tasks]).tolist()]
        rows = kept[np.unique(node_of[tasks])]
        # The end time is unknown unless every task has an estimated duration.
        estimates = [estimate_ms(task, gang) for task in alone.tasks]
        length = max(estimates) if all(estimates) else 0
        end = NEVER if is_open or not length else moment.at_ms + length
        self._held.append(_ReservedAmounts(mine, of_queues, end))
        # The queue and its ancestors reserve idle amounts only of resources with a `capability`.
        queues = problem.queues
        above = np.flatnonzero(queues.subtree[:, int(problem.queue_of[0])]).tolist()
        limited = queues.capability < UNLIMITED
        total = queues.summed_up(of_queues + sum(held.of_queues for held in before))
        found = ((queues.names[q], self._named(np.where(limited[q], total[q], 0))) for q in above)
        return CapacityReservation(
            gang=gang.key,
            priority=gang.priority,
            start_ms=moment.at_ms,
            is_open=is_open,
            nodes=tuple((n, self._named(row)) for n, row in zip(names, rows, strict=True)),
            queues=tuple(sorted((name, amounts) for name, amounts in found if amounts)),
        )

    def _named(self, row: I64) -> Amounts:
        pairs = zip(self._problem.resources, row.tolist(), strict=True)
        return tuple(sorted((r, amount) for r, amount in pairs if amount))


def _alone(problem: Problem, gang: int) -> Problem:
    """Return the problem with a single gang, whose index is 0.

    Running pods of other gangs still use nodes and queues.
    """
    snapshot = problem.snapshot
    one = slice(gang, gang + 1)
    tasks = slice(int(problem.task_start[gang]), int(problem.task_start[gang + 1]))
    number = tasks.stop - tasks.start
    return replace(
        problem,
        snapshot=replace(snapshot, gangs=snapshot.gangs[one], reservations=()),
        settled=problem.settled[one],
        shape_of=problem.shape_of[one],
        queue_of=problem.queue_of[one],
        priority=problem.priority[one],
        created_ms=problem.created_ms[one],
        waiting_since_ms=problem.waiting_since_ms[one],
        min_member=problem.min_member[one],
        num_ready=problem.num_ready[one],
        task_start=np.array([0, number], np.int64),
        task_class=problem.task_class[tasks],
        gang_of=np.zeros(number, np.int64),
        blocked={},
        rows=problem.rows[one],
        plain_rows=problem.plain_rows[one],
        gang_columns=GangColumns(problem.rows[one]),
    )
