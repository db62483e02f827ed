"""The linear relaxation over the known configurations, and the bound that it proves.

Any row prices prove an upper bound on the objective (Lagrangian relaxation): a violated row costs
its price instead of being forbidden. The prices are the dual values of the linear program, rounded
to integers. All sums are exact integers, so floating-point errors cannot invalidate the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.linear_solver import pywraplp

from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Expression, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import F64, I64
    from optsched.solver.cpsat.level_model import Configurations, LevelModel
    from optsched.solver.cpsat.pricing import Priced

PRICE_BITS = 52
"""Number of bits of the largest rounded price of a task."""

MOST_SCALE_BITS = 80


@dataclass(frozen=True, eq=False)
class Relaxed:
    """An optimum of the relaxation.

    Attributes
    ----------
    values, uses
        (variables,) values of the variables, and (P,) number of nodes that use each configuration.
    prices
        (rows,) dual values of the model's rows, then of the rows that were added later.
    class_prices
        (K,) dual value of each node class: the gain in the objective from one more node of it.

    """

    values: F64
    uses: F64
    prices: F64
    class_prices: F64


class Master:
    """The relaxed master problem, to which configurations and rows are added between solves.

    Each solve starts from the basis of the previous solve.
    """

    def __init__(self, model: LevelModel, nodes: Configurations) -> None:
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self.nodes = nodes
        self.supply = nodes.supply.tolist()
        bounds = zip(model.lower.tolist(), model.upper.tolist(), strict=True)
        self._variables = [self._solver.NumVar(float(a), float(b), "") for a, b in bounds]
        self._rows: list[pywraplp.Constraint] = []
        self._scale: list[float] = []
        self.lower: list[int] = []
        self.upper: list[int] = []
        self._entries: list[tuple[I64, I64]] = []
        rows = model.rows
        starts = np.searchsorted(rows.row, np.arange(len(rows.lower) + 1)).tolist()
        for i, (low, high) in enumerate(zip(rows.lower.tolist(), rows.upper.tolist(), strict=True)):
            mine = slice(starts[i], starts[i + 1])
            self.add_row(rows.variable[mine], rows.coefficient[mine], low, high)
        self._class_rows = [self._solver.Constraint(0.0, float(m)) for m in nodes.multiplicity]
        self._columns: list[pywraplp.Variable] = []
        self.column_class: list[int] = []
        self.column_tasks: list[I64] = []
        self._known: set[tuple[int, bytes]] = set()

    def add_row(self, variables: I64, coefficients: I64, lower: int, upper: int) -> None:
        """Add the row lower ≤ Σ coefficient·variable ≤ upper; ±UNLIMITED means no bound."""
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
        """Add a configuration (C,) of a node class; return False if it is empty or not new."""
        key = (node_class, tasks.tobytes())
        if key in self._known or not tasks.any():
            return False
        self._known.add(key)
        column = self._solver.NumVar(0.0, self._solver.infinity(), "")
        self._class_rows[node_class].SetCoefficient(column, 1.0)
        for task_class in np.flatnonzero(tasks).tolist():
            row = int(self.nodes.supply[task_class])
            factor = -float(tasks[task_class]) / self._scale[row]
            self._rows[row].SetCoefficient(column, factor)
        self._columns.append(column)
        self.column_class.append(node_class)
        self.column_tasks.append(tasks)
        return True

    def set_objective(self, variables: I64, coefficients: F64) -> None:
        """Set the objective to maximise."""
        objective = self._solver.Objective()
        objective.Clear()
        objective.SetMaximization()
        for variable, factor in zip(variables.tolist(), coefficients.tolist(), strict=True):
            objective.SetCoefficient(self._variables[variable], factor)

    def solve(self, milliseconds: int | None) -> Relaxed | None:
        """Return an optimum of the relaxation, or None if the time limit is reached."""
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
        """The nonzero terms as three arrays: row, variable and coefficient."""
        lengths = [len(variables) for variables, _ in self._entries]
        row = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        return (
            row,
            np.concatenate([v for v, _ in self._entries]),
            np.concatenate([c for _, c in self._entries]),
        )

    def integer_rows(self) -> Rows:
        """Return all rows, over the model's variables and the number of nodes per configuration."""
        row, variable, factor = self.matrix
        num_rows, num_variables = len(self._rows), len(self._variables)
        parts = [(row, variable, factor)]
        for p, (node_class, tasks) in enumerate(
            zip(self.column_class, self.column_tasks, strict=True)
        ):
            used = np.flatnonzero(tasks)
            at = np.append(self.nodes.supply[used], num_rows + node_class)
            column = np.full(len(at), num_variables + p, np.int64)
            parts.append((at, column, np.append(-tasks[used], 1)))
        rows, columns, factors = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        none = np.full(len(self.nodes.multiplicity), -UNLIMITED, np.int64)
        return Rows(
            rows[order],
            columns[order],
            factors[order],
            np.concatenate([np.array(self.lower, np.int64), none]),
            np.concatenate([np.array(self.upper, np.int64), self.nodes.multiplicity]),
        )


def relaxed_values(
    lower: I64, upper: I64, rows: Rows, objective: Expression, milliseconds: int | None
) -> F64 | None:
    """Return an optimal vertex of a linear relaxation, or None if the time limit is reached."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    bounds = zip(lower.tolist(), upper.tolist(), strict=True)
    variables = [solver.NumVar(float(a), float(b), "") for a, b in bounds]
    scale = np.ones(len(rows.lower))
    np.maximum.at(scale, rows.row, np.abs(rows.coefficient).astype(np.float64))
    low = np.where(rows.lower <= -UNLIMITED, -solver.infinity(), rows.lower / scale)
    high = np.where(rows.upper >= UNLIMITED, solver.infinity(), rows.upper / scale)
    limits = [solver.Constraint(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    factors = rows.coefficient / scale[rows.row]
    entries = zip(rows.row.tolist(), rows.variable.tolist(), factors.tolist(), strict=True)
    for row, variable, factor in entries:
        limits[row].SetCoefficient(variables[variable], factor)
    goal = solver.Objective()
    goal.SetMaximization()
    step = float(np.abs(objective.coefficients).max(initial=1))
    terms = zip(objective.variables.tolist(), objective.coefficients.tolist(), strict=True)
    for variable, weight in terms:
        goal.SetCoefficient(variables[variable], weight / step)
    if milliseconds is not None:
        solver.SetTimeLimit(max(milliseconds, 1))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return _numbers([v.solution_value() for v in variables])


def _numbers(values: Sequence[float]) -> F64:
    return np.array(values, np.float64)


@dataclass(frozen=True, eq=False)
class RowPrices:
    """Integer row prices: dual values times `scale`, with signs that the row bounds allow.

    Only the prices of supply rows are guaranteed to fit in 64-bit integers.
    """

    prices: list[int]
    supply: I64
    scale: int


def rounded(prices: F64, master: Master) -> RowPrices:
    """Round dual values to integers so that supply prices have at most `PRICE_BITS` bits."""
    supply = np.array(master.supply, np.int64)
    top = float(np.abs(prices[supply]).max(initial=0.0))
    bits = PRICE_BITS - math.ceil(math.log2(top)) if top > 0 else 0
    scale = 1 << max(0, min(bits, MOST_SCALE_BITS))
    whole = [
        0 if (price > 0 and high >= UNLIMITED) or (price < 0 and low <= -UNLIMITED) else price
        for price, low, high in zip(
            (round(p * scale) for p in prices.tolist()), master.lower, master.upper, strict=True
        )
    ]
    return RowPrices(whole, np.array([whole[r] for r in supply.tolist()], np.int64), scale)


@dataclass(frozen=True, eq=False)
class Charged:
    """A bound on the objective, proved by charging each row at its price.

    No solution has a value above `total`. `reduced` holds the reduced cost of each variable. Moving
    a variable by one unit away from its favoured bound costs at least the absolute value of its
    reduced cost. A node that does not use the best configuration of its class costs the difference
    of the two values. All numbers are multiplied by `scale`.
    """

    total: int
    reduced: list[int]
    priced: Priced
    supply: I64
    scale: int
    step: int

    @property
    def bound(self) -> int:
        """The upper bound of the objective without its constant."""
        return self.total // self.scale // self.step * self.step

    def tightened(self, model: LevelModel, master: Master, value: int) -> tuple[I64, I64, I64]:
        """Return bounds on the variables and on the number of nodes per configuration.

        Every solution with a value of at least `value` satisfies all returned bounds.
        """
        spare = self.total - value * self.scale
        lower, upper = model.lower.copy(), model.upper.copy()
        for v, gain in enumerate(self.reduced):
            if gain > 0:
                lower[v] = max(int(lower[v]), int(upper[v]) - spare // gain)
            elif gain < 0:
                upper[v] = min(int(upper[v]), int(lower[v]) + spare // -gain)
        tasks = np.array(master.column_tasks, np.int64).reshape(-1, len(self.supply))
        node_class = np.array(master.column_class, np.int64)
        loss = (self.priced.worth[node_class] - tasks @ self.supply).tolist()
        most = master.nodes.multiplicity[node_class]
        for p, lost in enumerate(loss):
            if lost > 0:
                most[p] = min(int(most[p]), spare // lost)
        return lower, upper, most


def charge(
    master: Master, model: LevelModel, objective: Expression, prices: RowPrices, priced: Priced
) -> Charged:
    """Return the bound on the objective that integer row prices prove.

    Parameters
    ----------
    master, model, objective, prices
        The master problem, the model, the objective to maximise, and integer row prices with signs
        that the row bounds allow.
    priced
        The best configurations of the node classes at these prices.

    """
    row, variable, factor = master.matrix
    reduced = [0] * len(model.lower)
    terms = zip(objective.variables.tolist(), objective.coefficients.tolist(), strict=True)
    for v, c in terms:
        reduced[v] += c * prices.scale
    charged = prices.prices
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
    nodes = zip(priced.worth.tolist(), master.nodes.multiplicity.tolist(), strict=True)
    total += sum(w * m for w, m in nodes)
    step = int(np.gcd.reduce(objective.coefficients)) if len(objective.coefficients) else 1
    return Charged(total, reduced, priced, prices.supply, prices.scale, max(step, 1))
