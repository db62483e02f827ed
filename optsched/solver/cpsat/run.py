"""Solve a level model; an error becomes the reason why the solve ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from optsched.solver.cpsat.integer_program import NumbersTooLarge
from optsched.solver.cpsat.level_model import DONE, forward_messages
from optsched.solver.cpsat.level_search import solve_levels
from optsched.solver.cpsat.pricing import TOO_MANY_CAPACITIES, TooManyCapacities

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.solver.cpsat.level_model import LevelModel, LevelUpdate, Limits, Step


def run_levels(
    model: LevelModel,
    limits: Limits,
    report: Callable[[LevelUpdate], None],
    on_step: Callable[[Step], None] | None = None,
) -> str:
    """Solve all levels, pass each update to `report`, and return why the solve ended."""
    search = solve_levels(model, limits, time.monotonic, on_step)
    try:
        return forward_messages(search, report) or DONE
    except NumbersTooLarge as error:
        return f"not solved: numbers too large ({error})"
    except TooManyCapacities:
        return TOO_MANY_CAPACITIES
