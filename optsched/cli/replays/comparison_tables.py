"""Tables of a comparison of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table

from optsched.cli.base.console import print_text
from optsched.study.comparison.compared_metrics import (
    FIGURES,
    SHOWN,
    UNKNOWN,
    signed_text,
    value_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from optsched.study.comparison.compared_metrics import Figure
    from optsched.study.comparison.comparison_table import Comparison

_COLUMNS: Final = tuple(figure for figure in FIGURES if figure.name in SHOWN)
_NAMED: Final = 10


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print means by model and differences from the first model."""
    replays = {row.replay for row in comparison.rows}
    console.print(f"means over {_number(len(replays), 'replay')} of each model", highlight=False)
    if not comparison.is_complete:
        console.print("incomplete: not all cells were played", highlight=False)
    columns = [
        f for f in _COLUMNS if any(comparison.value(r, f) is not None for r in comparison.rows)
    ]
    console.print()
    console.print(_means_table(comparison, columns))
    for line in (*_unfinished(comparison), *_unfinished_reasons(comparison)):
        print_text(console, line, "")
    if len(comparison.models) < 2:
        return
    differences = _differences(comparison, columns)
    shown = "paired, 95 % intervals for all figures together"
    console.print()
    title = shown if differences.row_count else "nothing differs"
    console.print(f"against {comparison.models[0]}: {title}", highlight=False)
    if differences.row_count:
        console.print(differences)
        for line in comparison.reservations:
            console.print(line, highlight=False, soft_wrap=True)


def _unfinished(comparison: Comparison) -> Iterator[str]:
    """Return the jobs that times exclude, with the models under which they did not finish."""
    for model in comparison.models:
        missing = comparison.unfinished(model)
        if not missing:
            continue
        names = [
            name if len(comparison.common) == 1 else f"{name} (seed {seed})"
            for (_, seed), jobs in missing.items()
            for name in jobs
        ]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield (
            f"times leave out {_number(len(names), 'job')} that did not finish under {model}: "
            f"{', '.join(names[:_NAMED])}{more}"
        )


def _unfinished_reasons(comparison: Comparison) -> Iterator[str]:
    """Return why jobs did not finish, one sentence per model and reason."""
    for model in comparison.models:
        for each in comparison.reasons(model):
            jobs = _number(each.num_gangs, "job")
            yield f"{model}: {jobs} unfinished: {each.code}, as {each.example}: {each.message}"


def _means_table(comparison: Comparison, columns: list[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for figure in columns:
        table.add_column(figure.name, justify="right")
    for model in comparison.models:
        values = (comparison.mean_of_model(model, figure) for figure in columns)
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
            mean = signed_text(figure, found.mean)
            verdict = comparison.verdict(model, figure)
            table.add_row(model, figure.name, mean, *ends, str(found.pairs), verdict)
    return table


def _number(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
