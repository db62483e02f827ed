"""The HTML report on one replay."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from optsched.study.chargeback import HOUR_US, of_json
from optsched.study.reports.curves_view import (
    Curve,
    GapLine,
    TimeAxis,
    cdf_chart,
    gap_chart,
    share_charts,
)
from optsched.study.reports.jobs_view import queue_charts, reason_section, wait_chart
from optsched.study.reports.model_tables import model_section
from optsched.study.reports.nodes_view import node_chart
from optsched.study.reports.number_text import (
    UNKNOWN,
    count_text,
    moment,
    percent,
    plain,
    seconds,
    time_ticks,
    time_unit,
)
from optsched.study.reports.occupancy_view import film
from optsched.study.reports.page import MOST_ROWS, Cell, Page, Section, Table, cap_rows
from optsched.study.reports.timeline_arrays import View

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.study.chargeback import Amounts, Chargeback
    from optsched.study.reports.page import Chart
    from optsched.study.simulation.timeline import Timeline


MOST_GAPS: Final = 240


def simulation_page(result: Mapping[str, Any], timeline: Timeline, base: Mapping[str, Any]) -> Page:
    """Return the report page of a replay.

    `result` is the output of `optsched.study.simulation.replay_trace.as_result`. `base` is the
    definition of the model with which the replay's model is compared.
    """
    view = View.from_timeline(timeline)
    model, trace, metrics = result["model"], result["trace"], result["metrics"]
    facts = [("finished", f"{plain(metrics['finished'])} of {plain(metrics['jobs'])} gangs")]
    for name, key in (("completion time, mean", "jct_s"), ("queueing delay, mean", "queueing_s")):
        if metrics[key] is not None:
            facts.append((name, seconds(metrics[key]["mean"])))
    if metrics["makespan_s"] is not None:
        facts.append(("makespan", seconds(metrics["makespan_s"])))
    if metrics["allocation"] is not None:
        facts.append(("allocation", percent(metrics["allocation"], 2)))
    facts += [
        ("preemptions", plain(metrics["preemptions"])),
        ("model", str(model["name"])),
        ("seed", str(result["parameters"]["seed"])),
        ("optsched", str(result["versions"]["optsched"])),
    ]
    warnings = []
    if not result["complete"]:
        warnings.append(
            f"Incomplete: the replay was stopped at {moment(result['ended_at_ms'])}. All figures "
            "cover the time until the stop."
        )
    for fault, number in sorted(result["faults"].items()):
        warnings.append(f"{fault} ({count_text(number, 'time')})")
    sections = [
        reason_section(timeline),
        Section("figures", "Figures", _figure_tables(metrics)),
    ]
    if timeline.jobs and timeline.nodes:
        queues = [*queue_charts(view), wait_chart(timeline)]
        sections += [
            Section("nodes", "Nodes", [node_chart(view), film(view)]),
            Section("queues", "Queues", queues),
            Section("shares", "Shares", share_charts(view)),
            Section("distributions", "Distributions", _distribution_charts(view)),
        ]
    if timeline.gaps:
        sections.append(Section("gap", "Gap over time", [_gap_chart(timeline)]))
    if result["gpu_hours"]["charges"]:
        sections.append(_usage_section(of_json(result["gpu_hours"])))
    sections.append(model_section([model["definition"]], base))
    sections.append(Section("again", "How to reproduce this", list(_provenance_tables(result))))
    return Page(
        f"Replay of {trace['name']}",
        f"{count_text(trace['jobs'], 'gang')} on {count_text(trace['nodes'], 'node')}, decided by "
        f"{model['name']}",
        facts,
        sections,
        warnings,
    )


def _gap_chart(timeline: Timeline) -> Chart:
    """Return a chart of optimality gaps per session, or per time bin if there are many sessions."""
    points = list(timeline.gaps)
    note = "For each session: |bound − value| / max(1, |bound|, |value|) of its levels."
    if len(points) > MOST_GAPS:
        edges = np.linspace(0, timeline.end_ms, MOST_GAPS + 1)
        note += f" The {plain(len(points))} sessions are shown in {MOST_GAPS} time bins."
        stretch = np.minimum(
            np.searchsorted(edges, [at for at, *_ in points], "right") - 1, MOST_GAPS - 1
        )
        points = [
            (
                int(edges[i]),
                max(points[j][1] for j in sessions),
                sum(points[j][2] for j in sessions) / len(sessions),
            )
            for i in range(MOST_GAPS)
            if (sessions := np.flatnonzero(stretch == i).tolist())
        ]
    unit, _ = time_unit(timeline.end_ms)
    time = TimeAxis(
        timeline.end_ms, time_ticks(timeline.end_ms), f"time since the start of the trace ({unit})"
    )
    lines = [
        GapLine("largest of all levels", "l0", [(at, most) for at, most, _ in points]),
        GapLine("mean of all levels", "l1", [(at, mean) for at, _, mean in points]),
    ]
    columns = ("at", "greatest", "mean")
    rows = [(Cell(moment(at), at), *(Cell(percent(v, 2), v) for v in gaps)) for at, *gaps in points]
    table = cap_rows("Gaps", columns, rows, columns)
    return gap_chart("gaps", "Gap of sessions", lines, time, table, note)


def _distribution_charts(view: View) -> list[Chart]:
    charts = []
    for name, title in (("jct", "Completion time"), ("delay", "Queueing delay")):
        times: dict[int, list[float]] = {i: [] for i in range(len(view.colours))}
        missing = Counter[int]()
        for job in view.timeline.jobs:
            end_ms = job.done_ms if name == "jct" else job.start_ms()
            if end_ms is not None:
                times[view.colour[job.queue]].append((end_ms - job.submit_ms) / 1000)
            else:
                missing[view.colour[job.queue]] += 1
        every = [value for values in times.values() for value in values]
        curves = [Curve("all gangs", "lall", every, missing.total())]
        if len(view.colours) > 1:
            curves += [Curve(n, f"l{i}", times[i], missing[i]) for i, n in enumerate(view.colours)]
        charts.append(cdf_chart(name, title, curves))
    return charts


# --- tables --------------------------------------------------------------------------------------


def _usage_section(found: Chargeback) -> Section:
    queues = [([name], amounts) for name, amounts in found.by_queue.items()]
    users = [([name], amounts) for name, amounts in found.by_user.items()]
    tables = [_amounts_table("By queue", ("queue",), queues, found.total)]
    if len(users) > 1:
        tables.append(_amounts_table("By user", ("user",), users, found.total))
    if len(queues) > 1 and len(users) > 1:
        both = [([c.queue, c.user], c.amounts) for c in found.charges]
        tables.append(_amounts_table("By queue and user", ("queue", "user"), both, found.total))
    note = (
        "GPU hours count from when a pod is bound until it leaves its node. GPU hours are idle "
        "while too few pods of the gang run, and lost if the work must be repeated."
    )
    return Section("usage", "GPU hours", tables, [note])


def _amounts_table(
    caption: str, heads: tuple[str, ...], rows: Sequence[tuple[list[str], Amounts]], whole: Amounts
) -> Table:
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
    ("queueing delay", "queueing_s", "time from a gang's arrival to its first start"),
    ("session", "session_s", "wall time of a session"),
)
_PARTS: Final = (
    ("allocation", "allocation", "GPU time held, as a fraction of the GPU time of ready nodes"),
    ("utilisation", "utilisation", "like allocation, but for running gangs and without lost work"),
    ("fragmentation", "fragmentation", "fraction of idle GPUs that a typical task could not use"),
    ("DRF distance", "drf_distance", "largest − smallest weighted dominant share, waiting queues"),
    ("treated unfairly", "ftf_unfair", "gangs with ρ above 1.1"),
    ("gap", "gap", "relative distance of objective values from their bounds"),
)  # fmt: skip
_NUMBERS: Final = (
    ("Jain index", "jain", "fairness of weighted dominant shares over time; 1 means equal"),
    ("ρ, mean", "ftf_mean", "finish-time fairness: completion time relative to a fair share"),
    ("ρ, worst", "ftf_worst", "largest finish-time fairness of a gang"),
    ("preemptions", "preemptions", "how often a running gang was stopped for another gang"),
    ("stopped by nodes", "node_failures", "how often a node failure stopped a gang"),
    ("GPU hours lost", "wasted_gpu_hours", "work that had to be repeated"),
    ("tier of a gang", "topology_tier", "lowest tier that contains the gang, mean over starts"),
    ("pairs across leaves", "cross_leaf_pairs", "task pairs in different leaves, mean over starts"),
    ("SLA misses", "sla_misses", "gangs that waited longer than their SLA"),
    ("sessions", "sessions", "number of scheduling sessions"),
)  # fmt: skip


def _figure_tables(metrics: Mapping[str, Any]) -> list[Table]:
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


def _provenance_tables(result: Mapping[str, Any]) -> Iterable[Table]:
    trace, parameters = result["trace"], result["parameters"]
    until_ms = parameters["until_ms"]
    rows = [
        ("trace", trace["source"]),
        ("SHA-256 of the trace", trace["sha256"]),
        ("SHA-256 of the model", result["model"]["sha256"]),
        ("session period", moment(parameters["period_ms"])),
        ("until", "the end" if until_ms is None else moment(until_ms)),
        ("warm-up", moment(parameters["warm_up_ms"])),
        ("seed", str(parameters["seed"])),
        ("events", plain(result["record"]["events"])),
        ("SHA-256 of the record", result["record"]["sha256"]),
        *((f"version of {name}", version) for name, version in result["versions"].items()),
    ]
    cells = [(Cell(name), Cell(value)) for name, value in rows]
    yield Table("Inputs and versions", ("what", "value"), cells, is_sortable=False)
    if trace["left_out"]:
        omitted = trace["left_out"]
        shown = [(Cell(str(i)), Cell(words)) for i, words in enumerate(omitted[:100], 1)]
        note = f"The first 100 of {plain(len(omitted))}." if len(omitted) > 100 else ""
        yield Table("Omitted from the trace", ("", "what"), shown, note=note, is_sortable=False)
