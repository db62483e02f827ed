"""The linear relaxation of a complete level model, and the bounds that it proves.

The simplex basis is kept from one level to the next, so a new row or objective costs only a few
simplex steps. The row prices prove a bound on the objective (Lagrangian relaxation). As in
`master_problem`, prices are rounded and summed as integers, so floating-point errors cannot
invalidate the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.linear_solver import pywraplp

from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64
    from optsched.problem.linear import Expression, Rows

PRICE_BITS = 40
"""Number of bits of the largest rounded row price."""

MOST_SCALE_BITS = 80


@dataclass(frozen=True, eq=False)
class Vertex:
    """An optimal vertex of the relaxation of one level.

    Attributes
    ----------
    values
        (variables,) values of the variables.
    bound
        Upper bound on the objective that the row prices prove, or None.
    """

    values: F64
    bound: int | None


class Relaxation:
    """A relaxation for maximising one expression at a time; rows can be added between solves."""

    def __init__(self, lower: I64, upper: I64, rows: Rows) -> None:
        self._lower, self._upper = lower, upper
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        bounds = zip(lower.tolist(), upper.tolist(), strict=True)
        self._variables = [self._solver.NumVar(float(a), float(b), "") for a, b in bounds]
        self._rows: list[pywraplp.Constraint] = []
        self._scale: list[float] = []
        self._entries: list[tuple[list[int], list[int]]] = []
        self._row_lower: list[int] = []
        self._row_upper: list[int] = []
        starts = np.searchsorted(rows.row, np.arange(len(rows.lower) + 1)).tolist()
        number, factor = rows.variable.tolist(), rows.coefficient.tolist()
        for i, (low, high) in enumerate(zip(rows.lower.tolist(), rows.upper.tolist(), strict=True)):
            mine = slice(starts[i], starts[i + 1])
            self._add_row(number[mine], factor[mine], low, high)

    def _add_row(self, variables: list[int], factors: list[int], lower: int, upper: int) -> None:
        scale = float(max(map(abs, factors), default=1))
        low = -self._solver.infinity() if lower <= -UNLIMITED else lower / scale
        high = self._solver.infinity() if upper >= UNLIMITED else upper / scale
        row = self._solver.Constraint(low, high)
        for variable, factor in zip(variables, factors, strict=True):
            row.SetCoefficient(self._variables[variable], factor / scale)
        self._rows.append(row)
        self._scale.append(scale)
        self._entries.append((variables, factors))
        self._row_lower.append(lower)
        self._row_upper.append(upper)

    def hold_value(self, goal: Expression, value: int) -> None:
        """Require an expression to be at least `value` in all later solves."""
        variables, factors = goal.variables.tolist(), goal.coefficients.tolist()
        self._add_row(variables, factors, value - goal.constant, int(UNLIMITED))

    def maximize(self, goal: Expression, milliseconds: int | None) -> Vertex | None:
        """Return an optimum of the relaxation, or None if the time limit is reached."""
        objective = self._solver.Objective()
        objective.Clear()
        objective.SetMaximization()
        step = float(np.abs(goal.coefficients).max(initial=1))
        terms = zip(goal.variables.tolist(), goal.coefficients.tolist(), strict=True)
        for variable, factor in terms:
            objective.SetCoefficient(self._variables[variable], factor / step)
        if milliseconds is not None:
            self._solver.SetTimeLimit(max(milliseconds, 1))
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        values = np.array([v.solution_value() for v in self._variables])
        prices = np.array([r.dual_value() for r in self._rows]) / np.array(self._scale) * step
        return Vertex(values, self._prove_bound(goal, prices))

    def _prove_bound(self, goal: Expression, prices: F64) -> int | None:
        """Return the upper bound that row prices prove, or None if a price is not finite."""
        top = float(np.abs(prices).max(initial=0.0))
        if not np.isfinite(top):
            return None
        bits = PRICE_BITS - math.ceil(math.log2(top)) if top > 0 else 0
        scale = 1 << max(0, min(bits, MOST_SCALE_BITS))
        reduced = [0] * len(self._variables)
        terms = zip(goal.variables.tolist(), goal.coefficients.tolist(), strict=True)
        for v, c in terms:
            reduced[v] += c * scale
        total = 0
        for r in np.flatnonzero(prices).tolist():
            price = round(float(prices[r]) * scale)
            side = self._row_upper[r] if price > 0 else self._row_lower[r]
            if price == 0 or abs(side) >= UNLIMITED:
                continue
            total += price * side
            for v, a in zip(*self._entries[r], strict=True):
                reduced[v] -= price * a
        bounds = zip(reduced, self._lower.tolist(), self._upper.tolist(), strict=True)
        total += sum(gain * (high if gain > 0 else low) for gain, low, high in bounds if gain)
        step = int(np.gcd.reduce(goal.coefficients)) if len(goal.coefficients) else 1
        best: int = total // scale // max(step, 1) * max(step, 1)
        return goal.constant + best
