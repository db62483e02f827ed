"""What a gang asks for next, for rules that explain or vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def asked_next(problem: Problem, gang: int) -> I64:
    """(R,) what a gang must get at once: its minimum, or one task when it already runs."""
    shape = problem.shapes.shapes[int(problem.shape_of[gang])]
    start = int(problem.shapes.start[problem.shape_of[gang]])
    left = max(shape.need, sum(n for _, n in shape.need_role), 1)
    total = np.zeros(len(problem.resources), np.int64)
    for entry, number in shape.sequence:
        taken = min(left, number)
        total += taken * problem.classes.request[problem.shapes.class_of[start + entry]]
        left -= taken
        if not left:
            break
    return total
