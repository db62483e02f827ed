"""Tables of the result of a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from optsched.study.comparison.compared_metrics import duration_text
from optsched.units import format_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console


def show_result(console: Console, result: Mapping[str, Any]) -> None:
    """Print the replay's settings and metrics."""
    trace, metrics = result["trace"], result["metrics"]
    console.print(
        f"{trace['name']}: {trace['jobs']} jobs on {trace['nodes']} nodes, "
        f"model {result['model']['name']}, session period "
        f"{format_duration_ms(result['parameters']['period_ms'])}",
        highlight=False,
    )
    if not result["complete"]:
        console.print(f"incomplete: ends at {format_duration_ms(result['ended_at_ms'])}")
    _show_spreads(console, metrics)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in _figures(metrics):
        table.add_row(name, value)
    console.print()
    console.print(table)


def _show_spreads(console: Console, metrics: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("of jobs")
    for heading in ("mean", "p50", "p95", "p99"):
        table.add_column(heading, justify="right")
    for name, key in (("completion time", "jct_s"), ("queueing delay", "queueing_s")):
        if metrics[key] is not None:
            table.add_row(
                name, *(duration_text(metrics[key][k]) for k in ("mean", "p50", "p95", "p99"))
            )
    if table.row_count:
        console.print()
        console.print(table)


def _figures(m: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "jobs finished", f"{m['finished']} of {m['jobs']}"
    if m["makespan_s"] is not None:
        yield "makespan", duration_text(m["makespan_s"])
    shares = (
        ("allocation", "allocation"),
        ("utilisation", "utilisation"),
        ("fragmentation of free GPUs", "fragmentation"),
        ("DRF distance", "drf_distance"),
        ("jobs treated unfairly (ρ > 1.1)", "ftf_unfair"),
        ("gap to the bounds", "gap"),
    )
    for name, key in shares:
        if m[key] is not None:
            yield name, f"{100 * m[key]:.2f} %"
    for name, key in (("Jain index", "jain"), ("ρ, mean", "ftf_mean"), ("ρ, worst", "ftf_worst")):
        if m[key] is not None:
            yield name, f"{m[key]:.3f}"
    yield "preemptions", str(m["preemptions"])
    yield "stopped by nodes", str(m["node_failures"])
    yield "GPU hours lost", f"{m['wasted_gpu_hours']:.2f}"
    if m["topology_tier"] is not None:
        yield "tier of a gang, mean", f"{m['topology_tier']:.2f}"
    yield "waits broken (SLA)", str(m["sla_misses"])
    yield "sessions", str(m["sessions"])
