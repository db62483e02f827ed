"""The order of gangs: those of one priority and standing are one tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import row_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

_BROKEN, _FIRST, _NEXT, _STARVED, _OTHERS = range(5)
"""Standings of gangs of one priority."""

_TOLD = ("broken gangs of ", "first in line, ", "next in line, ", "gangs waiting too long, ", "")


@dataclass(frozen=True, eq=False)
class Tiers:
    """Tiers from the most important to the least.

    Attributes
    ----------
    of
        (G,) tier of each gang.
    mark
        (G,) gangs of one tier that differ here may not be treated as alike.
    factor
        (G,) what a gang's weight is multiplied by within its tier.
    names
        The property that distinguishes each tier.

    """

    of: I64
    mark: I64
    factor: I64
    names: tuple[str, ...]


def priority_tiers(
    problem: Problem,
    priority: I64,
    starvation_after_ms: int,
    queue_priority: I64 | None = None,
    heads: Sequence[int] = (),
) -> Tiers:
    """Order gangs by priority; within one, broken gangs first, then those bypassed for too long.

    `queue_priority` (G,) is that of their queues and precedes their own; None: all are equal.

    A broken gang has some members bound but fewer than its minimum: its devices do no work until
    the rest has started. A gang counts as bypassed once it has waited for longer than
    `starvation_after_ms`. `priority` is (G,). `heads` are gangs of those whose turn it is, in
    order: the first is a tier of its own, so that no other gang outweighs it, the others are the
    next. In a queue with strict order age counts from the creation, so that no tier contradicts
    that order.
    """
    gangs = problem.open_gangs
    shape = problem.shape_of[gangs]
    starting = ~problem.shapes.is_started[shape]
    broken = starting & (problem.num_ready[gangs] > 0)
    since = np.where(_in_order(problem), problem.created_ms, problem.waiting_since_ms)
    waited = problem.snapshot.taken_ms - since[gangs]
    starved = starting & (waited > starvation_after_ms)
    standing = np.where(starved, _STARVED, _OTHERS)
    standing[np.isin(gangs, list(heads[1:]))] = _NEXT
    standing[np.isin(gangs, list(heads[:1]))] = _FIRST
    standing[broken] = _BROKEN
    of_queue = np.zeros(len(gangs), np.int64) if queue_priority is None else queue_priority[gangs]
    group, first = row_groups((-of_queue, -priority[gangs], standing))
    of = np.zeros(problem.num_gangs, np.int64)
    of[gangs] = group
    are_equal = len(np.unique(of_queue)) < 2
    names = tuple(
        f"{_TOLD[int(standing[i])]}priority {priority[gangs[i]]}"
        f"{'' if are_equal else f' in queues of priority {of_queue[i]}'}"
        for i in first.tolist()
    )
    return Tiers(of, of, np.ones_like(of), names)


def _in_order(problem: Problem) -> Bool:
    """(G,) gangs of queues with strict order."""
    strict = np.array([*(q.is_fifo for q in problem.snapshot.queues), False], np.bool_)
    found: Bool = strict[problem.queue_of]
    return found


def weighted_tier(problem: Problem, priority: I64) -> Tiers:
    """One tier in which a gang counts priority times its resources; `priority` is (G,)."""
    factor = np.maximum(priority, 1)
    _, mark = np.unique(factor, return_inverse=True)
    return Tiers(np.zeros_like(factor), mark.astype(np.int64), factor, ("weighted by priority",))
