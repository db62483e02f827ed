"""The figures of a replay as tables, each with its explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.study.reports.number_text import UNKNOWN, percent, plain, seconds
from optsched.study.reports.page import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PERCENTILES: Final = ("mean", "p50", "p95", "p99")
_SPREADS: Final = (
    ("completion time", "jct_s", "end − arrival of gangs that finished"),
    ("queueing delay", "queueing_s", "from arrival until a gang first has its minimum"),
    ("session", "session_s", "wall time of a session"),
)
_PARTS: Final = (
    ("allocation", "allocation", "GPU time held, as a part of what nodes that were up had"),
    ("utilisation", "utilisation", "the same of gangs that ran, without work that was lost"),
    ("fragmentation", "fragmentation", "of the free GPUs, what a typical task could not take"),
    ("DRF distance", "drf_distance", "greatest minus least weighted dominant share of who waits"),
    ("treated unfairly", "ftf_unfair", "gangs with ρ above 1.1"),
    ("gap", "gap", "distance of values of sessions from their bounds"),
)  # fmt: skip
_NUMBERS: Final = (
    ("Jain index", "jain", "of weighted dominant shares over time; 1 is equal"),
    ("ρ, mean", "ftf_mean", "finish-time fairness: completion time by that of a fair cluster"),
    ("ρ, worst", "ftf_worst", "the greatest of all gangs"),
    ("preemptions", "preemptions", "how often a running gang was stopped for others"),
    ("stopped by nodes", "node_failures", "how often a node that failed stopped a gang"),
    ("GPU hours lost", "wasted_gpu_hours", "work that had to be done again"),
    ("tier of a gang", "topology_tier", "lowest tier of the network that holds it, mean of starts"),
    ("pairs across leaves", "cross_leaf_pairs", "pairs of tasks far apart, mean over starts"),
    ("SLA misses", "sla_misses", "gangs that waited longer than they may"),
    ("sessions", "sessions", "that were held"),
)  # fmt: skip


def figure_tables(metrics: Mapping[str, Any]) -> list[Table]:
    """Times with their percentiles, and the other figures; empty where nothing was measured."""
    rows = [
        (
            Cell(name),
            *(Cell(seconds(metrics[key][p]), metrics[key][p]) for p in _PERCENTILES),
            Cell(meaning),
        )
        for name, key, meaning in _SPREADS
        if metrics.get(key) is not None
    ]
    return [
        _table("Times", ("of", *_PERCENTILES, "meaning"), rows, _PERCENTILES),
        _figure_table(metrics),
    ]


def _figure_table(metrics: Mapping[str, Any]) -> Table:
    done = f"{plain(metrics['finished'])} of {plain(metrics['jobs'])}"
    rows = [
        _row("finished", done, "gangs that have done their work"),
        _row("makespan", seconds(metrics["makespan_s"]), "from the first arrival to the last end"),
    ]
    rows += [_row(name, percent(metrics.get(key), 2), said) for name, key, said in _PARTS]
    rows += [_row(name, plain(metrics.get(key), 3), said) for name, key, said in _NUMBERS]
    kept = [row for row in rows if row[1].text != UNKNOWN]
    return _table("Figures", ("figure", "value", "meaning"), kept, ("value",))


def _row(name: str, value: str, meaning: str) -> tuple[Cell, ...]:
    return (Cell(name), Cell(value), Cell(meaning))


def _table(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]], numbers: Sequence[str]
) -> Table:
    return Table(caption, headings, rows, frozenset(numbers), is_sortable=False)
