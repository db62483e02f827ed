"""The metrics by which models are compared, and how to read them from results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN: Final = "–"


def verdict(figure: Figure, mean: float) -> str:
    """Return `better` or `worse`; empty for metrics without a direction."""
    if figure.is_better_low is None:
        return ""
    return "better" if (mean < 0) == figure.is_better_low else "worse"


def value_text(figure: Figure, value: float | None) -> str:
    """Return a value with its unit."""
    if value is None:
        return UNKNOWN
    if figure.unit == "s":
        return duration_text(value)
    if figure.unit == "part":
        return f"{100 * value:.2f} %"
    return f"{value:.2f}"


def signed_text(figure: Figure, value: float | None) -> str:
    """Return a difference with its sign, unless it rounds to zero."""
    if value is None:
        return UNKNOWN
    size = value_text(figure, abs(value))
    if size == value_text(figure, 0.0):
        return size
    return f"{'−' if value < 0 else '+'}{size}"


def duration_text(seconds: float) -> str:
    """Return a duration with about three digits: 0.9s, 12.5s, 1h30m, 3d04h."""
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
    """One metric of `Metrics`."""

    name: str  # its column in tables and files
    path: tuple[str, ...]  # where it is in the figures of a result
    unit: str = ""  # `s`, `part` of one, `hours`, or empty for a plain number
    is_better_low: bool | None = True  # whether less is better; None where neither is
    # Whether the clock of the machine measures it: no claim rests on such figures
    is_timed: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether a difference can be called better or worse."""
        return self.is_better_low is not None and not self.is_timed

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the metric of a replay; None if nothing was measured."""
        found: Any = metrics
        for step in self.path:
            found = None if found is None else found[step]
        return None if found is None else float(found)


def _spread(name: str, key: str) -> tuple[Figure, ...]:
    return tuple(Figure(f"{name} {k}", (key, k), "s") for k in ("mean", "p50", "p95", "p99"))


FIGURES: Final = (
    Figure("finished", ("finished",), is_better_low=False),
    Figure("makespan", ("makespan_s",), "s"),
    *_spread("JCT", "jct_s"),
    *_spread("queueing", "queueing_s"),
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
"""Those that are worth a column on a screen."""
