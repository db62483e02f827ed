"""Differences of figures between models, paired by trace and seed, with bootstrap intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean of paired differences.

    Attributes
    ----------
    low, high
        Ends of the interval; None with fewer than two pairs, which tell nothing about chance.
    pairs
        How many there were.

    """

    mean: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves no doubt about the sign."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], seed: int = 0
) -> Difference | None:
    """The mean of `values[i] − baseline[i]` and its percentile bootstrap interval.

    Pairs are drawn with replacement (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    chapter 13); the same seed gives the same interval. None without pairs.

    Raises
    ------
    ValueError
        The two are not of one length.

    """
    apart = [a - b for a, b in zip(values, baseline, strict=True)]
    if not apart:
        return None
    found = np.array(apart)
    mean = float(found.mean())
    if len(found) == 1:
        return Difference(mean, None, None, 1)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(found), size=(RESAMPLES, len(found)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found[drawn].mean(axis=1), [tail, 1 - tail])
    return Difference(mean, float(low), float(high), len(found))
