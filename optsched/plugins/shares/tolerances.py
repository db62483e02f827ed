"""The amounts that reclaim leaves to each queue: the deserved share plus tolerated overuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.problem.arrays import frozen

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def kept_amounts(problem: Problem, due: I64) -> I64:
    """Return (Q, R) the amounts that each queue keeps; 0 for resources without a share.

    `due` (Q, R) contains the deserved shares. The annotation `volcano.sh/overuse-tolerance` of a
    queue sets the tolerated overuse.
    """
    kept = due.copy()
    for q, queue in enumerate(problem.snapshot.queues):
        if queue.tolerance is not None:
            for r, name in enumerate(problem.resources):
                kept[q, r] = queue.tolerance.protected_amount(name, int(due[q, r]))
    frozen(kept)
    return kept


def returns_first(problem: Problem) -> list[bool]:
    """Return (Q,) True for each queue with an overuse tolerance, which reclaim prefers."""
    return [q.tolerance is not None for q in problem.snapshot.queues]
