"""Group gangs into tiers by priority and urgency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import row_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem

_BROKEN, _FIRST, _NEXT, _STARVED, _OTHERS = range(5)
"""Urgency levels of gangs with equal priority, most urgent first."""

_NAMES = ("broken gangs of ", "first in line, ", "next in line, ", "gangs waiting too long, ", "")


@dataclass(frozen=True, eq=False)
class Tiers:
    """The tiers of gangs, most important first.

    Attributes
    ----------
    of
        (G,) tier index of each gang; 0 is the most important tier.
    mark
        (G,) group number of each gang. Gangs with different group numbers are in different gang
        classes.
    factor
        (G,) factor by which the weight of each gang within the tier is multiplied.

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
    """Return tiers ordered by priority, and by urgency among gangs of equal priority.

    Broken gangs are most urgent: they have fewer bound tasks than their minimum, so the bound tasks
    cannot work. The `heads` follow. A head is a gang whose reservation has begun; the heads are in
    the order of their reservations. The first head is alone in its tier, so that no combination of
    other gangs outweighs it. Within a priority, gangs that have waited longer than
    `starvation_after_ms` follow, then all others.

    `priority` (G,) is the priority of each gang. `queue_priority` (G,) is the priority of each
    gang's queue and takes precedence over `priority`; None means that all queues have equal
    priority. In a FIFO queue, waiting time counts from the creation of the gang, so that the tiers
    follow the queue order.
    """
    gangs = problem.open_gangs
    shape = problem.shape_of[gangs]
    starting = ~problem.shapes.is_started[shape]
    broken = starting & (problem.num_ready[gangs] > 0)
    is_fifo = np.array([*(q.is_fifo for q in problem.snapshot.queues), False], np.bool_)
    in_order = is_fifo[problem.queue_of]
    since = np.where(in_order, problem.created_ms, problem.waiting_since_ms)
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
        f"{_NAMES[int(standing[i])]}priority {priority[gangs[i]]}"
        f"{'' if are_equal else f' in queues of priority {of_queue[i]}'}"
        for i in first.tolist()
    )
    return Tiers(of, of, np.ones_like(of), names)


def weighted_tier(problem: Problem, priority: I64) -> Tiers:
    """Return a single tier; the weight of each gang is multiplied by the gang's priority."""
    factor = np.maximum(priority, 1)
    _, mark = np.unique(factor, return_inverse=True)
    return Tiers(np.zeros_like(factor), mark.astype(np.int64), factor, ("weighted by priority",))
