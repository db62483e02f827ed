"""Tables of a plan: placements by gang, the certificate, waiting gangs with reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from optsched.cluster.decisions import PPM, Allocate, Evict, LevelStatus, Nominate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from optsched.cluster.decisions import Certificate, LevelResult, Plan
    from optsched.cluster.reasons import Reason

MOST_ROWS = 50
_FEWEST_SHARES = 2
_COLOURS = {
    LevelStatus.OPTIMAL: "green",
    LevelStatus.FEASIBLE: "yellow",
    LevelStatus.BOUND_ONLY: "yellow",
    LevelStatus.SKIPPED: "dim",
}


def show_plan(console: Console, plan: Plan, most_rows: int = MOST_ROWS) -> None:
    """Print placements, certificate and waiting gangs of a plan."""
    table = Table(title="placements", title_justify="left", box=None, pad_edge=False)
    table.add_column("gang")
    table.add_column("tasks", justify="right")
    table.add_column("nodes")
    rows = list(_placements(plan))
    for gang, tasks, nodes in rows[:most_rows]:
        table.add_row(gang, str(tasks), nodes)
    console.print(table if rows else Text("nothing is placed", style="dim"))
    _print_omitted(console, len(rows) - most_rows, "gangs")
    _show_evictions(console, plan, most_rows)
    show_certificate(console, plan.certificate)
    _show_pending(console, plan, most_rows)


def _placements(plan: Plan) -> Iterator[tuple[str, int, str]]:
    """Yield gang, tasks and nodes of every placement; waiting gangs are marked."""
    for kind, mark in ((Allocate, ""), (Nominate, " (waits for room)")):
        nodes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for action in plan.actions:
            if isinstance(action, kind):
                nodes[action.gang][action.node] += 1
        for gang, counts in nodes.items():
            where = ", ".join(f"{n} ×{c}" if c > 1 else n for n, c in sorted(counts.items()))
            yield gang + mark, counts.total(), where


def _show_evictions(console: Console, plan: Plan, most_rows: int) -> None:
    victims: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for action in plan.actions:
        if isinstance(action, Evict):
            moves = f" → {action.to}" if action.to else ""
            whose = action.preemptor or action.reason
            by = f"{action.action} ({action.plugin})" if action.plugin else action.action
            victims[whose, by].append(action.task + moves)
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
        table.add_row(*_level(level), Text(level.status, style=_COLOURS[level.status]))
    console.print()
    console.print(table)
    console.print(f"{certificate.verdict} ({certificate.engine}, {certificate.seconds:.2f} s)")
    console.print(f"stopped: {certificate.stopped}", style="dim")
    for sentence in certificate.kept_idle:
        console.print(sentence, style="yellow")
    _show_shares(console, certificate)


def _show_shares(console: Console, certificate: Certificate) -> None:
    """Print each queue's share and its ideal share, if there are several queues."""
    if len(certificate.shares) < _FEWEST_SHARES:
        return
    table = Table(title="shares", title_justify="left", box=None, pad_edge=False)
    table.add_column("queue")
    for heading in ("share", "ideal", "distance"):
        table.add_column(heading, justify="right")
    for each in certificate.shares:
        parts = (_percent(each.share), _percent(each.ideal), _percent(each.distance, "+"))
        table.add_row(each.queue, *parts)
    console.print()
    console.print(table)


def _percent(ppm: int, sign: str = "") -> str:
    permille = round(1000 * ppm / PPM)
    return f"{permille / 10:{sign}.1f}%"


def _level(level: LevelResult) -> tuple[str, str, str, str, str]:
    bound = "" if level.bound is None else f"{level.bound:,}"
    gap = "" if level.gap is None else f"{level.gap:,}"
    direction = "≤" if level.sense == "max" else "≥"
    return level.name, level.unit, f"{level.value:,}", f"{direction} {bound}" if bound else "", gap


def _show_pending(console: Console, plan: Plan, most_rows: int) -> None:
    if not plan.pending:
        return
    alike: defaultdict[Reason, list[str]] = defaultdict(list)
    for gang, reason in plan.pending.items():
        alike[reason].append(gang)
    table = Table(title="pending", title_justify="left", box=None, pad_edge=False)
    table.add_column("gang", overflow="fold")
    table.add_column("reason")
    table.add_column("in words", overflow="fold")
    for reason, gangs in list(alike.items())[:most_rows]:
        more = f" and {len(gangs) - 1:,} more" if len(gangs) > 1 else ""
        table.add_row(f"{gangs[0]}{more}", reason.code, reason.message)
    console.print()
    console.print(table)
    _print_omitted(console, len(alike) - most_rows, "reasons")


def _print_omitted(console: Console, number: int, what: str) -> None:
    if number > 0:
        console.print(f"… and {number} more {what} (--all shows them)", style="dim")
