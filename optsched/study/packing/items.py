"""An instance of vector bin packing as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.packing.packing_problem import Bin, VectorPacking


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
