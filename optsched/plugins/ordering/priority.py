"""More important gangs come first.

Mathematics: models/formulation/priority.md. Volcano: `pkg/scheduler/plugins/priority`. In the
optimising session priorities set the tiers of the admission levels, see `optsched.problem.tiers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Greedy, Rule
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from optsched.plugins.ledger import Ledger
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


class Priority(Rule):
    """Gangs in order of the value of their PriorityClass."""

    name = "priority"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        several = len(set(problem.priority.tolist())) > 1
        return _Order(problem, ledger) if several else _Standing(problem, ledger)


class _Standing(Greedy):
    """Who may be evicted for whom, by the values of priority classes."""

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        self._problem = problem
        self._ledger = ledger
        self._num_pending: list[int] = np.diff(problem.task_start).tolist()

    def is_starving(self, gang: int) -> bool:
        return self._ledger.gang_placed[gang] < self._num_pending[gang]

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Tasks of less important gangs, and less important tasks of the same gang."""
        problem, running = self._problem, running_tasks(self._problem)
        start, end = problem.task_start[gang], problem.task_start[gang + 1]
        mine = [t.priority for t in problem.tasks[start:end]]
        alike = problem.task_class[start:end] == task_class
        own = max((p for p, is_one in zip(mine, alike.tolist(), strict=True) if is_one), default=0)
        return np.array(
            [
                v
                for v in victims.tolist()
                if (
                    running.tasks[v].priority < own
                    if running.gang_of[v] == gang
                    else problem.priority[running.gang_of[v]] < problem.priority[gang]
                )
            ],
            np.int64,
        )

    def preempt_reach(self, gang: int) -> Bool:
        """See `Greedy`: tasks of less important gangs, and all of the same gang."""
        problem, gang_of = self._problem, running_tasks(self._problem).gang_of
        reach: Bool = problem.priority[gang_of] < problem.priority[gang]
        reach |= gang_of == gang
        return reach

    def gang_reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Everybody: between queues priorities do not count."""
        return victims


class _Order(_Standing):
    orders_by_class = True

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        super().__init__(problem, ledger)
        self._priority: list[int] = problem.priority.tolist()

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return (-float(self._priority[gang]),)
