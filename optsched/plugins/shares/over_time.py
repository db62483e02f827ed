"""Fairness over time: what queues have used lately counts beside what they hold.

Mathematics: models/formulation/over_time.md. Who has held much comes after who has held little,
until what was used has faded; half of it fades in each half-life. Decayed usage is what Slurm's
multifactor priority and others order by; here it is one more thing that queues hold, so that the
order of turns and the quotas of the optimising session follow from the same shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.plugins.extension_points import Rule
from optsched.plugins.shares.drf import GRID
from optsched.plugins.shares.hdrf import TreeOfTurns, TurnsByTree
from optsched.plugins.shares.past_usage import past_of
from optsched.plugins.shares.shortfall import Shortfall
from optsched.plugins.shares.tree_shares import contest_of, quotas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.extension_points import GangLevel, Greedy
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.shares.tree_shares import Contest, Path
    from optsched.problem.arrays import F64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


class OverTime(Rule):
    """Queues that have used little for their weight come first."""

    name = "over-time"

    def __init__(self, half_life_ms: int, *, keeps_deserved: bool = False) -> None:
        """`half_life_ms`: after how long what was used counts half.

        `keeps_deserved`: whether what queues deserve is theirs whatever they have used.
        """
        self.half_life_ms = half_life_ms
        self._keeps_deserved = keeps_deserved

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        past = past_of(problem, self.half_life_ms)
        return _Turns(problem, ledger, TreeOfTurns(problem, ledger, _paths(problem), past))

    def ideal(self, problem: Problem) -> F64:
        """(Q, R) what each queue would hold of each resource if tasks could be cut."""
        return problem.derived(self._contest).ideal

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """What queues miss of what makes their shares over time as equal as they can be."""
        contest = problem.derived(self._contest)
        return [
            Shortfall(f"fair share over time at depth {depth}", "steps", member, target, GRID)
            for depth, member, target in quotas(problem, contest)
        ]

    def _contest(self, problem: Problem) -> Contest:
        past, queues = past_of(problem, self.half_life_ms), problem.queues
        floor = queues.guarantee
        if self._keeps_deserved:
            floor = np.maximum(floor, np.minimum(queues.deserved, queues.capability))
        return contest_of(problem, _paths(problem), past, floor)


def _paths(problem: Problem) -> list[Path]:
    """The way down to each queue in the tree of parents, by weight.

    The gangs of a queue with others below it are one part beside them.
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


class _Turns(TurnsByTree):
    """Queue priority first, as with the plugins that this comes with."""

    def __init__(self, problem: Problem, ledger: Ledger, tree: TreeOfTurns) -> None:
        super().__init__(problem, ledger, tree)
        self._priority = [-float(p) for p in problem.queues.priority.tolist()]

    def queue_key(self, queue: int) -> tuple[float, ...]:
        return (self._priority[queue], *super().queue_key(queue))
