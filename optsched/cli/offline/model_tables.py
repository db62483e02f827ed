"""Tables that compare the plans of several models for one instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.table import Table

from optsched.cli.offline.progress_display import BEYOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from optsched.study.comparison.plan_measures import PlanMeasures

_UNKNOWN: Final = "–"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table: a measure, its unit, and whether it is a fraction."""

    title: str
    name: str
    is_part: bool = False


_ROWS: Final = (
    _Row("gangs started", "gangs"),
    _Row("pods placed", "pods"),
    _Row("pods with room kept", "nominated"),
    _Row("gangs that wait", "waiting"),
    _Row("victims", "victims"),
    _Row("pods moved", "moved"),
    _Row("nodes in use", "nodes"),
    _Row("allocation", "allocation", is_part=True),
    _Row("fragmentation", "fragmentation", is_part=True),
    _Row("Jain index", "jain"),
    _Row("largest share", "largest_share", is_part=True),
    _Row("least share", "least_share", is_part=True),
    _Row("topology tier", "topology_tier"),
    _Row("cross-leaf pairs", "cross_leaf_pairs"),
    _Row("greatest gap", "gap", is_part=True),
)


def show_models(console: Console, measured: Sequence[tuple[str, PlanMeasures]]) -> None:
    """Print measures by model with differences from the first model."""
    table = Table(title="models", title_justify="left", box=None, pad_edge=False)
    table.add_column("figure")
    for number, (name, _) in enumerate(measured):
        table.add_column(name, justify="right")
        if number:
            table.add_column("Δ", justify="right")
    base = measured[0][1]
    for row in _ROWS:
        values = [getattr(measures, row.name) for _, measures in measured]
        if any(value is not None for value in values):
            table.add_row(row.title, *_cells(row, getattr(base, row.name), values))
    console.print()
    console.print(table)


def _cells(row: _Row, base: float | None, values: Sequence[float | None]) -> list[str]:
    cells = [_text(row, base)]
    for value in values[1:]:
        apart = None if value is None or base is None else value - base
        cells += [_text(row, value), _signed(row, apart)]
    return cells


def _text(row: _Row, value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if row.is_part:
        return f"{100 * value:.1f} %" if value < BEYOND else f"> {100 * BEYOND:.0f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _signed(row: _Row, apart: float | None) -> str:
    if apart is None:
        return _UNKNOWN
    size = _text(row, abs(apart))
    if size == _text(row, type(apart)(0)):
        return "="
    return f"{'−' if apart < 0 else '+'}{size}"
