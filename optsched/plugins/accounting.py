"""The resources that gangs, queues and nodes use after the decisions of a session.

`Ledger` tracks running totals of these resources while the greedy pipeline places and evicts tasks.
`Outcome` holds the decisions of a plan, and the usage that results from them, as arrays.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem

Derived = TypeVar("Derived")


class Ledger:
    """Running totals of used and idle resources in the greedy pipeline, shared by all rules.

    The totals are lists, because reading one number from a list is faster than from an array.

    Attributes
    ----------
    request
        (C, R) request of one task of each task class.
    queue_of
        (G,) queue of each gang.
    queue_used
        (Q, R) resources held by the gangs directly in each queue.
    subtree_used
        (Q, R) resources held by the gangs in each queue and in all its descendants.
    gang_placed
        (G,) number of each gang's tasks that have been placed in this session.
    gang_evicted
        (G,) number of each gang's running tasks that have been evicted in this session.
    gang_waiting
        (G,) number of each gang's placed tasks that wait for capacity of terminating pods.
    gang_log
        Indices of gangs that gained or lost tasks, in chronological order.
    touched
        Indices of gangs with tasks that have been placed or evicted in this session.
    idle_total
        (R,) idle capacity of all nodes; negative while tasks are placed on capacity that
        terminating pods still hold.
    leaving_total
        (R,) total capacity that terminating pods and victims will release.
    waits_for_late
        True if the session reserves capacity for a starving gang, so that a later session can
        enqueue it.

    """

    def __init__(self, problem: Problem) -> None:
        self.request: list[list[int]] = problem.derived(_requests)
        self.queue_of: list[int] = problem.queue_of.tolist()
        self.queue_used: list[list[int]] = problem.queues.allocated.tolist()
        summed_up = problem.queues.summed_up(problem.queues.allocated)
        self.subtree_used: list[list[int]] = summed_up.tolist()
        self.gang_log: list[int] = []
        # For each queue, the rows of `queue_used` and `subtree_used` to which its usage is added.
        # Gangs without a queue have the queue index -1, which selects an empty list.
        self._totals_of: list[list[list[int]]] = [[own] for own in self.queue_used]
        parent_of: list[int] = problem.queues.parent_of.tolist()
        for at, totals in enumerate(self._totals_of):
            while at >= 0:
                totals.append(self.subtree_used[at])
                at = parent_of[at]
        self._totals_of.append([])
        self.gang_placed: list[int] = [0] * problem.num_gangs
        self.gang_evicted: list[int] = [0] * problem.num_gangs
        self.gang_waiting: list[int] = [0] * problem.num_gangs
        self.touched: set[int] = set()
        idle = problem.idle.sum(axis=0)
        later = np.maximum(problem.allocatable - problem.used + problem.releasing, 0).sum(axis=0)
        self.idle_total: list[int] = idle.tolist()
        self.leaving_total: list[int] = (later - idle).tolist()
        self.waits_for_late = False
        self._nominated_total: list[int] = [0] * len(idle)
        self._gang_used = _GangUsage(problem)

    @property
    def queue_log(self) -> list[int]:
        """The queues of the gangs in `gang_log`; deprecated."""
        message = "Ledger.queue_log is deprecated: look up the gangs of gang_log in queue_of"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return [self.queue_of[gang] for gang in self.gang_log]

    def holds_nothing(self, gang: int) -> bool:
        """Return True if a gang is known to use no resources, without computing its usage."""
        return gang not in self._gang_used and not self._gang_used.rows[gang].allocated

    def gang_used(self, gang: int) -> list[int]:
        """Return the resources (R,) that a gang's running and placed tasks use."""
        return self._gang_used[gang]

    def evict(self, gang: int, request: Sequence[int], sign: int) -> None:
        """Record the eviction of a gang's running task (`sign` 1), or undo it (`sign` -1)."""
        self.gang_evicted[gang] += sign
        taken = [(r, -sign * amount) for r, amount in enumerate(request) if amount]
        for r, amount in taken:
            self.leaving_total[r] -= amount
        self._add_use(gang, taken)

    @property
    def coming_total(self) -> list[int]:
        """The cluster's idle capacity (R,) after terminating pods end and nominated tasks start."""
        both = zip(self.idle_total, self.leaving_total, self._nominated_total, strict=True)
        return [idle + leaving - nominated for idle, leaving, nominated in both]

    def record_nomination(self, amounts: Sequence[int]) -> None:
        """Record that nominated tasks will use `amounts` (R,) of terminating pods' capacity."""
        for r, amount in enumerate(amounts):
            self.idle_total[r] += amount
            self._nominated_total[r] += amount

    def record_placement(self, gang: int, task_class: int, number: int) -> None:
        """Record tasks of a class placed for a gang; a negative `number` undoes placements."""
        self.gang_placed[gang] += number
        row = self.request[task_class]
        taken = [(r, number * amount) for r, amount in enumerate(row) if amount]
        for r, amount in taken:
            self.idle_total[r] -= amount
        self._add_use(gang, taken)

    def _add_use(self, gang: int, amounts: Sequence[tuple[int, int]]) -> None:
        self.gang_log.append(gang)
        is_touched = self.gang_placed[gang] or self.gang_evicted[gang]
        (self.touched.add if is_touched else self.touched.discard)(gang)
        totals = self._totals_of[self.queue_of[gang]]
        used = self._gang_used[gang]
        for r, amount in amounts:
            used[r] += amount
            for total in totals:
                total[r] += amount


class _GangUsage(dict[int, list[int]]):
    """The resources (R,) that each gang uses; a row is computed when it is first read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.rows, self._resources = problem.rows, problem.resources

    def __missing__(self, gang: int) -> list[int]:
        held = self.rows[gang].allocated
        used = [held.get(r, 0) for r in self._resources] if held else [0] * len(self._resources)
        self[gang] = used
        return used


def _requests(problem: Problem) -> list[list[int]]:
    """Return the request (C, R) of one task of each class; the list must not be modified."""
    found: list[list[int]] = problem.classes.request.tolist()
    return found


@dataclass(frozen=True, eq=False)
class Outcome:
    """The decisions of a plan as arrays; each array is computed on first use."""

    problem: Problem
    decisions: Decisions
    _derived: dict[Callable[[Outcome], object], object] = field(default_factory=dict, init=False)

    @cached_property
    def placed(self) -> Bool:
        """The mask (T,) of placed tasks."""
        return self.decisions.node_of >= 0

    @cached_property
    def node_of_coming(self) -> I64:
        """The node (T,) on which each task is placed or nominated; negative if there is none."""
        node_of: I64 = np.where(self.placed, self.decisions.node_of, self.decisions.nominated)
        return node_of

    @cached_property
    def assigned(self) -> Bool:
        """The mask (T,) of placed or nominated tasks."""
        return self.node_of_coming >= 0

    @cached_property
    def num_assigned(self) -> I64:
        """Number of placed or nominated tasks of each gang, shape (G,)."""
        gangs = self.problem.gang_of[self.assigned]
        return np.bincount(gangs, minlength=self.problem.num_gangs).astype(np.int64)

    @cached_property
    def on_node(self) -> I64:
        """The total requests (N, R) of newly placed tasks on each node."""
        problem = self.problem
        taken = np.zeros_like(problem.used)
        tasks = np.flatnonzero(self.placed)
        request = problem.classes.request[problem.task_class[tasks]]
        np.add.at(taken, self.decisions.node_of[tasks], request)
        return taken

    @cached_property
    def idle(self) -> I64:
        """The idle resources (N, R) of each node after the placements."""
        left: I64 = self.problem.idle - self.on_node
        return left

    @cached_property
    def idle_total(self) -> I64:
        """The total idle resources (R,) of all nodes after the placements."""
        total: I64 = self.idle.sum(axis=0)
        return total

    @cached_property
    def future_idle(self) -> I64:
        """The idle resources (N, R) after terminating tasks end and nominated tasks start.

        The idle resources of an overcommitted node may be negative.
        """
        problem = self.problem
        nominated = np.zeros_like(problem.used)
        tasks = np.flatnonzero(self.decisions.nominated >= 0)
        request = problem.classes.request[problem.task_class[tasks]]
        np.add.at(nominated, self.decisions.nominated[tasks], request)
        released: I64 = problem.allocatable - problem.used + problem.releasing
        return released - self.on_node - nominated

    @cached_property
    def queue_allocated(self) -> I64:
        """The resources (Q, R) that gangs directly in each queue use after the decisions."""
        problem = self.problem
        held = problem.queues.allocated.copy()
        tasks = np.flatnonzero(self.assigned)
        queue = problem.queue_of[problem.gang_of[tasks]]
        np.add.at(held, queue, problem.classes.request[problem.task_class[tasks]])
        return held

    @cached_property
    def subtree_allocated(self) -> I64:
        """The resources (Q, R) that each queue and its descendants use after the decisions."""
        return self.problem.queues.summed_up(self.queue_allocated)

    def derived(self, compute: Callable[[Outcome], Derived]) -> Derived:
        """Return the cached result of a pure function of the outcome."""
        if compute not in self._derived:
            self._derived[compute] = compute(self)
        return cast("Derived", self._derived[compute])

    @cached_property
    def num_placed(self) -> I64:
        """Number of newly placed tasks of each gang, shape (G,)."""
        gangs = self.problem.gang_of[self.placed]
        return np.bincount(gangs, minlength=self.problem.num_gangs).astype(np.int64)

    @cached_property
    def num_pending(self) -> I64:
        """Number of tasks of each gang that stay pending, shape (G,)."""
        before = np.diff(self.problem.task_start)
        left: I64 = before - self.num_placed
        return left
