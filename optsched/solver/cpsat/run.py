"""Run a level model to its end, whatever happens on the way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from optsched.solver.cpsat.integer_program import NumbersTooLarge
from optsched.solver.cpsat.level_search import solve_levels
from optsched.solver.cpsat.pricing import TOO_MANY_ROOMS, TooManyRooms
from optsched.solver.cpsat.process import DONE, hand_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.solver.cpsat.level_model import LevelModel, LevelUpdate, Limits, Step


def run_levels(
    model: LevelModel,
    limits: Limits,
    report: Callable[[LevelUpdate], None],
    tell: Callable[[Step], None] | None = None,
) -> str:
    """Solve all levels, report each, tell of everything on the way, and say why it ended."""
    search = solve_levels(model, limits, time.monotonic, tell)
    try:
        return hand_over(search, report) or DONE
    except NumbersTooLarge as error:
        return f"not solved: numbers too large ({error})"
    except TooManyRooms:
        return TOO_MANY_ROOMS
