"""Running totals of the placements and evictions of the greedy pipeline, shared by all rules.

The totals are plain lists. A session reads single amounts of queues and gangs many thousand times,
and lists are faster than arrays for single reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.problem import Problem


class Ledger:
    """Running totals of the greedy pipeline in one session.

    Attributes
    ----------
    request
        (C, R) request of one task of each task class.
    queue_of
        (G,) queue of each gang.
    queue_used
        (Q, R) resources held by the gangs directly in each queue.
    subtree_used
        (Q, R) resources held by the gangs of each queue and of all its descendants.
    gang_placed
        (G,) number of tasks of each gang that have been placed in this session.
    gang_evicted
        (G,) number of running tasks of each gang that have been evicted in this session.
    gang_waiting
        (G,) number of placed tasks of each gang that wait for capacity of terminating pods.
    gang_log, queue_log
        Indices of gangs that gained or lost tasks, and of the gangs' queues, in the order of
        changes.
    touched
        Indices of gangs with tasks that have been placed or evicted in this session.
    idle_total
        (R,) idle capacity of all nodes; negative while tasks are placed on capacity that
        terminating pods still hold.
    leaving_total
        (R,) total capacity that terminating pods and victims release.
    waits_for_late
        True if the session reserves capacity for a late gang, so that a later session can enqueue
        the gang.

    """

    def __init__(self, problem: Problem) -> None:
        self.request: list[list[int]] = problem.derived(_requests)
        self._requested: dict[int, list[tuple[int, int]]] = {}
        self.queue_of: list[int] = problem.queue_of.tolist()
        self.queue_used: list[list[int]] = problem.queues.allocated.tolist()
        summed_up = problem.queues.summed_up(problem.queues.allocated)
        self.subtree_used: list[list[int]] = summed_up.tolist()
        self.gang_log: list[int] = []
        self.queue_log: list[int] = []
        self._parent_of: list[int] = problem.queues.parent_of.tolist()
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
        self._rows = problem.rows
        self._resources = problem.resources
        self._gang_used: dict[int, list[int]] = {}

    def holds_nothing(self, gang: int) -> bool:
        """Return True only for a gang that holds no resources from any session."""
        return gang not in self._gang_used and not self._rows[gang].allocated

    def gang_used(self, gang: int) -> list[int]:
        """Return (R,) the resources that a gang holds, from this and earlier sessions."""
        if gang not in self._gang_used:
            held = self._rows[gang].allocated
            nothing = [0] * len(self._resources)
            self._gang_used[gang] = [held.get(r, 0) for r in self._resources] if held else nothing
        return self._gang_used[gang]

    def evict(self, gang: int, request: Sequence[int], sign: int) -> None:
        """Record the eviction (`sign` 1) of a gang's running task or the rollback (`sign` -1)."""
        self.gang_evicted[gang] += sign
        self._record_change(gang)
        of_gang = self.gang_used(gang)
        requested = [(r, sign * amount) for r, amount in enumerate(request) if amount]
        for r, amount in requested:
            of_gang[r] -= amount
            self.leaving_total[r] += amount
        self._add_to_queue(self.queue_of[gang], [(r, -amount) for r, amount in requested])

    @property
    def coming_total(self) -> list[int]:
        """The future idle capacity (R,) of all nodes, after terminating pods and victims end."""
        both = zip(self.idle_total, self.leaving_total, self._nominated_total, strict=True)
        return [idle + leaving - promised for idle, leaving, promised in both]

    def record_nomination(self, amounts: Sequence[int]) -> None:
        """Record the amounts of a placement on capacity that terminating pods still hold."""
        for r, amount in enumerate(amounts):
            self.idle_total[r] += amount
            self._nominated_total[r] += amount

    def record_placement(self, gang: int, task_class: int, number: int) -> None:
        """Record tasks of a class placed for a gang; a negative number undoes placements."""
        self.gang_placed[gang] += number
        self._record_change(gang)
        of_gang = self.gang_used(gang)
        requested = self._requested.get(task_class)
        if requested is None:
            row = enumerate(self.request[task_class])
            requested = self._requested[task_class] = [(r, amount) for r, amount in row if amount]
        taken = [(r, number * amount) for r, amount in requested]
        for r, amount in taken:
            of_gang[r] += amount
            self.idle_total[r] -= amount
        self._add_to_queue(self.queue_of[gang], taken)

    def _record_change(self, gang: int) -> None:
        self.gang_log.append(gang)
        is_touched = self.gang_placed[gang] or self.gang_evicted[gang]
        (self.touched.add if is_touched else self.touched.discard)(gang)

    def _add_to_queue(self, queue: int, amounts: Sequence[tuple[int, int]]) -> None:
        """Add (resource, amount) pairs to the usage of a queue and to its ancestors' subtrees."""
        self.queue_log.append(queue)
        own = self.queue_used[queue]
        for r, amount in amounts:
            own[r] += amount
        at = queue
        while at >= 0:
            total = self.subtree_used[at]
            for r, amount in amounts:
                total[r] += amount
            at = self._parent_of[at]


def _requests(problem: Problem) -> list[list[int]]:
    """Return (C, R) the request of one task of each class, as a list that callers only read."""
    found: list[list[int]] = problem.classes.request.tolist()
    return found
