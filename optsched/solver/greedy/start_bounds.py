"""Upper bounds on the tasks that fit idle capacity, for all gang shapes together.

Most gangs of a long backlog request more than the idle capacity. One array operation finds these
gangs, so that the pipeline does not try each gang separately.
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
"""The maximum number of elements of a temporary array."""


def find_lacking_shapes(
    problem: Problem,
    shapes: I64,
    idle: I64,
    counts: I64,
    most_tasks: Callable[[int], int] | None = None,
) -> Bool:
    """Return whether each gang shape in `shapes` (m,) misses its minimum on idle capacity.

    The result is a mask (m,) that is True only if no placement reaches the minimum. Each task class
    is counted without the other classes and without node filters.

    Parameters
    ----------
    idle
        (N, R) idle amounts of nodes.
    counts
        (E,) the number of tasks of each entry (equal tasks) that may be placed.
    most_tasks
        A function that returns the maximum number of tasks of a task class, or None without a
        limit. The function is called only for classes of gang shapes that fit the idle capacity.

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
    """Return (C,) an upper bound on the tasks of each class that fit nodes with `idle` (N, R).

    `request` (C, R) is the request of one task of each class. A class without requests is
    unlimited.
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
