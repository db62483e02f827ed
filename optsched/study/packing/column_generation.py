"""Column generation: bins with negative reduced cost become columns of a linear program.

Dual prices are smoothed towards the best prices so far (Wentges 1997), which saves pricing rounds.
Integer item prices and the maximum total price of the items in a bin prove a lower bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.packing.greedy_filling import Scores, fillings
from optsched.study.packing.packing_problem import Items
from optsched.study.packing.patterns import best_bins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.problem.arrays import F64, I64
    from optsched.study.packing.covering import CoverMaster
    from optsched.study.packing.greedy_filling import Copies
    from optsched.study.packing.patterns import Pool

CLEAR: Final = 1e-6
_UNIT: Final = 1 << 30
"""The price of one bin, in integer price units."""

_MOST_PRICED: Final = 100_000
"""Maximum number of knapsack items (sum of `most_in_a_bin`) that are priced without a pool."""

_WAYS: Final = 64
_FEW: Final = 40
_MANY: Final = 600
_DRAWN: Final = 0.8
_ROUNDS: Final = 20
_FEW_AGAIN: Final = 150


class Columns:
    """The linear program for an instance; pricing adds bins to it as columns.

    Attributes
    ----------
    items
        The items to pack.
    pool
        All possible bins, or None if there are too many.
    random
        Random number generator for greedy scores.
    seconds
        Function that returns the remaining seconds.
    prices
        Item prices (K,) that prove the best lower bound.
    value
        Best lower bound on the number of bins, before rounding up.

    """

    def __init__(
        self,
        items: Items,
        pool: Pool | None,
        random: np.random.Generator,
        seconds: Callable[[], float],
    ) -> None:
        from optsched.study.packing.covering import CoverMaster

        self._items, self._pool, self._random, self._seconds = items, pool, random, seconds
        self.master: CoverMaster = CoverMaster(items.number)
        self.prices: F64 = np.zeros(len(items.number))
        self.value = 0.0

    # --- lower bound -----------------------------------------------------------------------------

    def bounds(self) -> Iterator[int]:
        """Generate columns until the lower bound cannot improve; yield each bound found."""
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
            if not grown or bound >= prices @ self._items.number - CLEAR:
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
        found = np.unique(found[found @ prices > 1 + CLEAR], axis=0)
        return sum([self.master.add(counts) for counts in found])

    # --- remaining items -------------------------------------------------------------------------

    def solved_for(self, left: I64) -> tuple[F64, F64, float] | None:
        """Solve the linear program for the items `left` (K,); return None at the time limit."""
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
                found = self._pool.best_bins(whole, int(_UNIT * (1 + CLEAR)), _FEW_AGAIN)
                added = sum([self.master.add(counts) for counts in found.bins])
            if not added:
                break
        return uses, prices, float(prices @ left)

    def round_down_uses(self, uses: F64, left: I64) -> list[Copies]:
        """Return the columns with their uses rounded down, and limited to the remaining items.

        A basic solution uses at most K columns, so about K bins at most remain to be chosen.

        Parameters
        ----------
        uses
            Number of uses of each column, possibly fractional.
        left
            The remaining items (K,).

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
        """Return the most used columns that fit the remaining items.

        Columns with at least one use come first. The others are sorted by use with random noise.

        Parameters
        ----------
        uses
            Number of uses of each column, possibly fractional.
        left
            The remaining items (K,).
        noise
            Weight of random noise, 0 to 1.
        part
            Maximum number of returned columns, as a fraction of the sum of all uses. The maximum is
            at least the number of columns that are used at least once.

        """
        at = np.flatnonzero(uses > CLEAR)
        table = np.minimum(np.array([self.master.columns[c] for c in at]), left)
        score = np.minimum(uses[at], 1) * self._random.uniform(1 - noise, 1, len(at))
        score[uses[at] >= 1 - CLEAR] += 1
        fill = (table @ self._items.relative).sum(axis=1)
        whole = int((uses[at] >= 1 - CLEAR).sum())
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
        """Return the bins of items in `left` (K,) that may occur in a near-optimal packing.

        A packing is near-optimal if it has at most `gap` bins more than the bound. The bins are
        sorted by descending total price. Without a pool, all columns of the linear program are
        returned.
        """
        if self._pool is None:
            return self.master.columns
        return self._pool.cheapest(left, prices, 1 - gap - CLEAR, most)
