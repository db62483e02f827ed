"""Bins worth the most at given prices of items, proved: a knapsack in several dimensions.

Items are decided one after the other, most decided first. With multipliers λ of the capacities no
bin is worth more than λ·capacity + Σ max(0, price − λ·size); each decision against its sign costs
its distance from zero, so that few states stay above what is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from scipy.optimize import linprog

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched.problem.arrays import F64, I64
    from optsched.study.packing.packing_problem import Items

    Choices: TypeAlias = npt.NDArray[np.uint8]

_MOST_STATES: Final = 400_000
_SAFE: Final = 1e-7


@dataclass(frozen=True, eq=False, slots=True)
class Priced:
    """What pricing found."""

    bins: I64  # (B, K) the best ones worth more than was asked for, best first
    most: int  # no bin is worth more than this
    # Whether the search went to its end, so that `most` is the worth of the best bin or what was
    # asked for
    is_exact: bool


def best_bins(
    items: Items, prices: I64, above: int, most_bins: int, is_late: Callable[[], bool]
) -> Priced:
    """Bins worth more than `above`, and a bound on all.

    `items`: what may be taken. `prices`: (K,) whole numbers of zero or more. `above`: only larger
    worths are of interest. `most_bins`: how many bins to answer at most. `is_late`: asked now and
    then; true ends the search without a proof.
    """
    is_useful = (prices > 0) | (items.sizes < 0).any(axis=1)
    kind = np.repeat(np.arange(len(prices)), np.where(is_useful, items.most_in_a_bin, 0))
    sizes, price = items.sizes[kind], prices[kind].astype(np.float64)
    multiplier = _multipliers(sizes, price, items.capacity)
    reduced = price - sizes @ multiplier
    order = np.argsort(-np.abs(reduced), kind="stable")
    sizes, reduced, kind = sizes[order], reduced[order], kind[order]
    bound = float(items.capacity @ multiplier + np.maximum(reduced, 0).sum())
    tree = _Tree(sizes, reduced, items.capacity, (above + 1) * (1 - _SAFE))
    chosen, is_exact = tree.enumerate_choices(bound, is_late, multiplier)
    counts = np.zeros((len(chosen), len(prices)), np.int64)
    for item, k in enumerate(kind.tolist()):
        counts[:, k] += chosen[:, item]
    counts = np.unique(counts, axis=0)
    worth = counts @ prices
    best = np.argsort(-worth, kind="stable")
    best = best[worth[best] > above][:most_bins]
    top = int(worth.max(initial=above))
    return Priced(counts[best], max(top, above) if is_exact else max(int(bound) + 1, top), is_exact)


def _multipliers(sizes: I64, price: F64, capacity: I64) -> F64:
    """(D,) duals of the knapsack's linear relaxation."""
    if not len(price):
        return np.zeros(len(capacity))
    top = float(price.max())
    solved = linprog(-price / top, A_ub=sizes.T, b_ub=capacity, bounds=(0, 1), method="highs")
    if solved.status != 0:
        return np.zeros(len(capacity))
    found: F64 = np.maximum(-solved.ineqlin.marginals, 0) * top
    return found


class _Tree:
    """All choices of items whose bound stays above the limit, layer by layer."""

    def __init__(self, sizes: I64, reduced: F64, capacity: I64, wanted: float) -> None:
        self._sizes, self._reduced, self._capacity = sizes, reduced, capacity
        self._wanted = wanted
        ahead = np.minimum(sizes, 0)[::-1].cumsum(axis=0)[::-1]
        self._freed = np.concatenate([-ahead[1:], np.zeros((1, len(capacity)), np.int64)])

    def enumerate_choices(
        self, bound: float, is_late: Callable[[], bool], multiplier: F64
    ) -> tuple[Choices, bool]:
        """(B, n) choices worth what is wanted, and whether none was passed over."""
        num = len(self._reduced)
        room = self._capacity[None, :]
        limit = np.array([bound])
        taken = np.zeros((1, -(-num // 8)), np.uint8)
        is_exact = True
        for i in range(num):
            if is_late():
                return np.zeros((0, num), np.uint8), False
            value = float(self._reduced[i])
            without = limit - max(value, 0.0)
            stay = np.flatnonzero(without >= self._wanted)
            with_it = limit + min(value, 0.0)
            left = room - self._sizes[i]
            join = np.flatnonzero((with_it >= self._wanted) & (left >= -self._freed[i]).all(axis=1))
            more = taken[join]
            more[:, i // 8] |= 128 >> (i % 8)
            room, limit, taken = (
                np.concatenate([room[stay], left[join]]),
                np.concatenate([without[stay], with_it[join]]),
                np.concatenate([taken[stay], more]),
            )
            if len(limit) > _MOST_STATES:
                is_exact = False
                best = np.argpartition(-limit, _MOST_STATES // 4)[: _MOST_STATES // 4]
                room, limit, taken = room[best], limit[best], taken[best]
        whole = (room >= 0).all(axis=1) & (limit - room @ multiplier >= self._wanted)
        return np.unpackbits(taken[whole], axis=1, count=num), is_exact
