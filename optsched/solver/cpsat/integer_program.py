"""Solve an integer linear model with one objective using CP-SAT."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import Expression, Rows

_SAFE = 2**61
_EXACT = 2**50
"""Integers below this limit, and their sums, are exact in floating-point numbers."""


class NumbersTooLarge(Exception):
    """Raised if the sum of a row could overflow the 64-bit integers of CP-SAT."""


class SolveOutcome(Enum):
    """How a CP-SAT call ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Effort:
    """The limits of one CP-SAT call.

    Without `seconds`, the call has no time limit. If `gap` is given, the call may stop at a
    solution within this relative gap. If `gap` is None, the call must prove the optimum.
    """

    seconds: float | None
    deterministic: float
    num_workers: int
    seed: int
    gap: float | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """An integer linear model with an objective to maximise.

    Attributes
    ----------
    lower, upper, rows
        Bounds of the variables, and the rows; a variable with equal bounds is a constant.
    at_least, at_most
        Known bounds of the objective, or None. The solver excludes solutions whose objective is
        outside these bounds.
    hint
        (variables,) values from which the solver starts, possibly infeasible.

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
    """The result of a solve.

    Attributes
    ----------
    value, bound
        The value and the upper bound of the objective, or None without a solution.
    solution
        (variables,) values of the best solution, or None without a solution.
    work_s
        Deterministic seconds spent on the solve.

    """

    outcome: SolveOutcome
    value: int | None
    bound: int | None
    solution: I64 | None
    work_s: float = 0.0


@dataclass(frozen=True, eq=False)
class SolverProgress:
    """A better solution or a better bound that a running solve reports.

    Attributes
    ----------
    solution
        (variables,) values of a better solution, or None if only the bound improved.
    work_s
        Deterministic seconds since the start, or None if the solver does not report them.

    """

    bound: int
    solution: I64 | None
    work_s: float | None


def create_solver() -> cp_model.CpSolver:
    """Return a CP-SAT solver without the presolve step that causes wrong proofs of optimality.

    With inclusion detection, the presolve of OR-Tools 9.15 removes all optimal solutions of some
    linear models (google/or-tools issue 5293).
    """
    solver = cp_model.CpSolver()
    solver.parameters.presolve_inclusion_work_limit = 0
    return solver


def maximize(
    task: Task, effort: Effort, watch: Callable[[SolverProgress], None] | None = None
) -> Result:
    """Maximise the objective of a model.

    `watch` receives each better solution and, if there is a time limit, each better bound. Solver
    threads may call `watch`, one call at a time. Raises `NumbersTooLarge` if the sum of a row could
    overflow.
    """
    built = _build(task, effort.gap)
    solver = create_solver()
    parameters = solver.parameters
    parameters.num_workers = effort.num_workers
    parameters.random_seed = effort.seed
    parameters.max_deterministic_time = effort.deterministic
    if effort.seconds is not None:
        parameters.max_time_in_seconds = max(effort.seconds, 0.001)
    # Probing and a long presolve pay off only in solves far longer than a session.
    parameters.cp_model_probing_level = 0
    parameters.max_presolve_iterations = 2
    parameters.catch_sigint_signal = False
    if effort.gap is not None:
        parameters.relative_gap_limit = effort.gap
    watcher = None if watch is None else _Watcher(task, built, watch)
    if watcher is not None and effort.seconds is not None:
        solver.best_bound_callback = watcher.on_bound
    status = solver.solve(built.model, watcher)
    outcome, work_s = _OUTCOMES.get(status, SolveOutcome.UNKNOWN), solver.deterministic_time
    if outcome not in (SolveOutcome.OPTIMAL, SolveOutcome.FEASIBLE):
        return Result(outcome, None, None, None, work_s)
    solution = built.solution(task, [solver.value(built.variables[i]) for i in built.free])
    value, bound = task.objective.value(solution), built.bound(solver.best_objective_bound)
    if effort.gap is not None and value != bound:
        # With a relative gap, CP-SAT reports OPTIMAL for any solution within the gap.
        outcome = SolveOutcome.FEASIBLE
    return Result(outcome, value, bound, solution, work_s)


class _Watcher(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # OR-Tools has no types
    """Passes better solutions and bounds from CP-SAT to the caller's callback."""

    def __init__(self, task: Task, built: _Built, watch: Callable[[SolverProgress], None]) -> None:
        super().__init__()
        self._task, self._built, self._watch = task, built, watch
        self._lock = Lock()
        self._bound: int | None = None

    def on_solution_callback(self) -> None:
        values = [self.value(self._built.variables[i]) for i in self._built.free]
        solution = self._built.solution(self._task, values)
        with self._lock:
            self._bound = self._built.bound(self.best_objective_bound)
            self._watch(SolverProgress(self._bound, solution, self.deterministic_time))

    def on_bound(self, bound: float) -> None:
        with self._lock:
            found = self._built.bound(bound)
            if self._bound is None or found < self._bound:
                self._bound = found
                self._watch(SolverProgress(found, None, None))


_OUTCOMES = {
    cp_model.OPTIMAL: SolveOutcome.OPTIMAL,
    cp_model.FEASIBLE: SolveOutcome.FEASIBLE,
    cp_model.INFEASIBLE: SolveOutcome.INFEASIBLE,
}


@dataclass(frozen=True, eq=False)
class _Built:
    model: cp_model.CpModel
    variables: dict[int, cp_model.IntVar]
    free: list[int]
    constant: int

    def solution(self, task: Task, values: list[int]) -> I64:
        """Compute the values of all variables from the values of the unfixed variables."""
        found = task.lower.copy()
        found[self.free] = np.array(values, np.int64)
        return found

    def bound(self, reported: float) -> int:
        """Convert a bound reported by CP-SAT to a bound on the model's objective."""
        return round(reported) + self.constant


class _Model(cp_model.CpModel):  # type: ignore[misc]  # OR-Tools has no types
    """A CP-SAT model without deprecated method aliases, which would slow its creation."""

    def _add_pre_pep8_methods(self) -> None:
        pass


def _build(task: Task, gap: float | None = None) -> _Built:
    model = _Model()
    is_free = task.lower < task.upper
    free = np.flatnonzero(is_free).tolist()
    low, high = task.lower.tolist(), task.upper.tolist()
    variables = {i: model.new_int_var(low[i], high[i], "") for i in free}
    hint = np.clip(task.hint, task.lower, task.upper)[is_free].tolist()
    model.proto.solution_hint.vars.extend(range(len(free)))
    model.proto.solution_hint.values.extend(hint)
    _add_rows(model, task, is_free)
    numbers, factors = task.objective.variables, task.objective.coefficients
    mine = is_free[numbers]
    constant = task.objective.constant + int(factors[~mine] @ task.lower[numbers[~mine]])
    terms = [variables[i] for i in numbers[mine].tolist()]
    total = cp_model.LinearExpr.weighted_sum(terms, factors[mine].tolist())
    # Add the known bounds of the objective as a row.
    lowest = -_SAFE if task.at_least is None else task.at_least - constant
    highest = _SAFE if task.at_most is None else task.at_most - constant
    if terms:
        model.add_linear_constraint(total, lowest, highest)
    elif lowest > 0 or highest < 0:
        model.add_bool_or([])  # The constant objective is outside the bounds.
    if gap is not None and abs(constant) < _EXACT:
        # A relative gap refers to the whole objective, including its constant.
        model.maximize(total + constant)
        return _Built(model, variables, free, 0)
    model.maximize(total)
    return _Built(model, variables, free, constant)


def _add_rows(model: cp_model.CpModel, task: Task, is_free: Bool) -> None:
    """Add all rows that the bounds of the variables do not imply."""
    rows, num_rows = task.rows, len(task.rows.lower)
    fixed = np.zeros(num_rows, np.int64)
    constant = ~is_free[rows.variable]
    part = rows.coefficient[constant] * task.lower[rows.variable[constant]]
    np.add.at(fixed, rows.row[constant], part)
    row, variable = rows.row[~constant], rows.variable[~constant]
    factor = rows.coefficient[~constant]
    most = np.maximum(np.abs(task.lower), np.abs(task.upper))[variable].astype(np.float64)
    size = np.bincount(row, np.abs(factor) * most, num_rows).astype(np.float64)
    starts = np.searchsorted(row, np.arange(num_rows + 1))
    number = np.cumsum(is_free) - 1
    at, factors = number[variable].tolist(), factor.tolist()
    # Omit rows that hold for all values of the unfixed variables. Keep rows with numbers so large
    # that the check could overflow.
    is_small = size < _EXACT
    small = is_small[row]
    ends = np.stack([task.lower[variable[small]], task.upper[variable[small]]]) * factor[small]
    least, largest = fixed.copy(), fixed.copy()
    np.add.at(least, row[small], ends.min(axis=0))
    np.add.at(largest, row[small], ends.max(axis=0))
    is_redundant = is_small & (least >= rows.lower) & (largest <= rows.upper)
    for i in np.flatnonzero(~is_redundant).tolist():
        begin, end = int(starts[i]), int(starts[i + 1])
        below = -_SAFE if rows.lower[i] <= -UNLIMITED else int(rows.lower[i] - fixed[i])
        above = _SAFE if rows.upper[i] >= UNLIMITED else int(rows.upper[i] - fixed[i])
        if begin == end:
            if below > 0 or above < 0:
                model.add_bool_or([])  # The model is infeasible: fixed values violate the row.
            continue
        mine = factors[begin:end]
        step = math.gcd(*mine)
        if size[i] / step >= _SAFE:
            raise NumbersTooLarge(f"a row sums up to {float(size[i]):.3g}")
        if step > 1:
            mine = [f // step for f in mine]
            below = below if below == -_SAFE else -(-below // step)
            above = above if above == _SAFE else above // step
        linear = model.proto.constraints.add().linear
        linear.vars.extend(at[begin:end])
        linear.coeffs.extend(mine)
        linear.domain.extend((below, above))
