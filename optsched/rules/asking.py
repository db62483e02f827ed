"""What a gang asks for next, for rules that explain or vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def first_entries(problem: Problem, gang: int) -> list[tuple[int, str, int]]:
    """Class, role and number of the tasks that a gang must get at once.

    That is its minimum in task order, or one task when it already runs.
    """
    number = int(problem.shape_of[gang])
    shape, start = problem.shapes.shapes[number], int(problem.shapes.start[number])
    left = max(shape.need, sum(n for _, n in shape.need_role), 1)
    taken: dict[int, int] = {}
    for entry, run in shape.sequence:
        if left <= 0:
            break
        taken[entry] = taken.get(entry, 0) + min(left, run)
        left -= run
    return [
        (int(problem.shapes.class_of[start + entry]), shape.entries[entry].role, number)
        for entry, number in taken.items()
    ]


def first_task(problem: Problem, gang: int, entry: int) -> int:
    """Index of the first task of an entry of a gang; the others follow it."""
    number = problem.shapes.start[problem.shape_of[gang]] + entry
    return int(problem.task_start[gang] + problem.shapes.offset[number])


def asked_next(problem: Problem, gang: int) -> I64:
    """(R,) what those tasks take together."""
    total = np.zeros(len(problem.resources), np.int64)
    for task_class, _, number in first_entries(problem, gang):
        total += number * problem.classes.request[task_class]
    return total
