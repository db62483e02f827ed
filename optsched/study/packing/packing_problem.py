"""Vector bin packing: as few equal bins as possible for items with several sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import F64, I64, Bool


@dataclass(frozen=True, eq=False, slots=True)
class Items:
    """K kinds of items in D dimensions."""

    sizes: I64  # (K, D)
    number: I64  # (K,) how many there are
    capacity: I64  # (D,) of a bin

    @classmethod
    def from_problem(cls, problem: VectorPacking) -> Self:
        """The kinds of an instance, in its order."""
        return cls(
            np.array([kind.sizes for kind in problem.kinds], np.int64),
            np.array([kind.number for kind in problem.kinds], np.int64),
            np.array(problem.capacity, np.int64),
        )

    @property
    def relative(self) -> F64:
        """(K, D) sizes as parts of the capacity."""
        found: F64 = self.sizes / np.maximum(self.capacity, 1)
        return found

    @property
    def is_rigid(self) -> Bool:
        """(K,) kinds that make room: without one of them its bin may be too full."""
        return np.asarray((self.sizes < 0).any(axis=1), np.bool_)

    def fit(self, bins: I64) -> Bool:
        """(B,) which of some bins (B, K) hold no more than they can."""
        return np.asarray((bins @ self.sizes <= self.capacity).all(axis=1), np.bool_)

    @property
    def most_in_a_bin(self) -> I64:
        """(K,) how many items of each kind are of use to one bin."""
        if (self.sizes < 0).any():
            return self.number
        alone = self.capacity // np.maximum(self.sizes, 1)
        limits = np.where(self.sizes > 0, alone, self.number[:, None])
        found: I64 = np.minimum(limits.min(axis=1), self.number)
        return found

    @property
    def total(self) -> I64:
        """(D,) sizes of all items together."""
        found: I64 = self.number @ self.sizes
        return found


def as_bin(counts: I64) -> Bin:
    """A bin of counts (K,)."""
    return tuple((k, int(counts[k])) for k in np.flatnonzero(counts).tolist())


Bin: TypeAlias = "tuple[tuple[int, int], ...]"
"""(kind of item, how many) of its content; every kind once, none of no item."""


@dataclass(frozen=True, slots=True)
class ItemKind:
    """Items alike: their sizes by dimension, and how many there are.

    An item of negative size makes room for others in the same bin.
    """

    sizes: tuple[int, ...]
    number: int


@dataclass(frozen=True, slots=True)
class VectorPacking:
    """An instance."""

    name: str
    capacity: tuple[int, ...]  # of each bin, by dimension
    kinds: tuple[ItemKind, ...]  # no two with the same sizes

    @property
    def num_items(self) -> int:
        """How many items there are."""
        return sum(kind.number for kind in self.kinds)


def volume_bound(problem: VectorPacking) -> int:
    """Bins needed by the fullest dimension at least, and by anything at all one."""
    totals = (sum(k.sizes[d] * k.number for k in problem.kinds) for d in _dimensions(problem))
    needed = (-(-total // c) for total, c in zip(totals, problem.capacity, strict=True) if c)
    return max(1, *needed)


def wrong_with_bins(problem: VectorPacking, bins: Sequence[Bin]) -> list[str]:
    """Every way in which bins are no packing of an instance, one sentence each."""
    wrong: list[str] = []
    packed: Counter[int] = Counter()
    for inside, copies in Counter(bins).items():
        strange = [k for k, n in inside if not 0 <= k < len(problem.kinds) or n < 1]
        if strange:
            b = bins.index(inside)
            wrong.append(f"bin {b} holds {strange[0]}, which is no kind of item, or none of it")
            continue
        packed.update({k: copies * n for k, n in inside})
        for d in _dimensions(problem):
            filled = sum(problem.kinds[k].sizes[d] * n for k, n in inside)
            if filled > problem.capacity[d]:
                most, b = problem.capacity[d], bins.index(inside)
                wrong.append(f"bin {b} has {most} in dimension {d}; {filled} are in")
    wrong.extend(
        f"{packed[k]} of kind {k} are packed; there are {kind.number}"
        for k, kind in enumerate(problem.kinds)
        if packed[k] != kind.number
    )
    return wrong


def _dimensions(problem: VectorPacking) -> range:
    return range(len(problem.capacity))
