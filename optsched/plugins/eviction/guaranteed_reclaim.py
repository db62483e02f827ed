"""Reclaim within a guarantee overrides annotations that protect victims.

Mathematics: models/formulation/victims.md. A queue reclaims its guarantee from other queues
whatever the annotations of their pods say.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


class Floors:
    """The running tasks whose annotations a reclaim within a guarantee overrides.

    Attributes
    ----------
    waivable
        (V,) tasks that only their annotations protect.

    """

    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self._problem = problem
        self._running = running_tasks(problem)
        self._queues = problem.queues
        self.waivable: Bool = rules.waivable(problem)
        if not self._queues.guarantee.any():
            self.waivable = np.zeros_like(self.waivable)

    def waived(self, queue: int, request: I64, least: I64, held: I64) -> Bool:
        """Return the tasks whose annotations do not hold against a gang of a queue.

        Parameters
        ----------
        queue
            Of the gang.
        request
            (E, R) what the tasks that it waits for request.
        least
            (R,) the least that is worth having.
        held
            (Q, R) what each queue and those below it hold.

        Returns
        -------
        Bool
            (V,) True for each.

        """
        if not self.waivable.any():
            return np.zeros_like(self.waivable)
        waived: Bool = self.covered(queue, request, least, held) & self.waivable
        return waived

    def covered(self, queue: int, request: I64, least: I64, held: I64) -> Bool:
        """Return the tasks of other queues that a gang may reclaim within a guarantee.

        Parameters and shape as in `waived`, whatever the tasks say of themselves.
        """
        found = np.zeros_like(self.waivable)
        asked, queues, running = (request > 0).all(axis=0), self._queues, self._running
        for a in np.flatnonzero(queues.subtree[:, queue]).tolist():
            floor = queues.guarantee[a]
            named = asked & (floor > 0)
            if not named.any() or (held[a] + least > floor)[named].any():
                continue
            elsewhere = ~np.append(queues.subtree[a], False)[running.queue_of]
            found |= elsewhere & (running.request[:, named] > 0).any(axis=1)
        return found

    @cached_property
    def owed(self) -> Bool:
        """(Q,) queues that hold less of something than is guaranteed to them."""
        queues = self._queues
        lacks = np.asarray(queues.summed_up(queues.allocated) < queues.guarantee)
        owed: Bool = np.logical_or.reduce(lacks, axis=1)
        return owed
