"""Fairness over time: the shares of queues include recent usage.

Mathematics: models/formulation/over_time.md. Queues with little recent usage come first. Past usage
is halved after each half-life, as in Slurm's multifactor priority, and added to the current usage.
The order of queues and the objective levels use the sum of current and past usage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.plugins.shares.hdrf import ShareTree, ShareTreeOrder, TreeFairness
from optsched.plugins.shares.tree_shares import build_contest, decayed_usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.extension_points import Greedy
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.shares.tree_shares import Contest, Path
    from optsched.problem.problem import Problem


@dataclass(frozen=True)
class OverTime(TreeFairness):
    """Orders queues by recent usage divided by queue weight, smallest first.

    Attributes
    ----------
    half_life_ms
        Half-life of past usage in milliseconds.
    keeps_deserved
        True if queues keep their deserved share regardless of past usage.

    """

    name = "over-time"
    level_name = "fair share over time"

    half_life_ms: int
    keeps_deserved: bool = False

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        past = decayed_usage(problem, self.half_life_ms)
        tree = ShareTree(problem, ledger, _paths(problem), past)
        priority = [-float(p) for p in problem.queues.priority.tolist()]
        return _UsageOrder(problem, ledger, tree, priority)

    def find_contest(self, problem: Problem) -> Contest:
        """See `TreeFairness`. The ideal shares include past usage."""
        past, queues = decayed_usage(problem, self.half_life_ms), problem.queues
        floor = queues.guarantee
        if self.keeps_deserved:
            floor = np.maximum(floor, np.minimum(queues.deserved, queues.capability))
        return build_contest(problem, _paths(problem), past, floor)


def _paths(problem: Problem) -> list[Path]:
    """Return each queue's path of (name, weight) pairs in the tree that `spec.parent` defines.

    A parent queue has an extra child with an empty name that contains the gangs directly in the
    queue.
    """
    queues, found = problem.queues, []
    for q, name in enumerate(queues.names):
        line = [q]
        while queues.parent_of[line[-1]] >= 0:
            line.append(int(queues.parent_of[line[-1]]))
        steps = [(queues.names[i], max(float(queues.weight[i]), 1.0)) for i in reversed(line)]
        if name != ROOT_QUEUE and steps[0][0] != ROOT_QUEUE:
            steps.insert(0, (ROOT_QUEUE, 1.0))
        if (queues.parent_of == q).any() or name == ROOT_QUEUE:
            steps.append(("", steps[-1][1]))
        found.append(tuple(steps))
    return found


@dataclass(eq=False)
class _UsageOrder(ShareTreeOrder):
    """Orders queues by priority, then by shares that include past usage.

    `_priority` (Q,) contains the negated priorities of queues.
    """

    _priority: Sequence[float]

    def queue_key(self, queue: int) -> tuple[float, ...]:
        return (self._priority[queue], *super().queue_key(queue))
