"""Define the metrics by which models are compared, and test paired differences of metrics.

A difference in a metric is significant only if it passes two tests:

- The simultaneous confidence interval (Student's t with Bonferroni correction) excludes zero.
- The sign-flip test rejects the null hypothesis that the two models of a pair are exchangeable. A
  sign flip changes the signs of all metric differences of one pair of replays together. The test
  statistic is the maximum over all metrics of the absolute standardised sum of differences. Taking
  this maximum corrects for the number of metrics (Westfall and Young, Resampling-Based
  Multiple Testing, 1993, §2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.special import stdtrit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


UNKNOWN: Final = "–"


def value_text(figure: Figure, value: float | None) -> str:
    """Format the value of a metric with its unit."""
    if value is None:
        return UNKNOWN
    if figure.unit == "s":
        return duration_text(value)
    if figure.unit == "part":
        return f"{100 * value:.2f} %"
    return f"{value:.2f}"


def signed_text(figure: Figure, value: float | None) -> str:
    """Format a difference with its sign, or without a sign if it rounds to zero."""
    if value is None:
        return UNKNOWN
    size = value_text(figure, abs(value))
    if size == value_text(figure, 0.0):
        return size
    return f"{'−' if value < 0 else '+'}{size}"


def duration_text(seconds: float) -> str:
    """Format a duration with about three digits: 0.9s, 12.5s, 1h30m, 3d04h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric by which models are compared."""

    name: str  # Column name in tables and files.
    path: tuple[str, ...]  # Path of keys to the metric in the JSON result of a replay.
    unit: str = ""  # Unit: `s`, `part` (a fraction of 1), `hours`, or empty if the metric has none.
    # Whether lower values are better; None if neither lower nor higher values are better.
    is_better_low: bool | None = True
    # True for wall-clock times, whose differences are never called better or worse.
    is_timed: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether a difference in this metric can be called better or worse."""
        return self.is_better_low is not None and not self.is_timed

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the metric's value in a replay, or None if it was not measured."""
        found: Any = metrics
        for step in self.path:
            found = None if found is None else found[step]
        return None if found is None else float(found)


FIGURES: Final = (
    Figure("finished", ("finished",), is_better_low=False),
    Figure("makespan", ("makespan_s",), "s"),
    *(
        Figure(f"{name} {statistic}", (key, statistic), "s")
        for name, key in (("JCT", "jct_s"), ("queueing", "queueing_s"))
        for statistic in ("mean", "p50", "p95", "p99")
    ),
    Figure("allocation", ("allocation",), "part", is_better_low=False),
    Figure("utilisation", ("utilisation",), "part", is_better_low=False),
    Figure("fragmentation", ("fragmentation",), "part"),
    Figure("DRF distance", ("drf_distance",), "part"),
    Figure("Jain index", ("jain",), is_better_low=False),
    Figure("ρ mean", ("ftf_mean",)),
    Figure("ρ worst", ("ftf_worst",)),
    Figure("unfair", ("ftf_unfair",), "part"),
    Figure("preemptions", ("preemptions",)),
    Figure("lost", ("wasted_gpu_hours",), "hours"),
    Figure("topology tier", ("topology_tier",)),
    Figure("SLA misses", ("sla_misses",)),
    Figure("sessions", ("sessions",), is_better_low=None),
    Figure("session mean", ("session_s", "mean"), "s", is_timed=True),
    Figure("session p99", ("session_s", "p99"), "s", is_timed=True),
    Figure("gap", ("gap",), "part"),
)

SHOWN: Final = (
    *("finished", "JCT mean", "JCT p95", "queueing mean", "makespan", "allocation"),
    *("fragmentation", "DRF distance", "ρ worst", "preemptions", "lost"),
)
"""Names of the metrics that are printed to the terminal."""


FLIPS: Final = 4_000
"""Number of random sign flips that are drawn if there are too many pairs to enumerate all flips."""
CONFIDENCE: Final = 0.95
_ALL_FLIPS_UP_TO: Final = 13
_ROUNDING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences, with its confidence interval and p-value."""

    mean: float
    # Bounds of the simultaneous confidence interval; None if there are fewer pairs than
    # `least_pairs`.
    low: float | None
    high: float | None
    pairs: int  # Number of pairs in which the metric was measured.
    # The p-value of the sign-flip test, corrected for the number of metrics and models; None if
    # there are fewer pairs than `least_pairs`.
    p_value: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero and the sign-flip test rejects its null hypothesis."""
        if self.low is None or self.high is None or self.p_value is None:
            return False
        return self.low * self.high > 0 and self.p_value <= 1 - CONFIDENCE


def least_pairs(num_models: int = 1) -> int:
    """Return the fewest pairs of replays with which the sign-flip test can reach significance.

    `num_models` is the number of models that are compared with the first model in the comparison.
    The minimum is 6 pairs for one model and 7 pairs for two or three models.
    """
    pairs = 1
    while 2.0 ** (1 - pairs) * num_models > 1 - CONFIDENCE:
        pairs += 1
    return pairs


def paired_differences(
    differences: Sequence[Sequence[float | None]], num_models: int = 1, seed: int = 0
) -> list[Difference | None]:
    """Return mean, interval and corrected p-value per metric; None for unmeasured metrics.

    `differences` has one row per metric and one column per pair of replays. Each difference is the
    metric's value under the compared model minus its value under the first model, or None if either
    value was not measured. `num_models` is the number of models that are compared with the first
    model. The family-wise error rate over all metrics and models is at most 5 %. `seed` determines
    which sign flips are drawn, and thus the p-values.
    """
    if not differences:
        return []
    table = np.array(
        [[np.nan if d is None else d for d in row] for row in differences], dtype=np.float64
    ).reshape(len(differences), -1)
    number = (~np.isnan(table)).sum(axis=1)
    known = np.nan_to_num(table, nan=0.0)
    is_tested = (number >= least_pairs(num_models)) & known.any(axis=1)
    p_values = np.ones(len(table))
    if is_tested.any():
        # A metric's p-value is the fraction of sign flips for which the maximum of the absolute
        # standardised sums of all metrics is at least the metric's own observed sum.
        tested, counts = known[is_tested], number[is_tested]
        scaled = tested / np.sqrt(counts * (tested**2).sum(axis=1))[:, None]
        greatest = np.abs(_flips(known.shape[1], seed) @ scaled.T).max(axis=1)
        seen = np.abs(scaled.sum(axis=1))
        p_values[is_tested] = (greatest[:, None] >= seen[None, :] - _ROUNDING).mean(axis=0)
    p_values = np.minimum(p_values * num_models, 1.0)
    num_claims = max(int(is_tested.sum()), 1) * num_models
    means = known.sum(axis=1) / np.maximum(number, 1)
    num_pairs = np.maximum(number, 2)
    is_known = ~np.isnan(table)
    apart = np.where(is_known, table - means[:, None], 0.0)
    spread = np.sqrt((apart**2).sum(axis=1) / (num_pairs - 1))
    # If all differences are equal, the standard deviation is zero; rounding errors could make it
    # positive.
    most = np.where(is_known, table, -np.inf).max(axis=1, initial=-np.inf)
    least = np.where(is_known, table, np.inf).min(axis=1, initial=np.inf)
    largest = np.abs(np.where(is_known, table, 0.0)).max(axis=1, initial=0.0)
    spread[most - least <= _ROUNDING * largest] = 0.0
    quantile = stdtrit(num_pairs - 1, 1 - (1 - CONFIDENCE) / 2 / num_claims)
    half: NDArray[np.float64] = quantile * spread / np.sqrt(num_pairs)
    found: list[Difference | None] = []
    for mean, width, pairs, p_value in zip(
        means.tolist(), half.tolist(), number.tolist(), p_values.tolist(), strict=True
    ):
        if not pairs:
            found.append(None)
        elif pairs < least_pairs(num_models):
            found.append(Difference(mean, None, None, pairs, None))
        else:
            found.append(Difference(mean, mean - width, mean + width, pairs, p_value))
    return found


@lru_cache(maxsize=4)
def _flips(pairs: int, seed: int) -> NDArray[np.float64]:
    """Return a matrix of signs ±1, with one row per sign flip and one column per pair."""
    if pairs <= _ALL_FLIPS_UP_TO:
        # Fix the first sign, because flipping all signs does not change the absolute value of a
        # sum.
        bits = np.arange(2 ** (pairs - 1))[:, None] >> np.arange(pairs)[None, :] & 1
        return (1.0 - 2.0 * bits[:, ::-1]).astype(np.float64)
    drawn = np.random.default_rng(seed).integers(2, size=(FLIPS, pairs))
    # Include the observed differences (all signs +1) as one of the flips; otherwise a p-value could
    # be zero.
    found: NDArray[np.float64] = np.vstack([np.ones(pairs), 1.0 - 2.0 * drawn])
    return found
