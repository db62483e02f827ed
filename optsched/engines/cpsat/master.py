"""The linear relaxation over the configurations known so far, and what it proves.

Every set of row prices bounds the best value from above: a row can be charged at its price instead
of being kept (Lagrange). The prices are those of the linear program, rounded to integers, and the
bound is summed in integers, so that it holds whatever the floating point did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.linear_solver import pywraplp

from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Expression, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.engines.cpsat.model import Configurations, LevelModel
    from optsched.problem.arrays import F64, I64

PRICE_BITS = 52
"""Bits of the largest rounded price."""


@dataclass(frozen=True, eq=False)
class Relaxed:
    """An optimum of the relaxation.

    Attributes
    ----------
    values, uses
        (variables,) and (P,).
    prices
        (rows,) of the model's rows, then of the rows added later.
    class_prices
        (K,) what one more node of a class would be worth.

    """

    values: F64
    uses: F64
    prices: F64
    class_prices: F64


class Master:
    """Grows by configurations and by rows; keeps its basis between solves."""

    def __init__(self, model: LevelModel, nodes: Configurations) -> None:
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._nodes = nodes
        bounds = zip(model.lower.tolist(), model.upper.tolist(), strict=True)
        self._variables = [self._solver.NumVar(float(a), float(b), "") for a, b in bounds]
        self._rows: list[pywraplp.Constraint] = []
        self._scale: list[float] = []
        self.lower: list[int] = []
        self.upper: list[int] = []
        self._entries: list[tuple[I64, I64]] = []
        self._add_rows(model.rows)
        self._class_rows = [self._solver.Constraint(0.0, float(m)) for m in nodes.multiplicity]
        self._columns: list[pywraplp.Variable] = []
        self.column_class: list[int] = []
        self.column_tasks: list[I64] = []
        self._known: set[tuple[int, bytes]] = set()

    def _add_rows(self, rows: Rows) -> None:
        starts = np.searchsorted(rows.row, np.arange(len(rows.lower) + 1)).tolist()
        for i, (low, high) in enumerate(zip(rows.lower.tolist(), rows.upper.tolist(), strict=True)):
            mine = slice(starts[i], starts[i + 1])
            self.add_row(rows.variable[mine], rows.coefficient[mine], low, high)

    def add_row(self, variables: I64, coefficients: I64, lower: int, upper: int) -> None:
        """Add lower ≤ Σ coefficient·variable ≤ upper; ±UNLIMITED for no bound."""
        scale = float(np.abs(coefficients).max(initial=1))
        low = -self._solver.infinity() if lower <= -UNLIMITED else lower / scale
        high = self._solver.infinity() if upper >= UNLIMITED else upper / scale
        row = self._solver.Constraint(low, high)
        for variable, factor in zip(variables.tolist(), coefficients.tolist(), strict=True):
            row.SetCoefficient(self._variables[variable], factor / scale)
        self._rows.append(row)
        self._scale.append(scale)
        self._entries.append((variables, coefficients))
        self.lower.append(lower)
        self.upper.append(upper)

    def add_column(self, node_class: int, tasks: I64) -> bool:
        """Add a configuration (C,) of a node class; False when it is known already."""
        key = (node_class, tasks.tobytes())
        if key in self._known or not tasks.any():
            return False
        self._known.add(key)
        column = self._solver.NumVar(0.0, self._solver.infinity(), "")
        self._class_rows[node_class].SetCoefficient(column, 1.0)
        for task_class in np.flatnonzero(tasks).tolist():
            row = int(self._nodes.supply[task_class])
            factor = -float(tasks[task_class]) / self._scale[row]
            self._rows[row].SetCoefficient(column, factor)
        self._columns.append(column)
        self.column_class.append(node_class)
        self.column_tasks.append(tasks)
        return True

    def set_objective(self, variables: I64, coefficients: F64) -> None:
        """Replace the objective, to be maximised."""
        objective = self._solver.Objective()
        objective.Clear()
        objective.SetMaximization()
        for variable, factor in zip(variables.tolist(), coefficients.tolist(), strict=True):
            objective.SetCoefficient(self._variables[variable], factor)

    def solve(self, milliseconds: int | None) -> Relaxed | None:
        """Solve; None when it could not be solved to optimality in time."""
        if milliseconds is not None:
            self._solver.SetTimeLimit(max(milliseconds, 1))
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        return Relaxed(
            values=_numbers([v.solution_value() for v in self._variables]),
            uses=_numbers([v.solution_value() for v in self._columns]),
            prices=_numbers([r.dual_value() for r in self._rows]) / _numbers(self._scale),
            class_prices=_numbers([r.dual_value() for r in self._class_rows]),
        )

    @property
    def matrix(self) -> tuple[I64, I64, I64]:
        """Row, variable and coefficient of every entry of the model's and the added rows."""
        lengths = [len(variables) for variables, _ in self._entries]
        row = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        return (
            row,
            np.concatenate([v for v, _ in self._entries]),
            np.concatenate([c for _, c in self._entries]),
        )

    def integer_rows(self) -> Rows:
        """All rows over the model's variables followed by the configurations' uses."""
        row, variable, factor = self.matrix
        num_rows, num_variables = len(self._rows), len(self._variables)
        parts = [(row, variable, factor)]
        for p, (node_class, tasks) in enumerate(
            zip(self.column_class, self.column_tasks, strict=True)
        ):
            used = np.flatnonzero(tasks)
            at = np.append(self._nodes.supply[used], num_rows + node_class)
            column = np.full(len(at), num_variables + p, np.int64)
            parts.append((at, column, np.append(-tasks[used], 1)))
        rows, columns, factors = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        none = np.full(len(self._nodes.multiplicity), -UNLIMITED, np.int64)
        return Rows(
            rows[order],
            columns[order],
            factors[order],
            np.concatenate([np.array(self.lower, np.int64), none]),
            np.concatenate([np.array(self.upper, np.int64), self._nodes.multiplicity]),
        )


def _numbers(values: Sequence[float]) -> F64:
    return np.array(values, np.float64)


@dataclass(frozen=True, eq=False)
class RowPrices:
    """Row prices in integers: true price times `scale`, with the sign that each row allows."""

    prices: I64
    scale: int


def rounded(prices: F64, master: Master) -> RowPrices:
    """Round prices so that the largest has PRICE_BITS bits at most."""
    top = float(np.abs(prices).max(initial=0.0))
    bits = PRICE_BITS - int(np.ceil(np.log2(top))) if top > 0 else 0
    scale = 1 << max(0, min(bits, 40))
    whole = np.rint(prices * scale).astype(np.int64)
    lower, upper = np.array(master.lower), np.array(master.upper)
    whole[(whole > 0) & (upper >= UNLIMITED)] = 0
    whole[(whole < 0) & (lower <= -UNLIMITED)] = 0
    return RowPrices(whole, scale)


def upper_bound(
    master: Master, model: LevelModel, objective: Expression, prices: RowPrices, worth: I64
) -> int:
    """No solution has a larger value (of the objective without its constant).

    Parameters
    ----------
    master, model, objective
        What is solved.
    prices
        Any integer row prices with allowed signs.
    worth
        (K,) worth of the best configuration of each node class at these prices.

    """
    row, variable, factor = master.matrix
    reduced = [0] * len(model.lower)
    terms = zip(objective.variables.tolist(), objective.coefficients.tolist(), strict=True)
    for v, c in terms:
        reduced[v] += c * prices.scale
    charged = prices.prices.tolist()
    for r, v, a in zip(row.tolist(), variable.tolist(), factor.tolist(), strict=True):
        if charged[r]:
            reduced[v] -= charged[r] * a
    total: int = sum(
        price * (high if price > 0 else low)
        for price, low, high in zip(charged, master.lower, master.upper, strict=True)
        if price
    )
    bounds = zip(reduced, model.lower.tolist(), model.upper.tolist(), strict=True)
    total += sum(gain * (high if gain > 0 else low) for gain, low, high in bounds if gain)
    nodes = model.configurations
    if nodes is not None:
        total += sum(
            w * m for w, m in zip(worth.tolist(), nodes.multiplicity.tolist(), strict=True)
        )
    step = int(np.gcd.reduce(objective.coefficients)) if len(objective.coefficients) else 1
    return total // prices.scale // step * step
