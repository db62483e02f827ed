"""Cover all items with the fewest bins: a linear program and an integer program.

Each row is an item type, and each column is a bin. If a solution covers an item type more often
than required, the surplus items are removed from their bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from optsched.solver.cpsat.integer_program import create_solver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.packing.greedy_filling import Copies

_LARGEST = 1 << 62
"""An upper limit that exceeds any number of items, within the integer range of CP-SAT."""


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """How many items of each type the columns must cover."""

    number: I64  # Number (K,) of items of each type that must be covered.
    exactly: Bool  # Whether (K,) exactly `number` items of each type must be covered, not more.


class CoverMaster:
    """The master linear program: minimize the number of bins (column uses) that cover all items."""

    def __init__(self, number: I64) -> None:
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        infinity = self._solver.infinity()
        self._rows = [self._solver.Constraint(float(n), infinity) for n in number]
        self._objective = self._solver.Objective()
        self._objective.SetMinimization()
        self._variables: list[pywraplp.Variable] = []
        self._known: set[bytes] = set()
        self.columns: list[I64] = []

    def add(self, column: I64) -> bool:
        """Add a bin (K,) as a column; return False if the bin is empty or already a column."""
        key = column.tobytes()
        if key in self._known or not column.any():
            return False
        self._known.add(key)
        variable = self._solver.NumVar(0.0, self._solver.infinity(), "")
        self._objective.SetCoefficient(variable, 1.0)
        for k in np.flatnonzero(column).tolist():
            self._rows[k].SetCoefficient(variable, float(column[k]))
        self._variables.append(variable)
        self.columns.append(column)
        return True

    def set_demand(self, number: I64) -> None:
        """Replace the number (K,) of items of each type that must be covered."""
        for row, n in zip(self._rows, number.tolist(), strict=True):
            row.SetLb(float(n))

    def solve(self, seconds: float) -> tuple[F64, F64] | None:
        """Return how often each column is used, and the dual prices (K,) of the items.

        Returns None if no optimum is found within the time limit.
        """
        self._solver.SetTimeLimit(max(int(1000 * seconds), 1))
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        uses = np.array([v.solution_value() for v in self._variables])
        return uses, np.maximum(np.array([r.dual_value() for r in self._rows]), 0)


def fewest_columns(
    columns: Sequence[I64], need: Need, between: tuple[int, int], work: float, seconds: float
) -> list[Copies] | None:
    """Return the fewest bins that cover the items, or None if the solver finds no solution.

    The result lists each chosen column with its number of uses.

    Parameters
    ----------
    columns
        Bins (K,) to choose from.
    need
        The items to cover.
    between
        Minimum and maximum number of bins; the minimum must be a proved lower bound.
    work
        Limit in CP-SAT deterministic time; a unit is about one second on one core, regardless of
        the machine's load.
    seconds
        Limit in wall-clock time, with two workers.

    """
    table, number = np.array(columns, np.int64), need.number
    model = cp_model.CpModel()
    largest = int(number.max(initial=1))
    uses = [model.new_int_var(0, largest, "") for _ in columns]
    most = np.where(need.exactly, number, min(largest * len(columns) * largest, _LARGEST))
    for k in np.flatnonzero(number).tolist():
        inside = np.flatnonzero(table[:, k]).tolist()
        covered = cp_model.LinearExpr.weighted_sum(
            [uses[c] for c in inside], table[inside, k].tolist()
        )
        model.add_linear_constraint(covered, int(number[k]), int(most[k]))
    total = cp_model.LinearExpr.sum(uses)
    model.add_linear_constraint(total, *between)
    model.minimize(total)
    solver = create_solver()
    solver.parameters.max_deterministic_time = work
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    solver.parameters.catch_sigint_signal = False
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    chosen = [(column, solver.value(use)) for column, use in zip(columns, uses, strict=True)]
    return [(column, times) for column, times in chosen if times]
