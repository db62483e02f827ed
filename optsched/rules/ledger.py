"""What the greedy pipeline has given out so far, kept once for all rules.

Plain lists: a session looks at a handful of numbers of one queue or gang at a time, many thousand
times, and there a list is faster than an array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.problem import Problem


class Ledger:
    """Running totals of a session.

    Attributes
    ----------
    request
        (C, R) what one task of a class takes.
    queue_of
        (G,) queue of a gang.
    queue_used
        (Q, R) held by each queue's own gangs.
    gang_placed
        (G,) tasks placed in this session.
    gang_evicted
        (G,) running tasks that leave.
    idle_total
        (R,) free on all nodes together.

    """

    def __init__(self, problem: Problem) -> None:
        self.request: list[list[int]] = problem.classes.request.tolist()
        self.queue_of: list[int] = problem.queue_of.tolist()
        self.queue_used: list[list[int]] = problem.queues.allocated.tolist()
        self.gang_placed: list[int] = [0] * problem.num_gangs
        self.gang_evicted: list[int] = [0] * problem.num_gangs
        self.idle_total: list[int] = problem.idle.sum(axis=0).tolist()
        self._rows = problem.rows
        self._resources = problem.resources
        self._gang_used: dict[int, list[int]] = {}

    def gang_used(self, gang: int) -> list[int]:
        """(R,) held by a gang, what it held before included."""
        if gang not in self._gang_used:
            held = self._rows[gang].allocated
            self._gang_used[gang] = [held.get(r, 0) for r in self._resources]
        return self._gang_used[gang]

    def evict(self, gang: int, request: Sequence[int], sign: int) -> None:
        """Record that a running task of a gang leaves; with sign -1 that it stays after all."""
        self.gang_evicted[gang] += sign
        of_queue, of_gang = self.queue_used[self.queue_of[gang]], self.gang_used(gang)
        for r, amount in enumerate(request):
            of_queue[r] -= sign * amount
            of_gang[r] -= sign * amount

    def place(self, gang: int, task_class: int, number: int) -> None:
        """Record tasks of a class placed for a gang; a negative number takes them back."""
        self.gang_placed[gang] += number
        of_queue, of_gang = self.queue_used[self.queue_of[gang]], self.gang_used(gang)
        for r, amount in enumerate(self.request[task_class]):
            if amount:
                taken = number * amount
                of_queue[r] += taken
                of_gang[r] += taken
                self.idle_total[r] -= taken
