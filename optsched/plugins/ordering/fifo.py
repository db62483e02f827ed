"""Strict FIFO order for queues that request it: no gang overtakes the first waiting gang.

Mathematics: models/formulation/fifo.md. A Queue requests FIFO order with `spec.dequeueStrategy:
fifo`, a field that Volcano declares but does not read (volcano-sh/volcano#4572).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.plugins.gangs.gang import is_below_minimum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem

NO_GANG = -1


class Fifo(Rule):
    """Rule: in a FIFO queue, no gang gets a node while an earlier gang waits.

    Gangs are ordered by priority, age and name. Nominated and partly running gangs are exempt: they
    may start before earlier gangs and do not block later gangs.
    """

    name = "fifo"

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for queue in world.snapshot.queues:
            if not queue.is_fifo:
                continue
            head: Gang | None = None
            gangs = (g for g in world.snapshot.gangs if g.queue == queue.name)
            for gang in sorted(gangs, key=fifo_place):
                if _is_exempt(gang):
                    continue
                placed = gang.key in world.placed_of
                if placed and head is not None:
                    detail = (
                        f"overtakes {head.key}, which precedes it in the fifo queue {gang.queue}"
                    )
                    yield Violation(self.name, f"gang {gang.key}", detail)
                if head is None and not placed and _could_start(gang):
                    head = gang

    # --- encode ----------------------------------------------------------------------------------

    def distinguish_gangs(self, problem: Problem) -> I64 | None:
        """See `Rule`. Equal gangs that are adjacent in the FIFO order form one class."""
        order = problem.derived(_find_orders)
        if not order.lines:
            return None
        numbers = np.zeros(problem.num_gangs, np.int64)
        number = 0
        for line in order.lines:
            before: tuple[int, int, bool] | None = None
            for gang in line:
                shape, waits = problem.rows[gang].shape, gang in order.waits
                key = (int(problem.shape_of[gang]), int(problem.priority[gang]), waits)
                is_alone = waits and shape is not None and shape.is_started
                number += is_alone or key != before
                numbers[gang], before = number, None if is_alone else key
        return numbers

    def encode(self, form: Formulation) -> None:
        """Add the FIFO constraints of gang classes.

        For classes h' after h: x[h'], y[h'] ≤ most · b[h]. For each class h: m · b[h] ≤ y[h] and
        b[h] ≤ b[class before h].

        h and h' are gang classes, and class h has m gangs. b[h] ∈ {0, 1} is 1 only if all gangs up
        to class h are placed. y[h'] is the number of started gangs, and x[h'] the number of placed
        tasks of a set of equal tasks. `most` is the upper bound of x[h'] or y[h'].
        """
        order = form.problem.derived(_find_orders)
        if not order.lines:
            return
        first = form.gangs.members[form.gangs.member_start[:-1]]
        class_of = {int(gang): h for h, gang in enumerate(first.tolist())}
        for line in order.lines:
            _add_order_rows(form, order, [(g, class_of.get(g, -1)) for g in line])

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        lines = problem.derived(_find_orders).lines
        if not lines:
            return None
        rank = {g: float(i) for line in lines for i, g in enumerate(line)}
        need: list[int] = (problem.min_member - problem.num_ready).tolist()
        return _FifoOrder(ledger, need, problem.priority.tolist(), rank)

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`."""
        head = outcome.derived(fifo_lines).ahead(gang)
        return None if head == NO_GANG else build_order_reason(outcome.problem, head)


def build_order_reason(problem: Problem, head: int) -> Reason:
    """Return the reason that a gang waits behind the gang `head` in a FIFO queue."""
    gang = problem.snapshot.gangs[head]
    return Reason(ReasonCode.QUEUE_ORDER, f"waits behind {gang.key} in the fifo queue {gang.queue}")


def first_in_order(problem: Problem, gang: int, among: Bool) -> int:
    """Return the first gang in the FIFO order of `gang`'s queue, among the gangs in `among` (G,).

    Returns `gang` if its queue is not a FIFO queue.
    """
    queue = int(problem.queue_of[gang])
    if not problem.snapshot.queues[queue].is_fifo:
        return gang
    gangs = problem.snapshot.gangs
    return min(
        np.flatnonzero(among & (problem.queue_of == queue)).tolist(),
        key=lambda g: fifo_place(gangs[g]),
    )


def fifo_lines(outcome: Outcome) -> FifoLines:
    """Return the FIFO orders of all queues after the session's decisions."""
    problem = outcome.problem
    served = np.zeros(problem.num_gangs, np.bool_)
    served[problem.gang_of[outcome.placed | (outcome.decisions.nominated >= 0)]] = True
    return FifoLines(problem, served.__getitem__)


class FifoLines:
    """The FIFO orders of all FIFO queues; `is_served` returns whether a gang no longer waits."""

    def __init__(self, problem: Problem, is_served: Callable[[int], bool]) -> None:
        order = problem.derived(_find_orders)
        self._place = {g: (n, i) for n, line in enumerate(order.lines) for i, g in enumerate(line)}
        self._waiting = [[g for g in line if g in order.waits] for line in order.lines]
        self._next = [0] * len(order.lines)
        self._is_served = is_served

    @property
    def is_empty(self) -> bool:
        """True if no queue has a FIFO order."""
        return not self._place

    def ahead(self, gang: int) -> int:
        """Return the first waiting gang in `gang`'s queue; `NO_GANG` if no earlier gang waits."""
        if gang not in self._place:
            return NO_GANG
        line, place = self._place[gang]
        waiting = self._waiting[line]
        while self._next[line] < len(waiting) and self._is_served(waiting[self._next[line]]):
            self._next[line] += 1
        if self._next[line] == len(waiting):
            return NO_GANG
        head = waiting[self._next[line]]
        return head if self._place[head][1] < place else NO_GANG


# --- gangs as objects (for the verifier) ---------------------------------------------------------


def fifo_place(gang: Gang) -> tuple[int, int, str]:
    """Return the sort key of a gang in its FIFO queue: priority, age and name."""
    return (-gang.priority, gang.created_ms, gang.key)


def _is_exempt(gang: Gang) -> bool:
    """Return whether a gang is exempt from the FIFO order: it is nominated or partly running."""
    if any(t.nominated_node for t in gang.tasks if t.status is TaskStatus.PENDING):
        return True
    ready = [t for t in gang.tasks if t.status.counts_as_ready]
    if gang.is_loose or not ready:
        return False
    return is_below_minimum(gang, ready) or bool(gang.sub_groups)


def _could_start(gang: Gang) -> bool:
    """Return whether a gang has no running task and enough pending tasks to start.

    The result is False for gangs with subgroups: only the solver, not the verifier, lets them block
    other gangs.
    """
    waiting = [t for t in gang.tasks if t.status is TaskStatus.PENDING and t.problem is None]
    runs = any(t.status.counts_as_ready for t in gang.tasks)
    if gang.problem is not None or gang.sub_groups or runs or not waiting:
        return False
    return gang.is_loose or not is_below_minimum(gang, waiting)


# --- gangs as arrays -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Order:
    """The gangs of each FIFO queue in FIFO order.

    Attributes
    ----------
    lines
        For each FIFO queue, the indices of its gangs in FIFO order, without exempt gangs.
    waits
        Indices of the gangs without running tasks. A gang without running tasks blocks all later
        gangs of its queue until it is placed.

    """

    lines: tuple[tuple[int, ...], ...]
    waits: frozenset[int]


def _find_orders(problem: Problem) -> _Order:
    strict = {i for i, q in enumerate(problem.snapshot.queues) if q.is_fifo}
    if not strict:
        return _Order((), frozenset())
    lines: dict[int, list[int]] = {q: [] for q in sorted(strict)}
    for gang in np.flatnonzero(np.isin(problem.queue_of, list(strict))).tolist():
        row = problem.rows[gang]
        if row.shape is None or gang in problem.blocked:
            continue
        is_called = any(t.nominated_node for t in row.pending)
        is_broken = bool(row.num_ready) and not row.shape.is_started
        if not is_called and not is_broken:
            lines[int(problem.queue_of[gang])].append(gang)
    gangs = problem.snapshot.gangs
    ordered = (tuple(sorted(line, key=lambda g: fifo_place(gangs[g]))) for line in lines.values())
    kept = tuple(line for line in ordered if line)
    waits = frozenset(g for line in kept for g in line if not problem.num_ready[g])
    return _Order(kept, waits)


@dataclass(eq=False)
class _FifoOrder(Greedy):
    """Orders gangs by priority, then unstarted gangs before started gangs, then by age.

    Volcano orders gangs in this way if no plugin compares shares.

    Attributes
    ----------
    _need, _priority
        (G,) number of tasks that each gang lacks for its minimum, and (G,) priority of each gang.
    _rank
        The position of each gang in the FIFO order of its queue, only for gangs in FIFO queues.

    """

    _ledger: Ledger
    _need: Sequence[int]
    _priority: Sequence[int]
    _rank: Mapping[int, float]

    def gang_key(self, gang: int) -> tuple[float, ...]:
        if gang not in self._rank:
            return (0.0, 0.0, 0.0)
        starts = self._ledger.gang_placed[gang] >= max(self._need[gang], 1)
        return (-float(self._priority[gang]), float(starts), self._rank[gang])


def _add_order_rows(form: Formulation, order: _Order, line: Sequence[tuple[int, int]]) -> None:
    """Add the constraints of one queue for (gang, gang class) pairs in FIFO order.

    Each gang class is listed once, with its first gang; its other gangs have the gang class -1.
    """
    model, settled, most = form.model, form.problem.settled, form.model.bounds[1]
    last: int | None = None  # variable that is 1 only if all earlier gangs are placed
    is_closed = False
    for gang, h in line:
        if settled[gang] == 0:
            # A gang that must wait blocks all later gangs of its queue.
            is_closed |= gang in order.waits
        elif settled[gang] > 0 and last is not None:
            # If a gang is placed, all gangs before it must also be placed.
            model.add_rows(0, [last], 1, lower=1)
        if settled[gang] >= 0 or h < 0:
            continue
        start, number = int(form.start[h]), int(form.gangs.multiplicity[h])
        mine = slice(int(form.gangs.start[h]), int(form.gangs.start[h + 1]))
        tasks = form.placed_variable[mine][form.is_flexible[mine]]
        variables = np.append(start, tasks) if start >= 0 else tasks
        # The gang class waits until all earlier classes are placed.
        if is_closed:
            rows = np.arange(len(variables))
            model.add_rows(rows, variables, 1, upper=np.zeros(len(variables), np.int64))
        elif last is not None:
            for variable in variables.tolist():
                model.add_rows(0, [variable, last], [1, -max(int(most[variable]), 1)], upper=0)
        if gang not in order.waits:
            continue
        if start >= 0 and number == 1 and not len(tasks):
            last = start
            continue
        (served,) = model.add_variables(0, 1).tolist()
        if last is not None:
            model.add_rows(0, [served, last], [1, -1], upper=0)
        if start >= 0:
            model.add_rows(0, [served, start], [number, -1], upper=0)
        if len(tasks):
            factors = np.append(number, -np.ones(len(tasks), np.int64))
            model.add_rows(0, np.append(served, tasks), factors, upper=0)
        last = served
