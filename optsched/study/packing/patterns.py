"""Find patterns (feasible contents of a bin) by greedy filling, knapsack pricing or enumeration.

Greedy filling repeatedly packs the item with the highest score; many score functions are evaluated
in parallel. A score function selects the item whose size vector has the largest dot product with
the bin's remaining capacity, or is nearest to this capacity. Each dimension has a weight that
depends on the demand in it (Panigrahy, Talwar, Uyeda and Wieder, "Heuristics for vector bin
packing", 2011).

Pricing finds the bins with the highest total item price, and proves an upper bound on that price.
With multipliers λ for the capacities, the total price of a bin is at most λ·capacity + Σ max(0,
price − λ·size). The search decides item by item whether the bin contains the item, in descending
order of |price − λ·size|. To include an item with price < λ·size, or to exclude an item with price
> λ·size, lowers the upper bound by |price − λ·size|. For most partial bins, this upper bound soon
falls below the required price, and the partial bin is discarded.

If the number of patterns is small enough, all patterns are enumerated. Items are sorted by size in
the most selective dimension, largest first, and added to bins in this order. In this dimension, the
items that still fit into a bin are therefore a contiguous range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np
from scipy.optimize import linprog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.packing.packing_problem import Items

    Choices: TypeAlias = npt.NDArray[np.uint8]
    Kinds = npt.NDArray[np.int16]
    Prices = TypeVar("Prices", F64, I64)

Copies: TypeAlias = "tuple[I64, int]"
"""The number of items of each type in a bin, shape (K,), and the number of copies of the bin."""

_NOISE: Final = 0.1
_STEPS: Final = 64


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """The parameters of V score functions; the item with the highest score is packed next."""

    weight: F64  # Weights of the dimensions, shape (V, D).
    # Method of each score function, shape (V,): 0 stands for the dot product with the remaining
    # capacity, 1 for the distance to the remaining capacity.
    nearness: F64
    worth: F64  # Constant that is added to the score of each item type, shape (V, K).


def usual_scores(items: Items, number: int, random: np.random.Generator) -> Scores:
    """Return `number` score functions: the published ones first, then randomly perturbed ones."""
    part = items.total / np.maximum(items.capacity, 1) / max(int(items.number.sum()), 1)
    weights = np.stack([np.ones_like(part), part, part**2, np.exp(part)])
    sums = weights.sum(axis=1, keepdims=True)
    weights /= np.where(sums == 0, 1, sums)
    weight = np.tile(np.repeat(weights, 2, axis=0), (-(-number // 8), 1))[:number]
    weight = weight * random.uniform(0.5, 1.5, weight.shape)
    weight[:8] = np.repeat(weights, 2, axis=0)[: len(weight[:8])]
    nearness = (np.arange(number) % 2).astype(np.float64)
    worth = (
        random.uniform(0, _NOISE, (number, len(items.number))) * (np.arange(number) >= 8)[:, None]
    )
    return Scores(weight, nearness, worth)


def greedy_packings(items: Items, scores: Scores) -> list[list[Copies]]:
    """Return one packing per score function, as (bin, number of copies) tuples.

    While enough items remain, a filled bin is copied, because the score function would fill the
    next bin with the same items.
    """
    relative, ways = items.relative, np.arange(len(scores.weight))
    left = np.tile(items.number, (len(ways), 1))
    idle = np.tile(items.capacity, (len(ways), 1))
    inside = np.zeros_like(left)
    found: list[list[Copies]] = [[] for _ in ways]
    open_ways = ways
    while len(open_ways):
        chosen = _best(items, relative, scores, open_ways, left[open_ways], idle[open_ways])
        full = chosen < 0
        for way in open_ways[full].tolist():
            some = inside[way] > 0
            more = int((left[way][some] // inside[way][some]).min()) if some.any() else 0
            found[way].append((inside[way].copy(), 1 + more))
            left[way] -= more * inside[way]
        inside[open_ways[full]] = 0
        idle[open_ways[full]] = items.capacity
        way, kind = open_ways[~full], chosen[~full]
        several = _several(items, left[way, kind], idle[way], kind)
        inside[way, kind] += several
        left[way, kind] -= several
        idle[way] -= several[:, None] * items.sizes[kind]
        open_ways = ways[left.any(axis=1) | inside.any(axis=1)]
    return found


def fillings(items: Items, scores: Scores) -> I64:
    """Fill one bin per score function; return its number of items of each type, shape (V, K)."""
    ways = np.arange(len(scores.weight))
    left = np.tile(items.number, (len(ways), 1))
    idle = np.tile(items.capacity, (len(ways), 1))
    open_ways = ways
    relative = items.relative
    while len(open_ways):
        chosen = _best(items, relative, scores, open_ways, left[open_ways], idle[open_ways])
        open_ways, kind = open_ways[chosen >= 0], chosen[chosen >= 0]
        several = _several(items, left[open_ways, kind], idle[open_ways], kind)
        left[open_ways, kind] -= several
        idle[open_ways] -= several[:, None] * items.sizes[kind]
    return items.number - left


def _several(items: Items, left: I64, idle: I64, kind: I64) -> I64:
    """Return the number of equal items that the next greedy step adds to each bin, shape (V,).

    If few items fit into a bin, the step adds one item. If hundreds of items fit, one step adds
    several items, because the scores hardly change between two items.
    """
    sizes = items.sizes[kind]
    fitting = np.where(sizes > 0, idle // np.maximum(sizes, 1), left[:, None]).min(axis=1)
    found: I64 = np.maximum(np.minimum(fitting, left) // _STEPS, 1)
    return found


def _best(items: Items, relative: F64, scores: Scores, ways: I64, left: I64, idle: I64) -> I64:
    """Return each bin's item type with the highest score, or -1 if no item fits; shape (V,)."""
    fits = (items.sizes <= idle[:, None, :]).all(axis=2) & (left > 0)
    weight, rest = scores.weight[ways], idle / np.maximum(items.capacity, 1)
    dot = (weight * rest) @ relative.T
    length = weight @ (relative**2).T
    value = 2 * dot - scores.nearness[ways, None] * length + scores.worth[ways]
    value = np.where(fits, value, -np.inf)
    best: I64 = value.argmax(axis=1)
    return np.where(fits.any(axis=1), best, -1)


# --- pricing --------------------------------------------------------------------------------------

_MOST_STATES: Final = 400_000
_SAFE: Final = 1e-7


@dataclass(frozen=True, eq=False, slots=True)
class PricedBins:
    """Bins with a high total price, and an upper bound on the total price of all bins."""

    bins: I64  # Bins with a total price above the threshold, best first, shape (B, K).
    most: int  # Upper bound on the total price of any bin.
    # Whether the search was complete. After a complete search, `most` is the total price of the
    # best bin, or the threshold if no bin exceeds the threshold.
    is_exact: bool


def best_bins(
    items: Items, prices: I64, above: int, most_bins: int, is_late: Callable[[], bool]
) -> PricedBins:
    """Return bins with a total price above `above`, and an upper bound on the price of any bin.

    Parameters
    ----------
    items
        The available items.
    prices
        Non-negative integer price (K,) of each item type.
    above
        Threshold on the total price of returned bins.
    most_bins
        Maximum number of returned bins.
    is_late
        A function that the search calls repeatedly; when it returns True, the search stops without
        a proof.

    """
    is_useful = (prices > 0) | (items.sizes < 0).any(axis=1)
    kind = np.repeat(np.arange(len(prices)), np.where(is_useful, items.most_in_a_bin, 0))
    sizes, price = items.sizes[kind], prices[kind].astype(np.float64)
    # `multiplier` (D,) holds the dual prices of the capacity in the knapsack's linear relaxation;
    # the value of an item's size at these prices is subtracted from the item's price.
    multiplier = np.zeros(len(items.capacity))
    if len(price):
        top = float(price.max())
        relaxed = linprog(
            -price / top, A_ub=sizes.T, b_ub=items.capacity, bounds=(0, 1), method="highs"
        )
        if relaxed.status == 0:
            multiplier = np.maximum(-relaxed.ineqlin.marginals, 0) * top
    reduced = price - sizes @ multiplier
    order = np.argsort(-np.abs(reduced), kind="stable")
    sizes, reduced, kind = sizes[order], reduced[order], kind[order]
    bound = float(items.capacity @ multiplier + np.maximum(reduced, 0).sum())
    wanted = (above + 1) * (1 - _SAFE)
    chosen, is_exact = _choose_items(
        sizes, reduced, items.capacity, multiplier, bound, wanted, is_late
    )
    counts = np.zeros((len(chosen), len(prices)), np.int64)
    for item, k in enumerate(kind.tolist()):
        counts[:, k] += chosen[:, item]
    counts = np.unique(counts, axis=0)
    worth = counts @ prices
    best = np.argsort(-worth, kind="stable")
    best = best[worth[best] > above][:most_bins]
    top = int(worth.max(initial=above))
    return PricedBins(
        counts[best], max(top, above) if is_exact else max(int(bound) + 1, top), is_exact
    )


def _choose_items(
    sizes: I64,
    reduced: F64,
    capacity: I64,
    multiplier: F64,
    bound: float,
    wanted: float,
    is_late: Callable[[], bool],
) -> tuple[Choices, bool]:
    """Return which of n items each bin contains, shape (B, n), and whether the search was complete.

    The search is breadth-first. A bin is returned if the upper bound on its total price is at least
    `wanted`. `bound` is the upper bound on the total price of any bin.
    """
    ahead = np.minimum(sizes, 0)[::-1].cumsum(axis=0)[::-1]
    freed = np.concatenate([-ahead[1:], np.zeros((1, len(capacity)), np.int64)])
    num = len(reduced)
    idle = capacity[None, :]
    limit = np.array([bound])
    taken = np.zeros((1, -(-num // 8)), np.uint8)
    is_exact = True
    for i in range(num):
        if is_late():
            return np.zeros((0, num), np.uint8), False
        value = float(reduced[i])
        without = limit - max(value, 0.0)
        stay = np.flatnonzero(without >= wanted)
        with_it = limit + min(value, 0.0)
        left = idle - sizes[i]
        join = np.flatnonzero((with_it >= wanted) & (left >= -freed[i]).all(axis=1))
        more = taken[join]
        more[:, i // 8] |= 128 >> (i % 8)
        idle, limit, taken = (
            np.concatenate([idle[stay], left[join]]),
            np.concatenate([without[stay], with_it[join]]),
            np.concatenate([taken[stay], more]),
        )
        if len(limit) > _MOST_STATES:
            is_exact = False
            best = np.argpartition(-limit, _MOST_STATES // 4)[: _MOST_STATES // 4]
            idle, limit, taken = idle[best], limit[best], taken[best]
    whole = (idle >= 0).all(axis=1) & (limit - idle @ multiplier >= wanted)
    return np.unpackbits(taken[whole], axis=1, count=num), is_exact


# --- enumeration ----------------------------------------------------------------------------------

_MOST_NUMBERS: Final = 16_000_000
_MOST_KINDS: Final = 30_000
_AT_ONCE: Final = 1_000_000


@dataclass(frozen=True, eq=False, slots=True)
class Pool:
    """A pool of P bins with up to W items each."""

    inside: Kinds  # Types of the items in each bin, padded with `num_kinds`, shape (P, W).
    num_kinds: int  # Number of item types, K.

    def worth(self, prices: Prices) -> Prices:
        """Return the total price of each bin at item prices (K,), shape (P,)."""
        padded: Prices = np.append(prices, prices.dtype.type(0))
        total: Prices = padded[self.inside[:, 0]]
        for column in self.inside.T[1:]:
            total += padded[column]
        return total

    def counts(self, bins: I64) -> I64:
        """Return the number of items of each type in the given bins (B,), shape (B, K)."""
        table = np.zeros((len(bins), self.num_kinds + 1), np.int64)
        rows = np.repeat(np.arange(len(bins)), self.inside.shape[1])
        np.add.at(table, (rows, self.inside[bins].ravel()), 1)
        return table[:, :-1]

    def best_bins(self, prices: I64, above: int, most_bins: int) -> PricedBins:
        """Return bins as `best_bins` does; the best bin for each item type comes first."""
        worth = self.worth(prices)
        good = np.flatnonzero(worth > above)
        top = int(worth.max(initial=above))
        if not len(good):
            return PricedBins(np.zeros((0, self.num_kinds), np.int64), top, True)
        # For each item type, take the best bin that contains the type.
        order = good[np.argsort(-worth[good], kind="stable")]
        chosen = [
            np.unique(self.inside[order, w], return_index=True) for w in range(self.inside.shape[1])
        ]
        first = np.unique(np.concatenate([at[kinds < self.num_kinds] for kinds, at in chosen]))
        rest = np.setdiff1d(np.arange(min(len(order), most_bins // 4)), first)
        found: I64 = order[np.concatenate([first, rest])[:most_bins]]
        return PricedBins(self.counts(found), top, True)

    def all_counts(self) -> list[I64]:
        """Return the number of items of each type, shape (K,), for every bin."""
        return list(self.counts(np.arange(len(self.inside))))

    def cheapest(self, left: I64, prices: F64, above: float, most: int) -> list[I64]:
        """Return up to `most` bins of remaining items whose total price exceeds `above`.

        The bins are sorted by descending total price. `left` (K,) is the number of remaining items
        of each type.
        """
        allowed = np.append(left > 0, True)
        worth = self.worth(prices)
        good = np.flatnonzero((worth > above) & allowed[self.inside].all(axis=1))
        order = good[np.argsort(-worth[good], kind="stable")][:most]
        table = self.counts(order)
        return list(table[(table <= left).all(axis=1)])


def every_bin(items: Items, is_late: Callable[[], bool]) -> Pool | None:
    """Return all non-empty bins, or None if there are too many or `is_late` returns True."""
    if items.most_in_a_bin.sum() > _MOST_KINDS:
        return None
    return _Growth(items, is_late, None).grow(len(items.capacity) + int(items.number.sum()))


def full_bins(
    items: Items, waste: I64, most_items: int, is_late: Callable[[], bool]
) -> Pool | None:
    """Return all bins of up to `most_items` items that leave at most `waste` (D,) unused.

    Returns None if there is no such bin, if there are too many, or if `is_late` returns True.
    """
    if items.most_in_a_bin.sum() > _MOST_KINDS:
        return None
    return _Growth(items, is_late, waste).grow(most_items)


class _Growth:
    """Enumerates bins; bins with fewer items come first."""

    def __init__(self, items: Items, is_late: Callable[[], bool], waste: I64 | None) -> None:
        self._kinds = len(items.number)
        self._is_late, self._waste = is_late, waste
        spread = items.relative.std(axis=0) + items.relative.mean(axis=0)
        self._axis = int(spread.argmax())
        order = np.lexsort((np.arange(self._kinds), -items.sizes[:, self._axis]))
        self._kind = np.repeat(order, items.most_in_a_bin[order])
        self._sizes = items.sizes[self._kind]
        self._key = -self._sizes[:, self._axis]
        self._is_copy = np.append(False, self._kind[1:] == self._kind[:-1])
        ahead = np.minimum(self._sizes, 0)[::-1].cumsum(axis=0)[::-1]
        self._freed = np.concatenate([-ahead, np.zeros((1, len(items.capacity)), np.int64)])
        self._capacity = items.capacity
        self._most = _MOST_NUMBERS // max(4, len(items.capacity))

    def grow(self, most_items: int) -> Pool | None:
        """Return the bins with up to `most_items` items.

        Returns None if there is no bin, if there are too many, or if `is_late` returns True.
        """
        last, idle = np.full(1, -1), self._capacity[None, :]
        inside = np.zeros((1, 0), np.int16)
        levels: list[Kinds] = []
        for size in range(1, most_items + 1):
            grown = self._add_one_item(last, idle, is_last=size == most_items)
            if grown is None:
                return None
            if (sum(map(len, levels)) + len(grown[0])) * max(size, 4) > 4 * self._most:
                return None
            parent, last, idle = grown
            inside = np.column_stack([inside[parent], self._kind[last].astype(np.int16)])
            levels.append(inside[self._improves_pool(idle)])
            if not len(last):
                break
        levels = [level for level in levels if len(level)]
        if not levels:
            return None
        width = max(level.shape[1] for level in levels)
        padded = [
            np.pad(level, ((0, 0), (0, width - level.shape[1])), constant_values=self._kinds)
            for level in levels
        ]
        return Pool(np.concatenate(padded), self._kinds)

    def _add_one_item(self, last: I64, idle: I64, *, is_last: bool) -> tuple[I64, I64, I64] | None:
        """Extend each bin by one item; return arrays of bins, added items and idle capacities.

        Returns None if there are too many bins or if `is_late` returns True.
        """
        parts, found = list[tuple[np.ndarray, ...]](), 0
        least = self._waste if is_last else None
        for parent, item in self._candidates(last, idle, least):
            left = idle[parent] - self._sizes[item]
            fits = (left >= -self._freed[item + 1]).all(axis=1)
            fits &= ~self._is_copy[item] | (last[parent] == item - 1)
            if least is not None:
                fits &= self._improves_pool(left)
            parts.append((parent[fits], item[fits], left[fits]))
            found += int(fits.sum())
            if found > self._most or self._is_late():
                return None
        parent, item, left = (np.concatenate(each) for each in zip(*parts, strict=True))
        return parent, item, left

    def _improves_pool(self, idle: I64) -> Bool:
        """Return whether each bin's idle capacity is non-negative and at most `_waste`."""
        wanted = (idle >= 0).all(axis=1)
        if self._waste is not None:
            wanted &= (idle <= self._waste).all(axis=1)
        return np.asarray(wanted, np.bool_)

    def _candidates(self, last: I64, idle: I64, least: I64 | None) -> Iterator[tuple[I64, I64]]:
        """Yield batches of arrays (bin, item); each item fits into its bin in one dimension."""
        num = len(self._kind)
        most = idle[:, self._axis] + self._freed[last + 1, self._axis]
        start = np.maximum(np.searchsorted(self._key, -most, "left"), last + 1)
        end = np.full(len(last), num)
        if least is not None:
            smallest = idle[:, self._axis] - least[self._axis]
            end = np.maximum(np.searchsorted(self._key, -smallest, "right"), start)
        number = end - start
        edges = np.append(0, np.cumsum(number))
        at = 0
        while at < len(last):
            to = max(at + 1, int(np.searchsorted(edges, edges[at] + _AT_ONCE, "right")) - 1)
            several = number[at:to]
            parent = np.repeat(np.arange(at, to), several)
            offset = np.arange(len(parent)) - np.repeat(edges[at:to] - edges[at], several)
            yield parent, start[parent] + offset
            at = to
