"""Fixed fair parts: a queue deserves what its specification says and may borrow beyond it.

Mathematics: models/formulation/capacity.md. Volcano: `pkg/scheduler/plugins/capacity`. Ceilings and
floors are the rules `capability` and `guarantee`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.rules.base import Greedy, Rule
from optsched.rules.shortfall import Shortfall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.domain.cluster import Queue
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.rules.base import GangLevel
    from optsched.rules.ledger import Ledger
    from optsched.rules.world import World

GRID = 1000


class Capacity(Rule):
    """Queues far below what they deserve come first."""

    name = "capacity"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Order(problem, ledger)

    def deserved(self, problem: Problem) -> I64:
        """See `Rule`."""
        return deserved_amounts(problem)

    def deserved_by_name(self, world: World) -> dict[str, dict[str, int]]:
        """See `Rule`."""
        return {q.name: _deserved(q) for q in world.snapshot.queues}

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """What queues deserve, ask for, and miss; on every level of the tree."""
        queues = problem.queues
        asked = queues.subtree.astype(np.int64) @ queues.requested
        due = np.minimum(deserved_amounts(problem), asked)
        if not due.any():
            return ()
        return [Shortfall("fair share", "steps", queues.subtree, due, GRID)]


def deserved_amounts(problem: Problem) -> I64:
    """(Q, R) the specified part, at most the capability, at least the guarantee."""
    queues = problem.queues
    wanted: I64 = np.maximum(np.minimum(queues.deserved, queues.capability), queues.guarantee)
    return wanted


def _deserved(queue: Queue) -> dict[str, int]:
    """The same for one queue."""
    ceiling, floor = dict(queue.capability or ()), dict(queue.guarantee)
    wanted = {r: min(n, ceiling.get(r, n)) for r, n in queue.deserved}
    return {r: max(wanted.get(r, 0), floor.get(r, 0)) for r in {**wanted, **floor}}


class _Order(Greedy):
    """Queue priority, then queues that deserve something, then their largest part in use.

    A queue that deserves nothing counts as fully used (`capacity.go`, updateShare).
    """

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        self._ledger = ledger
        self._deserved: list[list[int]] = deserved_amounts(problem).tolist()
        self._priority = [-float(p) for p in problem.queues.priority.tolist()]

    def queue_key(self, queue: int) -> tuple[float, ...]:
        pairs = zip(self._ledger.queue_used[queue], self._deserved[queue], strict=True)
        parts = [used / due for used, due in pairs if due]
        share = max(parts) if parts else 1.0
        return (self._priority[queue], share, 0.0 if parts else 1.0)
