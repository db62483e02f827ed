"""Print the progress, plans and model comparisons of `optsched solve`."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.table import Table
from rich.text import Text

from optsched.cli.base.console import print_text
from optsched.cluster.decisions import PPM, Allocate, Evict, LevelStatus, Nominate, relative_gap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from optsched.cluster.decisions import Certificate, Plan, Progress
    from optsched.cluster.reasons import Reason
    from optsched.study.comparison.plan_measures import PlanMeasures


MOST_ROWS = 50
_FEWEST_SHARES = 2
_COLOURS = {
    LevelStatus.OPTIMAL: "green",
    LevelStatus.FEASIBLE: "yellow",
    LevelStatus.BOUND_ONLY: "yellow",
    LevelStatus.SKIPPED: "dim",
}


def show_plan(console: Console, plan: Plan, most_rows: int = MOST_ROWS) -> None:
    """Print the placements, the certificate and the waiting gangs of a plan."""
    table = Table(title="placements", title_justify="left", box=None, pad_edge=False)
    table.add_column("gang")
    table.add_column("tasks", justify="right")
    table.add_column("nodes")
    rows: list[tuple[str, int, str]] = []
    for kind, mark in ((Allocate, ""), (Nominate, " (node nominated)")):
        nodes_of: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for action in plan.actions:
            if isinstance(action, kind):
                nodes_of[action.gang][action.node] += 1
        for gang, counts in nodes_of.items():
            where = ", ".join(f"{n} ×{c}" if c > 1 else n for n, c in sorted(counts.items()))
            rows.append((gang + mark, counts.total(), where))
    for gang, tasks, nodes in rows[:most_rows]:
        table.add_row(gang, str(tasks), nodes)
    console.print(table if rows else Text("nothing is placed", style="dim"))
    _print_omitted(console, len(rows) - most_rows, "gangs")
    _show_evictions(console, plan, most_rows)
    show_certificate(console, plan.certificate)
    if not plan.pending:
        return
    gangs_by_reason: defaultdict[Reason, list[str]] = defaultdict(list)
    for gang, reason in plan.pending.items():
        gangs_by_reason[reason].append(gang)
    pending = Table(title="pending", title_justify="left", box=None, pad_edge=False)
    pending.add_column("gang", overflow="fold")
    pending.add_column("reason")
    pending.add_column("in words", overflow="fold")
    for reason, gangs in list(gangs_by_reason.items())[:most_rows]:
        more = f" and {len(gangs) - 1:,} more" if len(gangs) > 1 else ""
        pending.add_row(f"{gangs[0]}{more}", reason.code, reason.message)
    console.print()
    console.print(pending)
    _print_omitted(console, len(gangs_by_reason) - most_rows, "reasons")


def _show_evictions(console: Console, plan: Plan, most_rows: int) -> None:
    victims: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for action in plan.actions:
        if isinstance(action, Evict):
            moves = f" → {action.to}" if action.to else ""
            cause = action.preemptor or action.reason
            by = f"{action.action} ({action.plugin})" if action.plugin else action.action
            victims[cause, by].append(action.task + moves)
    if not victims:
        return
    table = Table(title="evictions", title_justify="left", box=None, pad_edge=False)
    table.add_column("for")
    table.add_column("by")
    table.add_column("tasks", justify="right")
    table.add_column("who", overflow="fold")
    for (preemptor, by), tasks in list(victims.items())[:most_rows]:
        table.add_row(preemptor, by, str(len(tasks)), ", ".join(tasks))
    console.print()
    console.print(table)
    _print_omitted(console, len(victims) - most_rows, "gangs")


def show_certificate(console: Console, certificate: Certificate) -> None:
    """Print the certificate of a plan."""
    table = Table(title="certificate", title_justify="left", box=None, pad_edge=False)
    for heading in ("level", "unit"):
        table.add_column(heading)
    for heading in ("value", "bound", "gap"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for level in certificate.levels:
        direction = "≤" if level.sense == "max" else "≥"
        bound = "" if level.bound is None else f"{direction} {level.bound:,}"
        gap = "" if level.gap is None else f"{level.gap:,}"
        status = Text(level.status, style=_COLOURS[level.status])
        table.add_row(level.name, level.unit, f"{level.value:,}", bound, gap, status)
    console.print()
    console.print(table)
    console.print(f"{certificate.verdict} ({certificate.engine}, {certificate.seconds:.2f} s)")
    console.print(f"stopped: {certificate.stopped}", style="dim")
    for sentence in certificate.kept_idle:
        console.print(sentence, style="yellow")
    if len(certificate.shares) < _FEWEST_SHARES:
        return
    shares = Table(title="shares", title_justify="left", box=None, pad_edge=False)
    shares.add_column("queue")
    for heading in ("share", "ideal", "distance"):
        shares.add_column(heading, justify="right")
    for each in certificate.shares:
        parts = (
            _format_percent(each.share),
            _format_percent(each.ideal),
            _format_percent(each.distance, "+"),
        )
        shares.add_row(each.queue, *parts)
    console.print()
    console.print(shares)


def _format_percent(ppm: int, sign: str = "") -> str:
    permille = round(1000 * ppm / PPM)
    return f"{permille / 10:{sign}.1f}%"


def _print_omitted(console: Console, number: int, what: str) -> None:
    if number > 0:
        console.print(f"… and {number} more {what} (--all shows them)", style="dim")


BEYOND: Final = 10.0
"""Relative gaps of at least this value are printed as `above ...`."""


@contextmanager
def show_progress(
    console: Console, model: str, elapsed: Callable[[], float] | None, *, in_lines: bool
) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows progress on the console.

    Parameters
    ----------
    console, model
        The console to print to, and the name of the model.
    elapsed
        Function that returns the seconds since the start, or None to show the time of the latest
        progress report.
    in_lines
        True to print a line for each progress report. If `in_lines` is False, a terminal shows a
        status line, and other outputs get one line per minute.
    """
    if in_lines:
        yield lambda progress: print_text(console, f"{model}: {format_progress(progress)}", "dim")
        return
    if not console.is_terminal:
        status = console.status(f"deciding with {model}")
        yield lambda progress: status.update(f"{model}: {format_progress(progress)}")
        return
    line = _Line(model, elapsed)
    with Live(console=console, get_renderable=line.text, transient=True, refresh_per_second=4):
        yield line.update


class _Line:
    """A status line that shows the latest progress report."""

    def __init__(self, model: str, elapsed: Callable[[], float] | None) -> None:
        self._model, self._elapsed = model, elapsed
        self._last: Progress | None = None

    def update(self, progress: Progress) -> None:
        self._last = progress

    def text(self) -> Text:
        last = self._last
        if last is None:
            return Text(f"deciding with {self._model}")
        at_s = last.at_s if self._elapsed is None else self._elapsed()
        return Text(f"{self._model}: {format_progress(last, at_s)}")


def format_progress(progress: Progress, at_s: float | None = None) -> str:
    """Format a progress report: level, incumbent, bound, gap and elapsed seconds."""
    value, bound = progress.incumbent, progress.bound
    solve = {0: " (first search)", 1: ""}.get(progress.turn, f" ({progress.turn})")
    parts = [f"{progress.level}{solve}"]
    parts.append("no plan yet" if value is None else f"incumbent {value:,}")
    parts.append("no bound yet" if bound is None else f"bound {bound:,}")
    if value is not None and bound is not None:
        gap = relative_gap(value, bound)
        part = f"{100 * gap:.2f} %" if gap < BEYOND else f"above {100 * BEYOND:.0f} %"
        parts.append(f"gap {part}")
    return ", ".join([*parts, f"{progress.at_s if at_s is None else at_s:.2f} s"])


_UNKNOWN: Final = "–"


@dataclass(frozen=True, slots=True)
class _Row:
    """A table row: title, name of a PlanMeasures field, and whether its values are fractions."""

    title: str
    name: str
    is_part: bool = False


_ROWS: Final = (
    _Row("gangs started", "gangs"),
    _Row("pods placed", "pods"),
    _Row("pods only nominated", "nominated"),
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
    """Print the measures of each model's plan, with the differences from the first model's plan."""
    table = Table(title="models", title_justify="left", box=None, pad_edge=False)
    table.add_column("figure")
    for number, (name, _) in enumerate(measured):
        table.add_column(name, justify="right")
        if number:
            table.add_column("Δ", justify="right")
    for row in _ROWS:
        values = [getattr(measures, row.name) for _, measures in measured]
        if any(value is not None for value in values):
            cells = [_format_value(row, values[0])]
            for value in values[1:]:
                difference = _UNKNOWN
                if value is not None and values[0] is not None:
                    apart = value - values[0]
                    size = _format_value(row, abs(apart))
                    is_equal = size == _format_value(row, type(apart)(0))
                    difference = "=" if is_equal else f"{'−' if apart < 0 else '+'}{size}"
                cells += [_format_value(row, value), difference]
            table.add_row(row.title, *cells)
    console.print()
    console.print(table)


def _format_value(row: _Row, value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if row.is_part:
        return f"{100 * value:.1f} %" if value < BEYOND else f"> {100 * BEYOND:.0f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
