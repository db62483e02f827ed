"""Upper bounds on how many tasks fit idle capacity, computed for all gang shapes together.

In a long backlog, most gangs request more capacity than is idle. One array operation finds these
gangs, so that the pipeline need not try each gang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem

_BLOCK: Final = 2**20
"""Maximum number of elements in a temporary array."""


def find_lacking_shapes(
    problem: Problem,
    shapes: I64,
    idle: I64,
    counts: I64,
    most_tasks: Callable[[int], int] | None = None,
) -> Bool:
    """Return a mask (m,) of the gang shapes in `shapes` (m,) that cannot reach their minimum.

    A shape is in the mask only if no placement on idle capacity reaches its minimum. Tasks of each
    class are counted as if there were no other classes and no node filters.

    Parameters
    ----------
    idle
        (N, R) idle amounts of the nodes.
    counts
        (E,) number of tasks of each entry that may be placed.
    most_tasks
        Returns the maximum number of tasks of a task class; None means no limit. `most_tasks` is
        called only for task classes of gang shapes that `idle` alone does not put in the mask.

    """
    arrays = problem.shapes
    number = arrays.start[shapes + 1] - arrays.start[shapes]
    at = np.repeat(np.arange(len(shapes)), number)
    first = np.cumsum(number) - number
    entries = np.arange(len(at)) - np.repeat(first - arrays.start[shapes], number)
    classes, which = np.unique(arrays.class_of[entries], return_inverse=True)
    most = count_fitting_tasks(idle, problem.classes.request[classes])

    def lacks() -> Bool:
        placed = np.minimum(counts[entries], most[which])
        missing: Bool = np.bincount(at, placed, len(shapes)) < arrays.need[shapes]
        return missing

    found = lacks()
    if most_tasks is not None and not found.all():
        for i in np.unique(which[~found[at]]).tolist():
            most[i] = min(most[i], most_tasks(int(classes[i])))
        found = lacks()
    return found


def count_fitting_tasks(idle: I64, request: I64) -> F64:
    """Return an upper bound (C,) on the tasks of each class that fit on nodes with `idle` (N, R).

    `request` (C, R) is the request of one task of each class. Classes that request
    nothing are unlimited.
    """
    found = np.zeros(len(request))
    has_idle = (idle > 0).any(axis=1)
    free = idle[has_idle].astype(np.float64)
    fits = (request <= free.max(axis=0, initial=0)).all(axis=1).nonzero()[0]
    step = max(_BLOCK // max(len(free), 1), 1)
    for begin in range(0, len(fits), step):
        block = fits[begin : begin + step]
        number = np.full((len(block), len(free)), float(UNLIMITED))
        for r in request[block].any(axis=0).nonzero()[0].tolist():
            requesting = request[block, r].nonzero()[0]
            amount = request[block[requesting], r]
            number[requesting] = np.minimum(number[requesting], free[:, r] / amount[:, None])
        found[block] = np.maximum(np.floor(number), 0).sum(axis=1)
    return found
