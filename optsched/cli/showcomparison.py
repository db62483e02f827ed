"""Comparisons of models as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table

from optsched.study.comparison.figures import FIGURES, SHOWN
from optsched.study.durations import duration_text

if TYPE_CHECKING:
    from rich.console import Console

    from optsched.study.comparison.figures import Figure
    from optsched.study.comparison.table import Comparison

_UNKNOWN: Final = "–"
_COLUMNS: Final = tuple(figure for figure in FIGURES if figure.name in SHOWN)


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print means by model, and then what differs from the first model."""
    traces = {(row.trace, row.seed) for row in comparison.rows}
    console.print(f"means over {_number(len(traces), 'replay')} of each model", highlight=False)
    if not comparison.is_complete:
        console.print("incomplete: not all cells were played", highlight=False)
    columns = [f for f in _COLUMNS if any(row.value(f) is not None for row in comparison.rows)]
    console.print()
    console.print(_means(comparison, columns))
    if len(comparison.models) < 2:
        return
    differences = _differences(comparison, columns)
    told = "paired, 95 % interval" if differences.row_count else "nothing differs"
    console.print()
    console.print(f"against {comparison.models[0]}: {told}", highlight=False)
    if differences.row_count:
        console.print(differences)


def _means(comparison: Comparison, columns: list[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for figure in columns:
        table.add_column(figure.name, justify="right")
    for model in comparison.models:
        values = (comparison.mean(model, figure) for figure in columns)
        table.add_row(model, *map(_text, columns, values))
    return table


def _differences(comparison: Comparison, columns: list[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "figure"):
        table.add_column(heading)
    for heading in ("difference", "from", "to", "pairs"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for model in comparison.models[1:]:
        for figure in columns:
            found = comparison.difference(model, figure)
            if found is None:
                continue
            ends = (_signed(figure, found.low), _signed(figure, found.high))
            zero = _text(figure, 0.0)
            if {_signed(figure, found.mean), *ends} <= {zero, _UNKNOWN}:
                continue
            verdict = _verdict(figure, found.mean) if found.is_clear else ""
            number = str(found.pairs)
            table.add_row(model, figure.name, _signed(figure, found.mean), *ends, number, verdict)
    return table


def _number(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _verdict(figure: Figure, mean: float) -> str:
    if figure.is_better_low is None:
        return ""
    return "better" if (mean < 0) == figure.is_better_low else "worse"


def _text(figure: Figure, value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if figure.unit == "s":
        return duration_text(value)
    if figure.unit == "part":
        return f"{100 * value:.2f} %"
    return f"{value:.2f}"


def _signed(figure: Figure, value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    size = _text(figure, abs(value))
    if size == _text(figure, 0.0):
        return size
    return f"{'−' if value < 0 else '+'}{size}"
