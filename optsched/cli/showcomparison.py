"""Comparisons of models as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table

from optsched.study.comparison.figures import FIGURES, SHOWN
from optsched.study.comparison.wording import UNKNOWN, signed_text, value_text, verdict

if TYPE_CHECKING:
    from rich.console import Console

    from optsched.study.comparison.figures import Figure
    from optsched.study.comparison.table import Comparison

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
        table.add_row(model, *map(value_text, columns, values))
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
            ends = (signed_text(figure, found.low), signed_text(figure, found.high))
            zero = value_text(figure, 0.0)
            if {signed_text(figure, found.mean), *ends} <= {zero, UNKNOWN}:
                continue
            told = verdict(figure, found.mean) if found.is_clear else ""
            number = str(found.pairs)
            mean = signed_text(figure, found.mean)
            table.add_row(model, figure.name, mean, *ends, number, told)
    return table


def _number(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
