"""Checks of solver results, so that no invalid solution replaces the incumbent.

A solution that violates a bound or a row of the level model is dropped. The verifier later checks
every plan against the rules of the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.solver.cpsat.process import Solved

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.solver.cpsat.level_model import Configurations, LevelModel, LevelUpdate, Limits
    from optsched.solver.cpsat.process import OnStep, Solver

INVALID_SOLUTION = "the solution violates the model and is not used"


def solve_checked(
    solver: Solver, model: LevelModel, limits: Limits, on_step: OnStep = None
) -> Solved:
    """Solve a level model, and drop the updates whose solutions violate the model.

    If an update is dropped, `stopped` also reports an invalid solution.
    """
    solved = solver.solve(model, limits, on_step) if on_step else solver.solve(model, limits)
    sound = tuple(update for update in solved.updates if is_valid_update(model, update))
    if len(sound) == len(solved.updates):
        return solved
    return Solved(sound, f"{solved.stopped}; {INVALID_SOLUTION}")


def is_valid_update(model: LevelModel, update: LevelUpdate) -> bool:
    """Return whether value, bound and solution of an update are consistent with a level model."""
    if not 0 <= update.level < len(model.objectives):
        return False
    objective = model.objectives[update.level]
    value, bound = update.value, update.bound
    if value is not None and bound is not None:
        is_max = objective.sense is Sense.MAX
        if (value > bound) if is_max else (value < bound):
            return False
    if update.solution is None:
        return True
    return is_solution(model, update) and value == objective.expression.value(update.solution)


def is_solution(model: LevelModel, update: LevelUpdate) -> bool:
    """Return whether the solution of an update satisfies all variable bounds and rows."""
    solution = update.solution
    if not _is_integer_array(solution, model.lower.shape):
        return False
    if (solution < model.lower).any() or (solution > model.upper).any():
        return False
    rows = model.rows
    activity = np.zeros(len(rows.lower), np.int64)
    np.add.at(activity, rows.row, rows.coefficient * solution[rows.variable])
    if model.configurations is not None:
        supplied = _count_supplied_tasks(model.configurations, update)
        if supplied is None:
            return False
        activity[model.configurations.supply] -= supplied
    return bool(((activity >= rows.lower) & (activity <= rows.upper)).all())


def _count_supplied_tasks(nodes: Configurations, update: LevelUpdate) -> I64 | None:
    """Return how many tasks (C,) of each task class the configurations of a solution supply.

    Returns None if a configuration is invalid.
    """
    of, tasks, uses = update.use_class, update.use_tasks, update.uses
    num_classes, num_kinds = len(nodes.request), len(nodes.multiplicity)
    number = 0 if uses is None else uses.size
    if not _is_integer_array(uses, (number,)) or not _is_integer_array(of, (number,)):
        return None
    if not _is_integer_array(tasks, (number, num_classes)):
        return None
    if ((of < 0) | (of >= num_kinds)).any() or (tasks < 0).any() or (uses < 0).any():
        return None
    fit = (tasks @ nodes.request <= nodes.capacity[of]).all()
    allowed = not ((tasks > 0) & ~nodes.allowed[of]).any()
    used = np.zeros(num_kinds, np.int64)
    np.add.at(used, of, uses)
    enough = (used <= nodes.multiplicity).all()
    return uses @ tasks if fit and allowed and enough else None


def _is_integer_array(values: object, shape: tuple[int, ...]) -> TypeGuard[I64]:
    return (
        isinstance(values, np.ndarray)
        and values.shape == shape
        and np.issubdtype(values.dtype, np.integer)
    )
