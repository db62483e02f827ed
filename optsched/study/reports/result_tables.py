"""Report tables: GPU hours, replay metrics, model definitions and model differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.policy.policy import Admission, SolverKind
from optsched.study.chargeback import HOUR_US
from optsched.study.comparison.model_definitions import flatten_definition
from optsched.study.reports.number_text import UNKNOWN, percent, plain, seconds
from optsched.study.reports.page import MOST_ROWS, Cell, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.study.chargeback import Amounts, Chargeback


def usage_section(found: Chargeback) -> Section:
    """Return a section with tables of GPU hours by queue, by user, and by queue and user."""
    queues = [([name], amounts) for name, amounts in found.by_queue.items()]
    users = [([name], amounts) for name, amounts in found.by_user.items()]
    tables = [_amounts_table("By queue", ("queue",), queues, found.total)]
    if len(users) > 1:
        tables.append(_amounts_table("By user", ("user",), users, found.total))
    if len(queues) > 1 and len(users) > 1:
        both = [([c.queue, c.user], c.amounts) for c in found.charges]
        tables.append(_amounts_table("By queue and user", ("queue", "user"), both, found.total))
    note = (
        "GPU hours count from when a pod is bound until it leaves its node. They are idle before "
        "the gang has its minimum number of pods, and lost if the work must be repeated."
    )
    return Section("usage", "GPU hours", tables, [note])


def _amounts_table(
    caption: str, heads: tuple[str, ...], rows: Sequence[tuple[list[str], Amounts]], whole: Amounts
) -> Table:
    """Return a table of GPU hours, sorted by descending usage."""
    largest = sorted(rows, key=lambda row: (-row[1].held, row[0]))
    note = ""
    if len(largest) > MOST_ROWS:
        note = (
            f"The {plain(MOST_ROWS)} of {plain(len(largest))} rows with the most GPU hours "
            "are shown."
        )
    cells = []
    for names, found in largest[:MOST_ROWS]:
        part = found.held / whole.held if whole.held else 0.0
        amounts = (found.held, found.idle, found.evicted, found.failed, found.cpu_held)
        held, *others = (Cell(plain(us / HOUR_US), us) for us in amounts)
        share = Cell(percent(part), round(part, 6))
        words = (Cell(name or UNKNOWN) for name in names)
        cells.append((*words, Cell(plain(found.jobs), found.jobs), held, share, *others))
    columns = ("gangs", "GPU hours", "share of all", "idle", "lost to evictions",
               "lost to failures", "CPU hours")  # fmt: skip
    return Table(caption, (*heads, *columns), cells, columns, note)


_PERCENTILES: Final = ("mean", "p50", "p95", "p99")
_SPREADS: Final = (
    ("completion time", "jct_s", "end − arrival, for gangs that finished"),
    ("queueing delay", "queueing_s", "from arrival until a gang first has its minimum of pods"),
    ("session", "session_s", "wall time of a session"),
)
_PARTS: Final = (
    ("allocation", "allocation", "GPU time held, as a fraction of the GPU time of ready nodes"),
    ("utilisation", "utilisation", "like allocation, but for running gangs and without lost work"),
    ("fragmentation", "fragmentation", "fraction of idle GPUs that a typical task could not use"),
    ("DRF distance", "drf_distance", "largest − least weighted dominant share of waiting queues"),
    ("treated unfairly", "ftf_unfair", "gangs with ρ above 1.1"),
    ("gap", "gap", "relative distance of objective values from their bounds"),
)  # fmt: skip
_NUMBERS: Final = (
    ("Jain index", "jain", "fairness of weighted dominant shares over time; 1 means equal"),
    ("ρ, mean", "ftf_mean", "finish-time fairness: completion time relative to a fair cluster"),
    ("ρ, worst", "ftf_worst", "largest finish-time fairness of a gang"),
    ("preemptions", "preemptions", "how often a running gang was stopped for another gang"),
    ("stopped by nodes", "node_failures", "how often a node failure stopped a gang"),
    ("GPU hours lost", "wasted_gpu_hours", "work that had to be repeated"),
    ("tier of a gang", "topology_tier", "lowest tier that contains the gang, mean over starts"),
    ("pairs across leaves", "cross_leaf_pairs", "task pairs in different leaves, mean over starts"),
    ("SLA misses", "sla_misses", "gangs that waited longer than their SLA"),
    ("sessions", "sessions", "number of scheduling sessions"),
)  # fmt: skip


def figure_tables(metrics: Mapping[str, Any]) -> list[Table]:
    """Return a table with percentiles of times, and a table with the other metrics."""
    spreads = []
    for name, key, meaning in _SPREADS:
        if (found := metrics.get(key)) is not None:
            cells = (Cell(seconds(found[p]), found[p]) for p in _PERCENTILES)
            spreads.append((Cell(name), *cells, Cell(meaning)))
    done = f"{plain(metrics['finished'])} of {plain(metrics['jobs'])}"
    makespan = seconds(metrics["makespan_s"])
    rows = [
        ("finished", done, "gangs that completed their work"),
        ("makespan", makespan, "from the first arrival to the last end"),
        *((name, percent(metrics.get(key), 2), meaning) for name, key, meaning in _PARTS),
        *((name, plain(metrics.get(key), 3), meaning) for name, key, meaning in _NUMBERS),
    ]
    kept = [list(map(Cell, row)) for row in rows if row[1] != UNKNOWN]
    headings = ("of", *_PERCENTILES, "meaning")
    figures = Table("Figures", ("figure", "value", "meaning"), kept, ("value",), is_sortable=False)
    return [Table("Times", headings, spreads, _PERCENTILES, is_sortable=False), figures]


def definition_table(model: Mapping[str, Any]) -> Table:
    """Return a table with a model's complete definition."""
    rows = [(Cell("actions"), Cell(", ".join(model["actions"])), Cell(""))]
    for number, tier in enumerate(model["tiers"], 1):
        for i, plugin in enumerate(tier):
            head = f"tier {number}" if not i else ""
            words = [plugin["meaning"]]
            words += [f"{name} = {value}" for name, value in plugin["arguments"].items()]
            words += [f"{name} switched" for name in plugin["switched"]]
            rows.append((Cell(head), Cell(plugin["name"]), Cell("; ".join(words))))
    for i, level in enumerate(model["levels"]):
        head = "levels" if not i else ""
        rows.append((Cell(head), Cell(f"{i + 1}. {level['name']}"), Cell(level["meaning"])))
    budgets = model["budgets"]
    by_weight = model["admission"] == Admission.BY_WEIGHT.value
    solved = f"CP-SAT, up to {budgets['solve']} per session"
    settings = (
        ("admission", "gangs weighted by priority" if by_weight else "priority by priority"),
        ("solver", "none" if model["solver"] == SolverKind.NONE.value else solved),
        ("period", budgets["period"]),
        ("starvation", f"after {budgets['starvationAfter']}"),
        ("reservations", str(model["reservations"])),
    )
    rows += [(Cell(name), Cell(value), Cell("")) for name, value in settings]
    caption = f"{model['name']}: {model['meaning']}" if model["meaning"] else model["name"]
    return Table(caption, ("part", "is", "meaning"), rows, is_sortable=False)


def difference_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the settings in which the models differ."""
    definitions = [flatten_definition(model) for model in models]
    keys = list(dict.fromkeys(key for each in definitions for key in each))
    rows = []
    for key in keys:
        values = [each.get(key, UNKNOWN) for each in definitions]
        if len(set(values)) == 1:
            continue
        cells = [Cell(v, css="" if v == values[0] else "changed") for v in values]
        rows.append((Cell(key), *cells))
    names = [model["name"] for model in models]
    caption = "Differences between models" if rows else "The models do not differ"
    return Table(caption, ("key", *names), rows, is_sortable=False)


def model_section(models: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> Section:
    """Return a section on models and their differences; a single model is compared with `base`."""
    alone = len(models) == 1 and models[0] != base
    held = [base, *models] if alone else models
    parts = [difference_table(held)] if len(held) > 1 else []
    heading = "Models" if len(models) > 1 else "Model"
    return Section("model", heading, [*parts, *map(definition_table, models)])
