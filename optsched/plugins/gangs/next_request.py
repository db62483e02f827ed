"""The tasks that a gang has to place together next, and the sum of their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import frozen

if TYPE_CHECKING:
    from optsched.plugins.outcome import Outcome
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def next_entries(outcome: Outcome, gang: int) -> list[tuple[int, str, int]]:
    """Return (class, role, number) of the tasks that a gang has to place together next.

    Before the first placement of a gang, the function returns the gang's minimum in task order.
    After a placement, the function returns a single task.
    """
    problem = outcome.problem
    number = int(problem.shape_of[gang])
    shape, start = problem.shapes.shapes[number], int(problem.shapes.start[number])
    done = _placed_by_entry(outcome, gang)
    left = max(shape.min_members, 1) if not any(done) else 1
    taken: dict[int, int] = {}
    for entry, run in shape.sequence:
        passed = min(done[entry], run)
        done[entry] -= passed
        if more := min(left, run - passed):
            taken[entry] = taken.get(entry, 0) + more
            left -= more
    return [
        (int(problem.shapes.class_of[start + entry]), shape.entries[entry].role, number)
        for entry, number in taken.items()
    ]


def _placed_by_entry(outcome: Outcome, gang: int) -> list[int]:
    """Return the number of placed tasks for each entry (equal tasks) of a gang."""
    problem = outcome.problem
    entries = problem.shapes.shapes[problem.shape_of[gang]].entries
    if not outcome.num_placed[gang]:
        return [0] * len(entries)
    found, at = [], int(problem.task_start[gang])
    for entry in entries:
        found.append(int(outcome.placed[at : at + entry.count].sum()))
        at += entry.count
    return found


def first_task(problem: Problem, gang: int, entry: int) -> int:
    """Return the index of the first task of an entry (equal tasks); the other tasks follow."""
    number = problem.shapes.start[problem.shape_of[gang]] + entry
    return int(problem.task_start[gang] + problem.shapes.offset[number])


def next_requests(outcome: Outcome, gang: int) -> I64:
    """Return (R,) the sum of the requests of `next_entries`, as a shared read-only array."""
    known = outcome.next_requests
    if gang not in known:
        problem = outcome.problem
        total = np.zeros(len(problem.resources), np.int64)
        for task_class, _, number in next_entries(outcome, gang):
            total += number * problem.classes.request[task_class]
        frozen(total)
        known[gang] = total
    return known[gang]
