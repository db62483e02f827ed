"""Text of metrics and their differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.study.comparison.duration_text import duration_text

if TYPE_CHECKING:
    from optsched.study.comparison.compared_metrics import Figure

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
