"""The decisions of a plan, and the resulting resource usage of nodes and queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem

Derived = TypeVar("Derived")


@dataclass(frozen=True, eq=False)
class Outcome:
    """The decisions of a plan as arrays; each array is computed on first use.

    Attributes
    ----------
    next_requests
        The total request (R,) of the tasks that a gang must place next, by gang index. The function
        `plugins.gangs.gang.next_requests` fills it.

    """

    problem: Problem
    decisions: Decisions
    next_requests: dict[int, I64] = field(default_factory=dict, init=False, repr=False)
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
        """The number (G,) of placed or nominated tasks of each gang."""
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
        """Idle resources (N, R) once terminating tasks have ended and nominated tasks have started.

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
        """Resources (Q, R) that the gangs directly in each queue use after the decisions."""
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
        """Return the result of a pure function of the outcome; the function is called only once."""
        if compute not in self._derived:
            self._derived[compute] = compute(self)
        return cast("Derived", self._derived[compute])

    @cached_property
    def num_placed(self) -> I64:
        """The number (G,) of newly placed tasks of each gang."""
        gangs = self.problem.gang_of[self.placed]
        return np.bincount(gangs, minlength=self.problem.num_gangs).astype(np.int64)

    @cached_property
    def num_pending(self) -> I64:
        """The number (G,) of each gang's tasks that stay pending."""
        before = np.diff(self.problem.task_start)
        left: I64 = before - self.num_placed
        return left
