"""Linear relaxations that GLOP solves, and the upper bounds that they prove.

`Relaxation` relaxes a complete level model. `Master` relaxes a model over the configurations known
so far. Any choice of row prices proves an upper bound on the objective (Lagrangian relaxation): a
violation of a row is not forbidden, but costs the row's price per unit. The prices are the dual
values of the linear program, rounded to integers. All sums are exact integers, so floating-point
errors cannot invalidate a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.linear_solver import pywraplp

from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import F64, I64
    from optsched.problem.linear import Expression
    from optsched.solver.cpsat.level_model import Configurations, LevelModel
    from optsched.solver.cpsat.pricing import Priced

ROW_PRICE_BITS = 40
"""Number of bits of the largest rounded row price of a `Relaxation`."""

TASK_PRICE_BITS = 52
"""Number of bits of the largest rounded price of a task (the price of a supply row)."""

MOST_SCALE_BITS = 80


class _LinearProgram:
    """A linear program over bounded variables; rows can be added between solves.

    Each solve starts from the simplex basis of the previous solve, so a new row or objective costs
    only a few simplex steps. GLOP receives each row divided by its largest coefficient.

    Attributes
    ----------
    lower, upper
        Bounds of each row; ±UNLIMITED means no bound.

    """

    def __init__(self, lower: I64, upper: I64, rows: Rows) -> None:
        """Create the variables with the bounds `lower` and `upper`, and add the rows."""
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._bounds = list(zip(lower.tolist(), upper.tolist(), strict=True))
        self._variables = [self._solver.NumVar(float(a), float(b), "") for a, b in self._bounds]
        self._rows: list[pywraplp.Constraint] = []
        self._scale: list[float] = []
        self._entries: list[tuple[I64, I64]] = []
        self.lower: list[int] = []
        self.upper: list[int] = []
        starts = np.searchsorted(rows.row, np.arange(len(rows.lower) + 1)).tolist()
        for i, (low, high) in enumerate(zip(rows.lower.tolist(), rows.upper.tolist(), strict=True)):
            mine = slice(starts[i], starts[i + 1])
            self._add_row(rows.variable[mine], rows.coefficient[mine], low, high)

    def _add_row(self, variables: I64, coefficients: I64, lower: int, upper: int) -> None:
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

    def hold_value(self, goal: Expression, value: int) -> None:
        """Require an expression to be at least `value` in all later solves."""
        held = value - goal.constant
        self._add_row(goal.variables, goal.coefficients, held, int(UNLIMITED))

    def set_objective(self, variables: I64, coefficients: F64) -> None:
        objective = self._solver.Objective()
        objective.Clear()
        objective.SetMaximization()
        for variable, factor in zip(variables.tolist(), coefficients.tolist(), strict=True):
            objective.SetCoefficient(self._variables[variable], factor)

    def _find_optimum(self, milliseconds: int | None) -> F64 | None:
        """Return the optimal values of the variables, or None if the time limit is reached."""
        if milliseconds is not None:
            self._solver.SetTimeLimit(max(milliseconds, 1))
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        return _numbers([v.solution_value() for v in self._variables])

    def _read_prices(self) -> F64:
        """Return the dual values of the unscaled rows at the optimum."""
        return _numbers([r.dual_value() for r in self._rows]) / _numbers(self._scale)

    def round_prices(self, prices: F64, scale: int) -> list[int]:
        """Return row prices times `scale` as integers; 0 for the price of an absent bound."""
        whole = (round(price * scale) for price in prices.tolist())
        return [
            0 if (price > 0 and high >= UNLIMITED) or (price < 0 and low <= -UNLIMITED) else price
            for price, low, high in zip(whole, self.lower, self.upper, strict=True)
        ]

    def charge_rows(
        self, goal: Expression, prices: Sequence[int], scale: int
    ) -> tuple[int, list[int]]:
        """Return the upper bound that integer row prices prove, and the variables' reduced costs.

        The bound and the reduced costs are multiplied by `scale`. The bound omits the constant of
        `goal`. A positive price applies to the upper bound of a row, a negative price to the lower
        bound.
        """
        reduced = [0] * len(self._variables)
        terms = zip(goal.variables.tolist(), goal.coefficients.tolist(), strict=True)
        for v, c in terms:
            reduced[v] += c * scale
        total = 0
        rows = zip(prices, self._entries, self.lower, self.upper, strict=True)
        for price, (variables, coefficients), low, high in rows:
            if price:
                total += price * (high if price > 0 else low)
                for v, a in zip(variables.tolist(), coefficients.tolist(), strict=True):
                    reduced[v] -= price * a
        for gain, (low, high) in zip(reduced, self._bounds, strict=True):
            if gain:
                total += gain * (high if gain > 0 else low)
        return total, reduced


def _numbers(values: Sequence[float]) -> F64:
    return np.array(values, np.float64)


def _choose_scale(largest: float, bits: int) -> int:
    """Return the power of two that scales the price `largest` to about `bits` bits."""
    shift = bits - math.ceil(math.log2(largest)) if largest > 0 else 0
    return 1 << max(0, min(shift, MOST_SCALE_BITS))


def _find_step(goal: Expression) -> int:
    """Return the step between values of `goal`: the greatest common divisor of its coefficients."""
    return max(int(np.gcd.reduce(goal.coefficients)), 1) if len(goal.coefficients) else 1


# --- complete models -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Vertex:
    """An optimal vertex of the relaxation of one level.

    Attributes
    ----------
    bound
        Upper bound on the objective that the row prices prove, or None.
    """

    values: F64
    bound: int | None


class Relaxation(_LinearProgram):
    """A relaxation for maximising one expression at a time; rows can be added between solves."""

    def maximize(self, goal: Expression, milliseconds: int | None) -> Vertex | None:
        """Return an optimum of the relaxation, or None if the time limit is reached."""
        values = self.find_values(goal, milliseconds)
        if values is None:
            return None
        prices = self._read_prices() * float(np.abs(goal.coefficients).max(initial=1))
        largest = float(np.abs(prices).max(initial=0.0))
        if not np.isfinite(largest):
            return Vertex(values, None)
        scale, step = _choose_scale(largest, ROW_PRICE_BITS), _find_step(goal)
        total, _ = self.charge_rows(goal, self.round_prices(prices, scale), scale)
        return Vertex(values, goal.constant + total // scale // step * step)

    def find_values(self, goal: Expression, milliseconds: int | None) -> F64 | None:
        """Return the values (variables,) of an optimum, or None if the time limit is reached."""
        largest = float(np.abs(goal.coefficients).max(initial=1))
        self.set_objective(goal.variables, goal.coefficients / largest)
        return self._find_optimum(milliseconds)


# --- configurations ------------------------------------------------------------------------------


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
        (K,) dual value of each node class: the gain in the objective from one more node of the
        class.

    """

    values: F64
    uses: F64
    prices: F64
    class_prices: F64


class Master(_LinearProgram):
    """The relaxed master problem; configurations and rows can be added between solves."""

    def __init__(self, model: LevelModel, nodes: Configurations) -> None:
        super().__init__(model.lower, model.upper, model.rows)
        self.nodes = nodes
        self._class_rows = [self._solver.Constraint(0.0, float(m)) for m in nodes.multiplicity]
        self._columns: list[pywraplp.Variable] = []
        self.column_class: list[int] = []
        self.column_tasks: list[I64] = []
        self._known: set[tuple[int, bytes]] = set()

    def add_column(self, node_class: int, tasks: I64) -> bool:
        """Add a configuration (C,) of a node class; return False for an empty or known one."""
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

    def solve(self, milliseconds: int | None) -> Relaxed | None:
        """Return an optimum of the relaxation, or None if the time limit is reached."""
        values = self._find_optimum(milliseconds)
        if values is None:
            return None
        return Relaxed(
            values=values,
            uses=_numbers([v.solution_value() for v in self._columns]),
            prices=self._read_prices(),
            class_prices=_numbers([r.dual_value() for r in self._class_rows]),
        )

    def integer_rows(self) -> Rows:
        """Return all rows over the variables and the number of nodes per configuration."""
        lengths = [len(variables) for variables, _ in self._entries]
        row = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        variable, factor = (np.concatenate(part) for part in zip(*self._entries, strict=True))
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


@dataclass(frozen=True, eq=False)
class RowPrices:
    """Integer row prices: dual values times `scale`; 0 for the price of an absent bound.

    Only the prices of supply rows are guaranteed to fit in 64-bit integers.
    """

    prices: list[int]
    supply: I64
    scale: int


def rounded(prices: F64, master: Master) -> RowPrices:
    """Round dual values to integers so that task prices have at most `TASK_PRICE_BITS` bits."""
    supply = master.nodes.supply
    scale = _choose_scale(float(np.abs(prices[supply]).max(initial=0.0)), TASK_PRICE_BITS)
    whole = master.round_prices(prices, scale)
    return RowPrices(whole, np.array([whole[r] for r in supply.tolist()], np.int64), scale)


@dataclass(frozen=True, eq=False)
class Charged:
    """A bound on the objective, proved by Lagrangian relaxation with a price for each row.

    `total` is an upper bound on the value of every solution. `reduced` holds the reduced cost of
    each variable. If a variable differs by one from the bound that its reduced cost favours, the
    upper bound falls by the absolute reduced cost. If a node uses a configuration other than the
    best one of its node class, the upper bound falls by the difference between the values of the
    two configurations. The upper bound and its reductions are multiplied by `scale`.
    """

    total: int
    reduced: list[int]
    priced: Priced
    supply: I64
    scale: int
    step: int

    @property
    def bound(self) -> int:
        """The upper bound on the objective without its constant."""
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


def charge(master: Master, objective: Expression, prices: RowPrices, priced: Priced) -> Charged:
    """Return the bound on the objective that integer row prices prove.

    `priced` holds the best configurations of the node classes at these prices.
    """
    total, reduced = master.charge_rows(objective, prices.prices, prices.scale)
    nodes = zip(priced.worth.tolist(), master.nodes.multiplicity.tolist(), strict=True)
    total += sum(w * m for w, m in nodes)
    return Charged(total, reduced, priced, prices.supply, prices.scale, _find_step(objective))
