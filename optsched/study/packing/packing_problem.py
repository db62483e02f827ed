"""Vector bin packing: pack items with sizes in several dimensions into the fewest bins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Self, TypeAlias, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.problem.arrays import F64, I64, Bool

TOLERANCE: Final = 1e-6
"""Rounding error that is tolerated when dual prices or fractional numbers of bins are compared."""


@dataclass(frozen=True, eq=False, slots=True)
class Items:
    """Items of K types in D dimensions."""

    sizes: I64  # Size of an item of each type, shape (K, D).
    number: I64  # Number of items of each type, shape (K,).
    capacity: I64  # Capacity (D,) of a bin.

    @classmethod
    def from_problem(cls, problem: VectorPacking) -> Self:
        """Convert the item types of an instance to arrays, in the same order."""
        return cls(
            np.array([kind.sizes for kind in problem.kinds], np.int64),
            np.array([kind.number for kind in problem.kinds], np.int64),
            np.array(problem.capacity, np.int64),
        )

    @property
    def relative(self) -> F64:
        """Sizes of the item types as fractions of the bin capacity, shape (K, D)."""
        found: F64 = self.sizes / np.maximum(self.capacity, 1)
        return found

    @property
    def is_rigid(self) -> Bool:
        """Whether each item type has a negative size, which frees capacity in a bin; shape (K,)."""
        return np.asarray((self.sizes < 0).any(axis=1), np.bool_)

    def fit(self, bins: I64) -> Bool:
        """Return whether each of the bins (B, K) respects the capacity, shape (B,)."""
        return np.asarray((bins @ self.sizes <= self.capacity).all(axis=1), np.bool_)

    @property
    def most_in_a_bin(self) -> I64:
        """Upper bound on the number of items of each type in one bin, shape (K,)."""
        if (self.sizes < 0).any():
            return self.number
        alone = self.capacity // np.maximum(self.sizes, 1)
        limits = np.where(self.sizes > 0, alone, self.number[:, None])
        found: I64 = np.minimum(limits.min(axis=1), self.number)
        return found

    @property
    def total(self) -> I64:
        """Total size of all items, shape (D,)."""
        found: I64 = self.number @ self.sizes
        return found


def as_bin(counts: I64) -> Bin:
    """Return item counts (K,) as a `Bin`."""
    return tuple((k, int(counts[k])) for k in np.flatnonzero(counts).tolist())


Bin: TypeAlias = "tuple[tuple[int, int], ...]"
"""Tuples (item type, number of items); each type occurs at most once, with at least one item."""


@dataclass(frozen=True, slots=True)
class RepeatedBins(Sequence[Bin]):
    """The bins of a packing, in order; consecutive equal bins are stored once, with their number.

    Two packings are equal if their `copies` are equal.
    """

    copies: tuple[tuple[Bin, int], ...]  # (bin, number of copies), in packing order.

    def __len__(self) -> int:
        """Return the number of bins."""
        return sum(number for _, number in self.copies)

    def __iter__(self) -> Iterator[Bin]:
        """Yield the bins in order, one element per copy of a bin."""
        return chain.from_iterable(repeat(inside, number) for inside, number in self.copies)

    @overload
    def __getitem__(self, index: int) -> Bin: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Bin, ...]: ...
    def __getitem__(self, index: int | slice) -> Bin | tuple[Bin, ...]:
        """Return the bin at an index, or the bins in a slice."""
        if isinstance(index, slice):
            return tuple(self)[index]
        left = index + len(self) if index < 0 else index
        for inside, number in self.copies:
            if 0 <= left < number:
                return inside
            left -= number
        raise IndexError(index)


def copies_of(bins: Sequence[Bin]) -> Iterable[tuple[Bin, int]]:
    """Return tuples (bin, number of copies), in packing order."""
    return bins.copies if isinstance(bins, RepeatedBins) else ((inside, 1) for inside in bins)


@dataclass(frozen=True, slots=True)
class ItemKind:
    """A type of equal items, with their size in each dimension and their number.

    An item of negative size frees capacity for other items in the same bin.
    """

    sizes: tuple[int, ...]
    number: int


@dataclass(frozen=True, slots=True)
class VectorPacking:
    """An instance of vector bin packing."""

    name: str
    capacity: tuple[int, ...]  # Capacity of a bin in each dimension.
    kinds: tuple[ItemKind, ...]  # Item types; no two types have the same sizes.

    @property
    def num_items(self) -> int:
        """Number of items."""
        return sum(kind.number for kind in self.kinds)


def volume_bound(problem: VectorPacking) -> int:
    """Return a lower bound on the number of bins: ⌈total item size / bin capacity⌉.

    The bound is the maximum over all dimensions.
    """
    needed = (
        -(-sum(k.sizes[d] * k.number for k in problem.kinds) // capacity)
        for d, capacity in enumerate(problem.capacity)
        if capacity
    )
    return max(1, *needed)


def wrong_with_bins(problem: VectorPacking, bins: Sequence[Bin]) -> list[str]:
    """Return a message for each reason why `bins` is not a feasible packing of the instance."""
    wrong: list[str] = []
    packed: Counter[int] = Counter()
    each = copies_of(bins)
    number_of: Counter[Bin] = Counter()
    for inside, copies in each:
        number_of[inside] += copies
    for inside, copies in number_of.items():
        strange = [k for k, n in inside if not 0 <= k < len(problem.kinds) or n < 1]
        if strange:
            b = bins.index(inside)
            wrong.append(f"bin {b} holds item type {strange[0]}, which does not exist or is empty")
            continue
        packed.update({k: copies * n for k, n in inside})
        for d, most in enumerate(problem.capacity):
            filled = sum(problem.kinds[k].sizes[d] * n for k, n in inside)
            if filled > most:
                b = bins.index(inside)
                wrong.append(f"bin {b} holds {filled} in dimension {d}; its capacity is {most}")
    wrong.extend(
        f"{packed[k]} items of type {k} are packed, but there are {kind.number}"
        for k, kind in enumerate(problem.kinds)
        if packed[k] != kind.number
    )
    return wrong
