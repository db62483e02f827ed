"""One integer linear model, one objective, through CP-SAT."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.linear import Expression, Rows

_SAFE = 2**61


class NumbersTooLarge(Exception):
    """A row whose sums could leave the solver's integers."""


class Answer(Enum):
    """What the solver knows at the end."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Effort:
    """What one call may spend; None where that is not limited."""

    seconds: float | None
    deterministic: float
    num_workers: int
    seed: int


@dataclass(frozen=True, eq=False)
class Task:
    """An integer linear model with an objective to be maximised.

    Attributes
    ----------
    lower, upper, rows
        The model; variables whose bounds meet are constants.
    objective
        To be maximised.
    at_least, at_most
        What is known of its best value.
    hint
        One value a variable.

    """

    lower: I64
    upper: I64
    rows: Rows
    objective: Expression
    hint: I64
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """The solver's answer.

    Attributes
    ----------
    value, bound
        Of the objective.
    solution
        One value a variable.

    """

    answer: Answer
    value: int | None
    bound: int | None
    solution: I64 | None


def maximize(task: Task, effort: Effort) -> Result:
    """Solve a model.

    Raises
    ------
    NumbersTooLarge
        When sums could overflow.

    """
    built = _build(task)
    solver = cp_model.CpSolver()
    _configure(solver, effort)
    status = solver.solve(built.model)
    answer = _ANSWERS.get(status, Answer.UNKNOWN)
    if answer not in (Answer.OPTIMAL, Answer.FEASIBLE):
        return Result(answer, None, None, None)
    solution = task.lower.copy()
    values = [solver.value(built.variables[i]) for i in built.free]
    solution[built.free] = np.array(values, np.int64)
    bound = round(solver.best_objective_bound) + built.constant
    return Result(answer, task.objective.value(solution), bound, solution)


_ANSWERS = {
    cp_model.OPTIMAL: Answer.OPTIMAL,
    cp_model.FEASIBLE: Answer.FEASIBLE,
    cp_model.INFEASIBLE: Answer.INFEASIBLE,
}


def _configure(solver: cp_model.CpSolver, effort: Effort) -> None:
    parameters = solver.parameters
    parameters.num_workers = effort.num_workers
    parameters.random_seed = effort.seed
    parameters.max_deterministic_time = effort.deterministic
    if effort.seconds is not None:
        parameters.max_time_in_seconds = max(effort.seconds, 0.001)
    # Probing and long presolve pay off only in solves far longer than a session.
    parameters.cp_model_probing_level = 0
    parameters.max_presolve_iterations = 2
    parameters.catch_sigint_signal = False


@dataclass(frozen=True, eq=False)
class _Built:
    model: cp_model.CpModel
    variables: dict[int, cp_model.IntVar]
    free: list[int]
    constant: int


def _build(task: Task) -> _Built:
    model = cp_model.CpModel()
    is_free = task.lower < task.upper
    free = np.flatnonzero(is_free).tolist()
    low, high = task.lower.tolist(), task.upper.tolist()
    variables = {i: model.new_int_var(low[i], high[i], "") for i in free}
    hint = np.clip(task.hint, task.lower, task.upper).tolist()
    for i in free:
        model.add_hint(variables[i], hint[i])
    _add_rows(model, task, is_free, variables)
    constant = _add_objective(model, task, is_free, variables)
    return _Built(model, variables, free, constant)


def _add_rows(
    model: cp_model.CpModel, task: Task, is_free: np.ndarray, variables: dict[int, cp_model.IntVar]
) -> None:
    rows = task.rows
    fixed = np.zeros(len(rows.lower), np.int64)
    constant = ~is_free[rows.variable]
    part = rows.coefficient[constant] * task.lower[rows.variable[constant]]
    np.add.at(fixed, rows.row[constant], part)
    row, variable = rows.row[~constant], rows.variable[~constant]
    factor = rows.coefficient[~constant]
    most = np.maximum(np.abs(task.lower), np.abs(task.upper))[variable].astype(np.float64)
    size = np.bincount(row, weights=np.abs(factor) * most, minlength=len(fixed))
    starts = np.searchsorted(row, np.arange(len(fixed) + 1))
    for i in range(len(fixed)):
        mine = slice(int(starts[i]), int(starts[i + 1]))
        below = None if rows.lower[i] <= -UNLIMITED else int(rows.lower[i] - fixed[i])
        above = None if rows.upper[i] >= UNLIMITED else int(rows.upper[i] - fixed[i])
        _add_row(model, variable[mine], factor[mine], (below, above), float(size[i]), variables)


def _add_row(
    model: cp_model.CpModel,
    variable: I64,
    factor: I64,
    bounds: tuple[int | None, int | None],
    size: float,
    variables: dict[int, cp_model.IntVar],
) -> None:
    below, above = bounds
    step = int(np.gcd.reduce(factor)) if len(factor) else 1
    if size / max(step, 1) >= _SAFE:
        raise NumbersTooLarge(f"a row sums up to {size:.3g}")
    if not len(factor):
        if (below is not None and below > 0) or (above is not None and above < 0):
            model.add_bool_or([])  # nothing is left that could meet the row
        return
    terms = [variables[i] for i in variable.tolist()]
    total = cp_model.LinearExpr.weighted_sum(terms, (factor // step).tolist())
    lowest = -_SAFE if below is None else -(-below // step)
    highest = _SAFE if above is None else above // step
    model.add_linear_constraint(total, lowest, highest)


def _add_objective(
    model: cp_model.CpModel, task: Task, is_free: np.ndarray, variables: dict[int, cp_model.IntVar]
) -> int:
    """Set the objective; returns the part of it that is constant."""
    numbers, factors = task.objective.variables, task.objective.coefficients
    mine = is_free[numbers]
    constant = task.objective.constant + int(factors[~mine] @ task.lower[numbers[~mine]])
    terms = [variables[i] for i in numbers[mine].tolist()]
    total = cp_model.LinearExpr.weighted_sum(terms, factors[mine].tolist())
    lowest = -_SAFE if task.at_least is None else task.at_least - constant
    highest = _SAFE if task.at_most is None else task.at_most - constant
    if terms:
        model.add_linear_constraint(total, lowest, highest)
    elif lowest > 0 or highest < 0:
        model.add_bool_or([])
    model.maximize(total)
    return constant
