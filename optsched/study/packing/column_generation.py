"""Solve vector bin packing as a covering problem: each row is an item type, each column a bin.

Column generation solves the linear program: bins with negative reduced cost become columns. Dual
prices are smoothed towards the prices of the best bound so far (Wentges 1997), which saves pricing
rounds. Integer item prices, with the maximum total price of the items in a bin, prove a lower bound
on the number of bins. An integer program selects the smallest subset of the given columns that
covers all items. If a solution covers an item type more often than required, the surplus items are
removed from their bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from optsched.solver.cpsat.integer_program import create_solver
from optsched.study.packing.packing_problem import TOLERANCE, Items
from optsched.study.packing.patterns import Scores, best_bins, fillings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.packing.patterns import Copies, Pool

_LARGEST = 1 << 62
"""An upper limit that exceeds any number of items, within the integer range of CP-SAT."""


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
        """Replace the number of items of each type that the columns must cover, shape (K,)."""
        for row, n in zip(self._rows, number.tolist(), strict=True):
            row.SetLb(float(n))

    def solve(self, seconds: float) -> tuple[F64, F64] | None:
        """Return the number of uses of each column, and the dual prices of the items, shape (K,).

        Returns None if no optimum is found within the time limit.
        """
        self._solver.SetTimeLimit(max(int(1000 * seconds), 1))
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        uses = np.array([v.solution_value() for v in self._variables])
        return uses, np.maximum(np.array([r.dual_value() for r in self._rows]), 0)


def fewest_columns(
    columns: Sequence[I64],
    number: I64,
    is_exact: Bool,
    between: tuple[int, int],
    work: float,
    seconds: float,
) -> list[Copies] | None:
    """Return the fewest bins that cover the items, or None if the solver finds no solution.

    The result lists each chosen column with its number of uses.

    Parameters
    ----------
    columns
        Bins (K,) to choose from.
    number
        Number of items of each type that must be covered, shape (K,).
    is_exact
        Whether exactly `number` items of each type must be covered, and not more, shape (K,).
    between
        Minimum and maximum number of bins; the minimum must be a proved lower bound.
    work
        Limit in CP-SAT deterministic time; a unit is about one second on one core, regardless of
        the machine's load.
    seconds
        Limit in wall-clock time, with two workers.

    """
    table = np.array(columns, np.int64)
    model = cp_model.CpModel()
    largest = int(number.max(initial=1))
    uses = [model.new_int_var(0, largest, "") for _ in columns]
    most = np.where(is_exact, number, min(largest * len(columns) * largest, _LARGEST))
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


_UNIT: Final = 1 << 30
"""The price of one bin, in integer price units."""

_MOST_PRICED: Final = 100_000
"""Maximum number of items (sum of `most_in_a_bin`) in a pricing knapsack without a pool."""

_WAYS: Final = 64
_FEW: Final = 40
_MANY: Final = 600
_DRAWN: Final = 0.8
_ROUNDS: Final = 20
_FEW_AGAIN: Final = 150


class Columns:
    """The linear program for an instance; pricing adds bins to it as columns.

    `pool` contains all possible bins, or is None if there are too many. `seconds` returns the
    remaining time in seconds. `prices` (K,) are the item prices that prove the best lower bound on
    the number of bins, and `value` is this bound before rounding up.
    """

    def __init__(
        self,
        items: Items,
        pool: Pool | None,
        random: np.random.Generator,
        seconds: Callable[[], float],
    ) -> None:
        self._items, self._pool, self._random, self._seconds = items, pool, random, seconds
        self.master = CoverMaster(items.number)
        self.prices: F64 = np.zeros(len(items.number))
        self.value = 0.0

    # --- lower bound -----------------------------------------------------------------------------

    def bounds(self) -> Iterator[int]:
        """Generate columns until the lower bound cannot improve; yield each lower bound."""
        can_price = self._pool is not None or self._items.most_in_a_bin.sum() <= _MOST_PRICED
        while self._seconds() > 0:
            solved = self.master.solve(self._seconds())
            if solved is None:
                return
            prices = solved[1]
            if self._pool is None and self._add_greedy(self._items, prices):
                continue
            if not can_price:
                return
            drawn = prices
            if self._pool is not None and self.value:
                drawn = np.asarray(_DRAWN * self.prices + (1 - _DRAWN) * prices)
            grown, bound = self._add_priced(drawn)
            yield bound
            if not grown:
                grown, bound = self._add_priced(prices)
                yield bound
            if not grown or bound >= prices @ self._items.number - TOLERANCE:
                return

    def _add_priced(self, prices: F64) -> tuple[int, int]:
        """Add bins whose items have a total price above 1.

        Returns the number of added bins, and a lower bound on the number of bins that any packing
        needs.
        """
        whole = np.floor(prices * _UNIT).astype(np.int64)
        if self._pool is not None:
            found = self._pool.best_bins(whole, _UNIT, _MANY)
        else:
            found = best_bins(self._items, whole, _UNIT, _FEW, lambda: self._seconds() <= 0)
        # Use Python integers, which cannot overflow.
        total = sum(p * n for p, n in zip(whole.tolist(), self._items.number.tolist(), strict=True))
        if total / found.most > self.value:
            self.prices, self.value = whole / found.most, total / found.most
        return sum([self.master.add(counts) for counts in found.bins]), -(-total // found.most)

    def _add_greedy(self, items: Items, prices: F64) -> int:
        """Add greedily filled bins with a total item price above 1; return their number."""
        weight = self._random.dirichlet(np.ones(len(items.capacity)), _WAYS)
        weight[::2] = weight[::2] * 0.5 + 0.5 / len(items.capacity)
        size = weight @ items.relative.T
        worth = prices / np.maximum(size, 1e-3) ** self._random.uniform(0.3, 1.2, (_WAYS, 1))
        worth = worth * self._random.uniform(0.8, 1.2, worth.shape)
        worth[:, prices <= 0] = -1
        found = fillings(items, Scores(weight * 1e-6, np.zeros(_WAYS), worth))
        found = np.unique(found[found @ prices > 1 + TOLERANCE], axis=0)
        return sum([self.master.add(counts) for counts in found])

    # --- remaining items -------------------------------------------------------------------------

    def solved_for(self, left: I64) -> tuple[F64, F64, float] | None:
        """Solve the linear program for the remaining items (K,); return None at the time limit."""
        items = Items(self._items.sizes, left, self._items.capacity)
        self.master.set_demand(left)
        for _ in range(_ROUNDS):
            solved = self.master.solve(self._seconds())
            if solved is None or self._seconds() <= 0:
                return None
            uses, prices = solved
            if self._pool is None:
                added = self._add_greedy(items, prices)
            else:
                whole = np.floor(prices * _UNIT).astype(np.int64)
                found = self._pool.best_bins(whole, int(_UNIT * (1 + TOLERANCE)), _FEW_AGAIN)
                added = sum([self.master.add(counts) for counts in found.bins])
            if not added:
                break
        return uses, prices, float(prices @ left)

    def round_down_uses(self, uses: F64, left: I64) -> list[Copies]:
        """Return columns that contain only remaining items, with their uses rounded down.

        A basic solution uses at most K columns, so about K bins or fewer remain to be chosen after
        rounding down.

        Parameters
        ----------
        uses
            Number of uses of each column, possibly fractional.
        left
            Number of remaining items of each type, shape (K,).

        """
        chosen: list[Copies] = []
        for c in np.flatnonzero(uses >= 1).tolist():
            counts = np.minimum(self.master.columns[c], left)
            some = counts > 0
            if some.any() and self._items.fit(counts[None, :])[0]:
                number = min(int(uses[c]), int((left[some] // counts[some]).min()))
                chosen.append((counts, number))
                left = left - number * counts
        return chosen

    def most_used_columns(self, uses: F64, left: I64, noise: float, part: float) -> list[I64]:
        """Return the most used columns that contain only remaining items.

        Columns with at least one use come first. Columns with less than one use are sorted by the
        product of their use and a random factor.

        Parameters
        ----------
        uses
            Number of uses of each column, possibly fractional.
        left
            Number of remaining items of each type, shape (K,).
        noise
            Weight of random noise, 0 to 1.
        part
            Maximum number of returned columns, as a fraction of the sum of all uses; at least the
            number of columns with at least one use.

        """
        at = np.flatnonzero(uses > TOLERANCE)
        table = np.minimum(np.array([self.master.columns[c] for c in at]), left)
        score = np.minimum(uses[at], 1) * self._random.uniform(1 - noise, 1, len(at))
        score[uses[at] >= 1 - TOLERANCE] += 1
        fill = (table @ self._items.relative).sum(axis=1)
        whole = int((uses[at] >= 1 - TOLERANCE).sum())
        most = max(1, whole, int(part * uses.sum()))
        chosen: list[I64] = []
        for i in np.lexsort((-fill, -score.round(6))).tolist():
            counts = table[i]
            is_good = (
                counts.any() and (counts <= left).all() and self._items.fit(counts[None, :])[0]
            )
            if is_good:
                chosen.append(counts)
                left = left - counts
            if len(chosen) >= most:
                break
        return chosen

    # --- columns for integer programs ------------------------------------------------------------

    def promising(self, left: I64, prices: F64, gap: float, most: int) -> list[I64]:
        """Return the bins of remaining items `left` (K,) that may occur in a near-optimal packing.

        A packing is near-optimal if it has at most `gap` bins more than the linear program's lower
        bound. The bins are sorted by descending total price. Without a pool, all columns of the
        linear program are returned.
        """
        if self._pool is None:
            return self.master.columns
        return self._pool.cheapest(left, prices, 1 - gap - TOLERANCE, most)
