"""Numbers by chance that are the same in every version of Python and NumPy.

Only `random.Random.random` is guaranteed to give the same sequence for a seed forever (library
reference of `random`, "Notes on Reproducibility"); everything else here is made of it.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Value = TypeVar("Value")


class Chance:
    """Draws from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311  for instances, not for secrets

    def int_below(self, number: int) -> int:
        """A whole number from 0 to one less than a number."""
        return int(self._random.random() * number)

    def int_between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + self.int_below(high - low + 1)

    def pick(self, values: Sequence[Value], parts: Sequence[int] = ()) -> Value:
        """One of some values, each as often as its part says; alike without parts."""
        weights = parts or [1] * len(values)
        at = self.int_below(sum(weights))
        for value, weight in zip(values, weights, strict=True):
            if at < weight:
                return value
            at -= weight
        raise ValueError("there is nothing to pick from")

    def happens(self, percent: int) -> bool:
        """True with this percentage."""
        return self.int_below(100) < percent
