"""Fill bins one after another by greedy scores; many score functions are evaluated in parallel.

The next item is the one whose size vector has the largest dot product with the bin's remaining
capacity, or is nearest to it. Dimensions are weighted by their demand (Panigrahy, Talwar, Uyeda and
Wieder, "Heuristics for vector bin packing", 2011).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64
    from optsched.study.packing.packing_problem import Items

Copies: TypeAlias = "tuple[I64, int]"
"""The number of items (K,) of each type in a bin, and the number of copies of the bin."""

_NOISE: Final = 0.1
_STEPS: Final = 64


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """The parameters of V score functions; the item with the highest score is packed next."""

    weight: F64  # Weights (V, D) of the dimensions.
    # Method (V,): 0 for the dot product with the remaining capacity, 1 for the distance to it.
    nearness: F64
    worth: F64  # Constant (V, K) that is added to the score of each item type.


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

    While enough items remain, a filled bin is copied, because the next bin would be filled with the
    same items.
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
    """Fill one bin per score function; return the number (V, K) of items of each type in it."""
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
    """Return the number (V,) of equal items that the next step adds to each bin.

    The number is 1 if few items fit. If hundreds of items fit, one step adds several items, because
    the scores hardly change between two items.
    """
    sizes = items.sizes[kind]
    fitting = np.where(sizes > 0, idle // np.maximum(sizes, 1), left[:, None]).min(axis=1)
    found: I64 = np.maximum(np.minimum(fitting, left) // _STEPS, 1)
    return found


def _best(items: Items, relative: F64, scores: Scores, ways: I64, left: I64, idle: I64) -> I64:
    """Return for each bin the item type (V,) with the highest score, or -1 if no item fits."""
    fits = (items.sizes <= idle[:, None, :]).all(axis=2) & (left > 0)
    weight, rest = scores.weight[ways], idle / np.maximum(items.capacity, 1)
    dot = (weight * rest) @ relative.T
    length = weight @ (relative**2).T
    value = 2 * dot - scores.nearness[ways, None] * length + scores.worth[ways]
    value = np.where(fits, value, -np.inf)
    best: I64 = value.argmax(axis=1)
    return np.where(fits.any(axis=1), best, -1)
