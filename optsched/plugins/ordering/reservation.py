"""Reservations for gangs that have waited too long: no other gang may delay their start.

Mathematics: models/formulation/reservation.md. The rule is always enabled but has no effect in
snapshots without reservations. With one reservation, the rule performs EASY backfilling (Lifka,
JSSPP 1995).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.reservation import binding_reservations, end_ms, gang_end_ms
from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.plugins.gangs.gang import next_requests
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.arrays import UNLIMITED
from optsched.problem.running import running_tasks
from optsched.units import amount_text, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import CapacityReservation
    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import NodeModel, Room
    from optsched.plugins.verification.world import Placement, World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem

NEVER = 2**62
"""The assumed end, in ms, of a task with unknown duration; it is later than any real time."""


class ExtraResources(NamedTuple):
    """Node limits that placed tasks must respect in addition to the idle resources.

    `capacity` (N, D) contains the limits of each node, and `request` (C, D) contains the amounts
    that one task of each class adds to the limited sums. A negative limit means zero.
    """

    capacity: I64
    request: I64


class Reservation(Rule):
    """Rule: capacity stays idle for the start of each reservation, based on known task durations.

    A reservation constrains the tasks that must not delay its start. The tasks of entitled gangs
    may start before the gang with the reservation, but only within the entitlements of their
    queues.
    """

    name = "reservation"

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        reservations = world.snapshot.reservations
        if not reservations:
            return
        placed = [
            (p, binding_reservations(p.gang, reservations, world.snapshot.taken_ms))
            for p in (*world.placements, *world.nominations)
        ]
        for i, reservation in enumerate(reservations):
            bound = [p for p, numbers in placed if i in numbers]
            if bound:
                yield from self._verify_start(reservation, bound, world)
            entitled = [p for p, numbers in placed if ~i in numbers]
            if entitled:
                yield from self._verify_entitlements(reservation, entitled, world)

    def _verify_start(
        self, reservation: CapacityReservation, bound: Sequence[Placement], world: World
    ) -> Iterator[Violation]:
        """Check that constrained tasks do not use the reserved amounts of nodes and queues."""
        nodes, queues = world.snapshot.node_by_name, world.snapshot.queue_by_name
        # Each tuple contains the object, its reserved amounts, the amounts that placed tasks
        # request, the existing tasks, the limits by resource, and the default limit.
        checks: list[
            tuple[str, Amounts, dict[str, int], Iterable[Task], Mapping[str, int], int]
        ] = []
        for name, kept in reservation.nodes:
            gain = summed(task_usage(p.task) for p in bound if p.node.name == name)
            if gain and name in nodes:
                node = nodes[name]
                checks.append((f"node {name}", kept, gain, node.residents, node.offers, 0))
        for name, kept in reservation.queues:
            capability = None if name not in queues else queues[name].capability
            if capability is not None:
                below = set(world.descendants_by_queue[name])
                gain = summed(task_usage(p.task) for p in bound if p.gang.queue in below)
                gangs = (g for g in world.snapshot.gangs if g.queue in below)
                counted = [t for g in gangs for t in g.tasks if t.status.counts_for_queue]
                limit = dict(capability)
                checks.append((f"queue {name}", kept, gain, counted, limit, int(UNLIMITED)))
        for where, kept, gain, tasks, limits, default in checks:
            held = summed(task_usage(t) for t in tasks if _keeps_resources(t, reservation, world))
            for resource, amount in kept:
                used = held.get(resource, 0) + gain.get(resource, 0)
                if gain.get(resource) and used + amount > limits.get(resource, default):
                    start = f"{reservation.gang} is to start at {_describe_start(reservation)}"
                    detail = f"{amount_text(resource, used)} would still be held when {start}"
                    yield Violation(self.name, where, detail)

    def _verify_entitlements(
        self, reservation: CapacityReservation, entitled: Sequence[Placement], world: World
    ) -> Iterator[Violation]:
        for name, amounts in reservation.entitlements:
            queue = world.snapshot.queue_by_name.get(name)
            if queue is None:
                continue
            below = set(world.descendants_by_queue[queue.name])
            gain = summed(task_usage(p.task) for p in entitled if p.gang.queue in below)
            held = summed(world.held_by_queue[each] for each in below)
            for resource, most in amounts:
                used = held.get(resource, 0) + gain.get(resource, 0)
                if gain.get(resource) and used > most:
                    detail = (
                        f"{amount_text(resource, used)} would be held before {reservation.gang} "
                        f"starts, but the queue is entitled to {amount_text(resource, most)}"
                    )
                    yield Violation(self.name, f"queue {name}", detail)

    # --- encode ----------------------------------------------------------------------------------

    def find_extra_resources(self, problem: Problem) -> ExtraResources | None:
        """Return the node capacity that reservations leave to constrained tasks.

        Returns None if no reservation limits a task on nodes.
        """
        reservations = problem.snapshot.reservations
        if not any(reservation.nodes for reservation in reservations):
            return None
        parts = [_find_node_limits(problem, i) for i in range(len(reservations))]
        capacity = np.concatenate([p.left for p in parts], axis=1)
        request = np.concatenate([p.request for p in parts], axis=1)
        return ExtraResources(capacity, request) if request.any() else None

    def encode(self, form: Formulation) -> None:
        """Add Σ request · x ≤ remaining capability over the constrained tasks in a queue's subtree.

        x is the number of placed tasks. The remaining capability is the part that is neither used
        nor reserved at the start of the reservation. For entitled tasks, the limit is the unused
        entitlement.
        """
        problem, gangs = form.problem, form.gangs
        for i in _list_numbers(problem):
            bound = _find_constrained_classes(problem, i)[gangs.class_of]
            for queue, r, left in _find_queue_limits(problem, i):
                below = problem.queues.subtree[queue][gangs.queue_of[gangs.gang_class_of]]
                request = problem.classes.request[gangs.class_of, r]
                entries = bound & below & (request > 0)
                if entries.any():
                    use = form.placed(request, entries)
                    form.model.add_rows(0, use.variables, use.coefficients, upper=max(left, 0))

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add Σ_c request[c, d] · supplied[c, n] ≤ capacity[n, d] (see `find_extra_resources`).

        supplied[c, n] is the number of tasks of class c that are placed on node n.
        """
        form, supplied = nodes.form, nodes.supplied
        if form is None:
            return
        spare = self.find_extra_resources(form.problem)
        if spare is None:
            return
        for d in range(spare.capacity.shape[1]):
            task_class, node = np.nonzero((supplied >= 0) & (spare.request[:, d] > 0)[:, None])
            if len(node):
                form.model.add_rows(
                    node,
                    supplied[task_class, node],
                    spare.request[task_class, d],
                    upper=np.maximum(spare.capacity[:, d], 0),
                )

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. The greedy plugin limits queues; `find_extra_resources` limits nodes."""
        limits_queues = any(r.queues or r.entitlements for r in problem.snapshot.reservations)
        if not limits_queues:
            return None
        limits = {i: _find_queue_limits(problem, i) for i in _list_numbers(problem)}
        below = [frozenset(np.flatnonzero(row).tolist()) for row in problem.queues.subtree]
        return _QueueLimits(ledger, problem.classes.bound, limits, below)

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason names the first reservation that leaves too little capability."""
        problem = outcome.problem
        if not problem.snapshot.reservations:
            return None
        requested, queue = next_requests(outcome, gang), int(problem.queue_of[gang])
        for i in problem.classes.bound[problem.task_class[problem.task_start[gang]]]:
            for above, r, left in _find_queue_limits(problem, i):
                if not problem.queues.subtree[above][queue] or not requested[r]:
                    continue
                tasks = np.flatnonzero(outcome.assigned)
                below = problem.queues.subtree[above][problem.queue_of[problem.gang_of[tasks]]]
                classes = problem.task_class[tasks]
                gaining = classes[below & _find_constrained_classes(problem, i)[classes]]
                if requested[r] + problem.classes.request[gaining, r].sum() <= left:
                    continue
                if i >= 0:
                    return build_reservation_reason(problem, gang, problem.snapshot.reservations[i])
                reservation = problem.snapshot.reservations[~i]
                return Reason(
                    ReasonCode.RESERVED,
                    f"queue {problem.queues.names[above]} would hold more than it is entitled to "
                    f"and delay the start of {reservation.gang}, expected at "
                    f"{_describe_start(reservation)}",
                )
        return None

    def explain_rooms(self, outcome: Outcome, gang: int, rooms: Sequence[Room]) -> Reason | None:
        """See `CapacityExplanation`. The reason names the first reservation that blocks nodes."""
        problem = outcome.problem
        bound = problem.classes.bound[problem.task_class[problem.task_start[gang]]]
        for i in (number for number in bound if number >= 0):
            limits = _find_node_limits(problem, i)
            tasks, left = np.flatnonzero(outcome.assigned), limits.left.copy()
            taken = limits.request[problem.task_class[tasks]]
            np.subtract.at(left, outcome.node_of_coming[tasks], taken)
            for task_class, number, counts in rooms:
                request = limits.request[task_class]
                requested = np.flatnonzero(request)
                fits = (left[:, requested] // request[requested]).min(
                    axis=1, initial=int(UNLIMITED)
                )
                if np.minimum(np.maximum(fits, 0), counts).sum() < number:
                    return build_reservation_reason(problem, gang, problem.snapshot.reservations[i])
        return None


# --- reservations as arrays ----------------------------------------------------------------------


class _NodeLimits(NamedTuple):
    """The capacity (N, D) that a reservation leaves to constrained tasks, and requests (C, D).

    Axis D contains the resources that the reservation limits. A resource is limited if, on some
    node, the reservation leaves less than the idle amount plus the amount of terminating pods.
    """

    left: I64
    request: I64


def expected_ends(problem: Problem) -> I64:
    """Return the expected ends (V,) of running tasks in epoch ms, or `NEVER` if unknown."""
    gangs, now = problem.snapshot.gangs, problem.snapshot.taken_ms
    running = running_tasks(problem)
    pairs = zip(running.tasks, running.gang_of.tolist(), strict=True)
    ends = (end_ms(task, gangs[g], now) for task, g in pairs)
    return np.array([NEVER if end is None else end for end in ends], np.int64)


def _find_idle_after(problem: Problem, ended: Bool) -> I64:
    """Return the future idle amounts (N, R) if the running tasks in the mask (V,) have ended."""
    idle, running = problem.allocatable - problem.used + problem.releasing, running_tasks(problem)
    np.add.at(idle, running.node_of[ended], running.request[ended])
    return idle


def _find_node_limits(problem: Problem, number: int) -> _NodeLimits:
    reservation = problem.snapshot.reservations[number]
    index_of = {n.name: i for i, n in enumerate(problem.snapshot.nodes)}
    column = {r: i for i, r in enumerate(problem.resources)}
    named = sorted(
        {column[r] for _, kept in reservation.nodes for r, a in kept if a and r in column}
    )
    free = _find_idle_after(problem, problem.derived(expected_ends) <= reservation.start_ms)
    left = np.repeat(problem.allocatable[:, named].max(axis=0, initial=0)[None], len(free), axis=0)
    for name, kept in reservation.nodes:
        if name in index_of:
            node = index_of[name]
            by_name = dict(kept)
            amounts = [by_name.get(problem.resources[r], 0) for r in named]
            left[node] = free[node, named] - np.array(amounts, np.int64)
    now = np.maximum(problem.allocatable - problem.used + problem.releasing, 0)[:, named]
    binds = (left < now).any(axis=0)
    request = (
        problem.classes.request[:, named] * _find_constrained_classes(problem, number)[:, None]
    )
    return _NodeLimits(left[:, binds], request[:, binds])


class Arrivals(NamedTuple):
    """Placed tasks as parallel arrays (m,): task class, node, and number of tasks."""

    task_class: I64
    node: I64
    number: I64


def find_delayed_start(
    problem: Problem, numbers: Sequence[int], arrivals: Arrivals, evicted: Bool
) -> int | None:
    """Return the first reservation among `numbers` that the placed tasks delay, or None.

    The placed tasks delay a reservation if they leave too little capacity on a node at its start.
    `evicted` is the mask (V,) of evicted running tasks.
    """
    index_of = {node.name: n for n, node in enumerate(problem.snapshot.nodes)}
    for number in (i for i in numbers if i >= 0):
        reservation = problem.snapshot.reservations[number]
        ended = problem.derived(expected_ends) <= reservation.start_ms
        free = _find_idle_after(problem, ended | evicted)
        request = problem.classes.request * _find_constrained_classes(problem, number)[:, None]
        taken = np.zeros_like(free)
        amounts = request[arrivals.task_class] * arrivals.number[:, None]
        np.add.at(taken, arrivals.node, amounts)
        for name, kept in reservation.nodes:
            node = index_of.get(name, -1)
            for r, amount in ((problem.index(resource), amount) for resource, amount in kept):
                if min(node, r) >= 0 and 0 < taken[node, r] > free[node, r] - amount:
                    return number
    return None


def find_usable_nodes(problem: Problem) -> Bool | None:
    """Return the mask (C, N) of nodes that each class could use if all pods were evicted.

    A class cannot use a node if a reservation that constrains the class leaves too little capacity
    on the node. Returns None if no reservation includes nodes.
    """
    reservations = problem.snapshot.reservations
    if not any(reservation.nodes for reservation in reservations):
        return None
    request = problem.classes.request
    index_of = {n.name: i for i, n in enumerate(problem.snapshot.nodes)}
    free = _find_idle_after(problem, np.ones(len(running_tasks(problem)), np.bool_))
    usable = np.ones((len(request), problem.num_nodes), np.bool_)
    for number, reservation in enumerate(reservations):
        bound = _find_constrained_classes(problem, number)
        for name, kept in reservation.nodes:
            if name not in index_of:
                continue
            left, by_name = free[index_of[name]], dict(kept)
            left = left - np.array([by_name.get(r, 0) for r in problem.resources], np.int64)
            named = np.array([by_name.get(r, 0) > 0 for r in problem.resources], np.bool_)
            short = ((request > left) & (request > 0) & named).any(axis=1)
            usable[bound & short, index_of[name]] = False
    return usable


def _list_numbers(problem: Problem) -> list[int]:
    """Return the numbers i and ~i for each reservation i (see `binding_reservations`)."""
    return [n for i in range(len(problem.snapshot.reservations)) for n in (i, ~i)]


def _find_constrained_classes(problem: Problem, number: int) -> Bool:
    """Return the mask (C,) of classes that must not delay the start of reservation `number`.

    For the number ~i, the mask selects the classes that are entitled to start before the gang with
    reservation i.
    """
    return np.array([number in bound for bound in problem.classes.bound], np.bool_)


def _find_queue_limits(problem: Problem, number: int) -> list[tuple[int, int, int]]:
    """Return the limits that a reservation sets for queues, as (queue, resource, amount) triples.

    Constrained tasks in the subtree of the queue may use at most this amount of the resource. The
    amount is the capability minus the usage and the reserved amount at the start of the
    reservation. For the number ~i, the amount is the entitlement of the queue minus its usage.
    """
    queues = problem.queues
    index_of = {name: i for i, name in enumerate(queues.names)}
    if number < 0:
        used = queues.summed_up(queues.allocated)
        entitled = [
            (index_of.get(name, -1), problem.index(resource), most)
            for name, amounts in problem.snapshot.reservations[~number].entitlements
            for resource, most in amounts
        ]
        return [(q, r, most - int(used[q, r])) for q, r, most in entitled if q >= 0 and r >= 0]
    reservation = problem.snapshot.reservations[number]
    if not reservation.queues:
        return []
    running, ended = running_tasks(problem), problem.derived(expected_ends) <= reservation.start_ms
    stays = queues.allocated.copy()
    known = ended & (running.queue_of >= 0)
    np.subtract.at(stays, running.queue_of[known], running.request[known])
    used = queues.summed_up(stays)
    found = []
    for name, kept in reservation.queues:
        for resource, amount in kept:
            q, r = index_of.get(name, -1), problem.index(resource)
            if q >= 0 and r >= 0 and queues.capability[q, r] < UNLIMITED:
                found.append((q, r, int(queues.capability[q, r] - used[q, r]) - amount))
    return found


@dataclass(eq=False)
class _QueueLimits(Greedy):
    """Tracks the queue capability that reservations leave to constrained tasks.

    Attributes
    ----------
    _bound
        (C,) numbers of the reservations that constrain each task class.
    _limits
        The result of `_find_queue_limits` for each reservation number.
    _below
        (Q,) indices of each queue and its descendants.
    _taken
        Total request of the tasks placed in this session, by reservation number, queue and
        resource.

    """

    _ledger: Ledger
    _bound: Sequence[tuple[int, ...]]
    _limits: Mapping[int, Sequence[tuple[int, int, int]]]
    _below: Sequence[frozenset[int]]
    _taken: dict[tuple[int, int, int], int] = field(default_factory=dict, init=False)

    def max_tasks(self, queue: int, task_class: int) -> int:
        request = self._ledger.request[task_class]
        rooms = (
            max(left - self._taken.get((i, above, r), 0), 0) // request[r]
            for i in self._bound[task_class]
            for above, r, left in self._limits[i]
            if request[r] and queue in self._below[above]
        )
        return min(rooms, default=int(UNLIMITED))

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        number, request = int(counts.sum()), self._ledger.request[task_class]
        queue = self._ledger.queue_of[gang]
        for i in self._bound[task_class]:
            for above, r, _ in self._limits[i]:
                if queue in self._below[above]:
                    key = (i, above, r)
                    self._taken[key] = self._taken.get(key, 0) + number * request[r]


# --- messages ------------------------------------------------------------------------------------


def build_reservation_reason(
    problem: Problem, number: int, reservation: CapacityReservation
) -> Reason:
    """Return the reason that gang `number` waits: its start would delay a reservation."""
    gang = problem.snapshot.gangs[number]
    when = f"the start of {reservation.gang}, expected at {_describe_start(reservation)}"
    end = gang_end_ms(gang, problem.snapshot.taken_ms)
    if end is not None:
        message = f"it would run until {format_time(end)} and delay {when}"
    else:
        message = f"its duration is unknown, so it could delay {when}"
    return Reason(ReasonCode.RESERVED, message)


def describe_reservation(reservation: CapacityReservation) -> str:
    """Return the reason that a gang with a reservation waits."""
    if not reservation.is_open:
        return f"capacity is reserved for it from {format_time(reservation.start_ms)} on"
    return (
        "capacity is reserved for it once pods of unknown duration end, not before "
        f"{format_time(reservation.start_ms)}"
    )


def _describe_start(reservation: CapacityReservation) -> str:
    return f"{format_time(reservation.start_ms)}{' or later' if reservation.is_open else ''}"


def _keeps_resources(task: Task, reservation: CapacityReservation, world: World) -> bool:
    """Return whether a task still holds its resources at the start of a reservation."""
    if task.status is TaskStatus.RELEASING:
        return False
    gang = world.snapshot.gang_by_key.get(task.gang)
    node = world.snapshot.node_by_name.get(task.node)
    if gang is None or node is None or not node.ready:
        return True
    end = end_ms(task, gang, world.snapshot.taken_ms)
    return end is None or end > reservation.start_ms
