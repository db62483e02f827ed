"""The HTML report that compares several models on the same traces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from optsched.study.chargeback import HOUR_US, Amounts
from optsched.study.comparison.compared_metrics import (
    CONFIDENCE,
    FIGURES,
    SHOWN,
    signed_text,
    value_text,
)
from optsched.study.reports import svg
from optsched.study.reports.curves_view import Curve, cdf_chart
from optsched.study.reports.jobs_view import quantile_chart
from optsched.study.reports.model_tables import definition_table, difference_table
from optsched.study.reports.number_text import count_text, fit_name, percent, plain, span
from optsched.study.reports.page import Cell, Chart, Key, Page, Section, Table
from optsched.study.reports.timeline_arrays import BELOW, LABEL, LEFT, RIGHT, time_axis
from optsched.study.simulation.timeline import nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from markupsafe import Markup

    from optsched.study.comparison.compared_metrics import Difference, Figure
    from optsched.study.comparison.comparison_table import Comparison, Row

MOST_TRACES: Final = 4
_PERCENTILES: Final = 101
_ROW: Final = 26.0
_STRIP: Final = 84.0
_NAMES: Final = 150.0
_VALUES: Final = 640.0


def comparison_page(found: Comparison) -> Page:
    """Return the report page of a comparison: metrics, charts over time, definitions of models."""
    traces = list(dict.fromkeys(row.trace for row in found.rows))
    seeds = sorted({row.seed for row in found.rows})
    replays = count_text(len({(row.trace, row.seed) for row in found.rows}), "replay")
    facts = [
        ("models", plain(len(found.models))),
        ("traces", plain(len(traces))),
        ("seeds", ", ".join(map(str, seeds[:12])) + (" …" if len(seeds) > 12 else "")),
        ("compared with", found.models[0]),
        *(("optsched", str(row.result["versions"]["optsched"])) for row in found.rows[:1]),
    ]
    title = " and ".join(found.models) if len(found.models) < 3 else "Models"
    subtitle = f"{replays} of each model: {', '.join(traces)}"
    warnings = [f"{name}: {fault}" for name, fault in found.failures.items()]
    if not found.is_complete:
        warnings.insert(0, "Incomplete: the figures cover only the finished replays.")
    return Page(f"Comparison of {title}", subtitle, facts, list(_sections(found)), warnings)


def _sections(found: Comparison) -> Iterable[Section]:
    yield Section("finished", "Unfinished gangs", list(_unfinished_tables(found)))
    yield Section("means", "Means", [_means_table(found)])
    if len(found.models) > 1:
        charts = [_interval_chart(found, model, i) for i, model in enumerate(found.models[1:])]
        how = (
            f"Other models are compared with {found.models[0]} in pairs of replays with the same "
            "trace and seed; equal traces count once. The intervals (Student's t) have a "
            f"confidence of {percent(CONFIDENCE, 0)} for all figures together. A difference is "
            "called better or worse only if its interval excludes zero, the sign-flip test rejects "
            "the null hypothesis, the same jobs finished under both models, and there are at least "
            f"{found.least_pairs} pairs."
        )
        paragraphs = [
            how,
            *(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in found.caveats),
        ]
        yield Section("differences", "Differences", charts, paragraphs)
    if any("series" in row.result for row in found.rows):
        yield Section("distributions", "Distributions", _distribution_charts(found))
        if any(row.result.get("series", {}).get("waited_s") for row in found.rows):
            yield Section("waits", "Waiting time by queue", [_wait_chart(found)])
        # For each trace, show how much capacity the queues hold under each model in the replay with
        # one of the seeds.
        strips, traces = [], dict.fromkeys(row.trace for row in found.rows)
        for number, trace in enumerate(list(traces)[:MOST_TRACES]):
            rows = [row for row in found.rows if row.trace == trace and "series" in row.result]
            if rows:
                seed_rows = [row for row in rows if row.seed == rows[0].seed]
                strips.append(_share_chart(number, trace, seed_rows))
        yield Section("shares", "Shares over time", strips)
    yield Section("usage", "GPU hours", [_usage_table(found)])
    definitions: dict[str, Mapping[str, Any]] = {}
    for row in found.rows:
        model_definition: Mapping[str, Any] | None = row.result["model"].get("definition")
        if model_definition is not None:
            definitions.setdefault(row.model, {**model_definition, "name": row.model})
    several = list(definitions.values())
    tables = [difference_table(several), *map(definition_table, several)] if several else []
    yield Section("model", "Models", tables)
    yield Section("replays", "Replays", [_replay_table(found)])


def _unfinished_tables(found: Comparison) -> Iterable[Table]:
    rows = []
    for model in found.models:
        metrics = [row.result["metrics"] for row in found.rows if row.model == model]
        gangs, done = (sum(m[key] for m in metrics) for key in ("jobs", "finished"))
        part = (gangs - done) / gangs if gangs else None
        cells = [Cell(plain(n), n) for n in (len(metrics), gangs, done, gangs - done)]
        rows.append((Cell(model), *cells, Cell(percent(part), part)))
    columns = ("replays", "gangs", "finished", "not finished", "part")
    yield Table("Gangs by model", ("model", *columns), rows, columns)
    reasons = [
        (
            *(Cell(model), Cell(each.code), Cell(plain(each.num_gangs), each.num_gangs)),
            *(Cell(each.example), Cell(span(each.waited_ms), each.waited_ms), Cell(each.message)),
        )
        for model in found.models
        for each in found.reasons(model)
    ]
    if reasons:
        headings = ("model", "reason", "gangs", "example", "waited", "reason in full")
        note = (
            "The reasons are from the last session of each replay. The example is the gang that "
            "waited longest; the report of a replay lists every gang."
        )
        yield Table("Why gangs did not finish", headings, reasons, ("gangs", "waited"), note)


def _measured_figures(found: Comparison) -> list[Figure]:
    """Return the metrics that at least one replay measured, the most important first."""
    measured = [f for f in FIGURES if any(found.value(row, f) is not None for row in found.rows)]
    return sorted(measured, key=lambda f: SHOWN.index(f.name) if f.name in SHOWN else len(SHOWN))


# --- means and differences -----------------------------------------------------------------------


def _means_table(found: Comparison) -> Table:
    rows = []
    for figure in _measured_figures(found):
        values = [found.mean_of_model(model, figure) for model in found.models]
        cells = [
            Cell(value_text(figure, v), v, found.verdict(model, figure))
            for model, v in zip(found.models, values, strict=True)
        ]
        rows.append((Cell(figure.name), *cells))
    note = (
        f"Green: significantly better than {found.models[0]}, red: significantly worse. Times "
        "cover the jobs that finished under every model."
    )
    caption = "Means over all replays of a model"
    return Table(caption, ("figure", *found.models), rows, found.models, note)


_REACHES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def _interval_chart(found: Comparison, model: str, number: int) -> Chart:
    first, bases, cells = found.models[0], [], []
    rows = [
        (figure, apart, found.verdict(model, figure))
        for figure in _measured_figures(found)
        if (apart := found.difference(model, figure)) is not None
    ]
    for figure, apart, verdict in rows:
        is_seen = signed_text(figure, apart.mean) != value_text(figure, 0.0)
        bases.append(abs(found.mean_of_model(first, figure) or 0.0) if is_seen else 0.0)
        values = (apart.mean, apart.low, apart.high)
        shown = (Cell(signed_text(figure, v), v) for v in values)
        pairs, judged = Cell(str(apart.pairs), apart.pairs), Cell(verdict, css=verdict)
        cells.append((Cell(figure.name), *shown, pairs, judged))
    drawn = [(*row, base) for row, base in zip(rows, bases, strict=True) if base]
    most = max(
        (
            abs(v) / base
            for _, apart, _, base in drawn
            for v in (apart.mean, apart.low, apart.high)
            if v is not None
        ),
        default=0.0,
    )
    reach = next((r for r in _REACHES if most <= r), _REACHES[-1])
    bottom = 12 + _ROW * len(drawn)
    parts: list[Markup] = []
    for step in (-1.0, -0.5, 0.0, 0.5, 1.0):
        x = _difference_x(step)
        parts.append(svg.line((x, 6), (x, bottom), class_="grid" if step else "zero"))
        words = f"{step * reach * 100:+g}".replace("-", "−") if step else "0"
        parts.append(svg.text((x, bottom + 16), words, text_anchor="middle"))
    axis = fit_name(f"difference from the mean of {first} (%)", svg.WIDTH - 16)
    parts.append(svg.x_title((_NAMES + _VALUES) / 2, bottom + 36, axis))
    for i, (figure, apart, verdict, base) in enumerate(drawn):
        parts += _draw_interval(figure, apart, verdict, base * reach, 12 + _ROW * (i + 0.5))
    numbers, name = ("difference", "from", "to", "pairs"), f"interval-{number}"
    cut = (
        f"Differences and intervals beyond ±{100 * reach:g} % are cut; the table has their values."
    )
    note = cut if most > reach else ""
    return Chart(
        name,
        f"{model} against {first}",
        svg.drawing(name, bottom + 44, "Paired differences with their intervals", parts),
        [Key("good", "better"), Key("bad", "worse"), Key("f7", "not significant")] if drawn else (),
        [Table(model, ("figure", *numbers, "verdict"), cells, numbers)],
        note if drawn else "No figure differs.",
        is_walkable=True,
    )


def _difference_x(part: float) -> float:
    """Return the x coordinate of a difference, as a fraction of the value at the axis end."""
    middle, half = (_NAMES + _VALUES) / 2, (_VALUES - _NAMES) / 2 - 10
    return middle + max(min(part, 1.0), -1.0) * half


def _draw_interval(
    figure: Figure, apart: Difference, verdict: str, end: float, y: float
) -> Iterable[Markup]:
    """Yield the name, the interval and the mean of a metric; `end` is the value at the axis end."""
    css = {"better": "good", "worse": "bad"}.get(verdict, "f7")
    mean, words = signed_text(figure, apart.mean), signed_text(figure, apart.mean)
    yield svg.text((_NAMES - 8, y + 4), figure.name, text_anchor="end", class_="name")
    if apart.low is not None and apart.high is not None:
        words += f", {signed_text(figure, apart.low)} to {signed_text(figure, apart.high)}"
        ends = [_difference_x(v / end) for v in (apart.low, apart.high)]
        yield svg.line((ends[0], y), (ends[1], y), class_="whisker")
        for v, x in zip((apart.low, apart.high), ends, strict=True):
            if abs(v) <= end:
                yield svg.line((x, y - 4), (x, y + 4), class_="whisker")
    at, tip = _difference_x(apart.mean / end), f"{figure.name}: {words}"
    tip += f" in {count_text(apart.pairs, 'pair')}"
    yield svg.tag("circle", cx=at, cy=y, r=5.5, class_=f"dot {css}", data_tip=tip)
    yield svg.text((_VALUES + 8, y + 4), f"{mean}  {verdict}".strip(), class_="name")


# --- distributions and shares --------------------------------------------------------------------


def _distribution_charts(found: Comparison) -> list[Chart]:
    note = "Each replay adds the same number of percentiles, so all replays have the same weight."
    charts = []
    names = (
        ("jct", "finished", "jct", "Completion time"),
        ("queueing", "started", "delay", "Queueing delay"),
    )
    for key, known, name, title in names:
        pooled: dict[str, list[float]] = {model: [] for model in found.models}
        missing = Counter[str]()
        for row in found.rows:
            if "series" not in row.result:
                continue
            series, metrics = row.result["series"], row.result["metrics"]
            # Results of earlier optsched versions do not contain the fraction of gangs whose time
            # is known.
            part = series.get(f"{key}_part", metrics[known] / max(metrics["jobs"], 1))
            # Gangs whose time is not known rank last, so the highest percentiles are missing.
            times, last = series[f"{key}_s"], _PERCENTILES - 1
            ranks = [p for p in range(_PERCENTILES) if p <= last * part] if times else []
            values = [times[min(round(p / part), last)] for p in ranks]
            pooled[row.model] += values
            missing[row.model] += _PERCENTILES - len(values)
        curves = [
            Curve(model, f"l{min(i, 7)}", pooled[model], missing[model])
            for i, model in enumerate(found.models)
        ]
        charts.append(cdf_chart(name, title, curves, note, is_counted=False))
    return charts


def _wait_chart(found: Comparison) -> Chart:
    by_queue: dict[str, dict[str, list[int]]] = {}
    for row in found.rows:
        for queue, waited in row.result.get("series", {}).get("waited_s", {}).items():
            times = by_queue.setdefault(queue, {}).setdefault(row.model, [])
            times.extend(round(1000 * value) for value in waited)
    longest = {
        queue: max(nearest_rank(sorted(each), 95) for each in times.values())
        for queue, times in by_queue.items()
    }
    rows = {
        f"{queue}, {model}": times
        for queue in sorted(by_queue, key=lambda queue: (-longest[queue], queue))
        for model, times in by_queue[queue].items()
    }
    note = (
        "Total time for which a gang waited for its minimum number of tasks; the percentiles of "
        "all replays are pooled. A gang that is still waiting counts with its waiting time so far."
    )
    title = "Waiting time by queue and model"
    return quantile_chart("waits-by-queue", title, rows, "queue, model", note, is_pooled=True)


def _share_chart(number: int, trace: str, rows: Sequence[Row]) -> Chart:
    """Return a chart of the cluster fraction that each queue holds, with one strip per model."""
    queues = list(dict.fromkeys(q for row in rows for q in row.result["series"]["held"]))
    end_ms = max(row.result["series"]["end_ms"] for row in rows)
    bottom = 8 + len(rows) * (_STRIP + 14)
    parts = time_axis(end_ms, 8, bottom)
    cells = []
    for i, row in enumerate(rows):
        parts += _draw_strip(row, queues, end_ms, 8 + i * (_STRIP + 14))
        held = row.result["series"]["held"]
        means = [sum(held.get(q, ())) / max(len(held.get(q, ())), 1) for q in queues]
        shares = (Cell(percent(v), round(v, 6)) for v in (*means, sum(means)))
        cells.append((Cell(row.model), *shares))
    columns = (*queues, "all")
    table = Table("Means over time", ("model", *columns), cells, columns)
    name = f"shares-{number}"
    unit = rows[0].result["series"]["unit"]
    parts.append(svg.y_title(11, (8 + bottom) / 2, f"fraction of all {unit}s (%)"))
    seed = f", seed {rows[0].seed}" if len({row.seed for row in rows}) == 1 else ""
    keys = [Key(f"f{min(i, 7)}", queue) for i, queue in enumerate(queues)]
    drawing = svg.drawing(name, bottom + BELOW, f"{unit}s held by queue under each model", parts)
    title = f"Fraction of all {unit}s held: {trace}{seed}"
    return Chart(name, title, drawing, keys, [table], is_walkable=True)


def _draw_strip(row: Row, queues: Sequence[str], end_ms: int, top: float) -> Iterable[Markup]:
    series = row.result["series"]
    floor_y = top + _STRIP
    yield svg.lane(LEFT, top, RIGHT - LEFT, _STRIP)
    yield svg.label((LEFT - 8, top + 44), LABEL, row.model, css="heading")
    steps = len(next(iter(series["held"].values()), ()))
    edges = [
        round(svg.scale(series["end_ms"] * i / steps, end_ms, LEFT, RIGHT), 1)
        for i in range(steps + 1)
        if steps
    ]
    floor = np.full(steps, floor_y)
    for i, queue in enumerate(queues):
        part = np.array(series["held"].get(queue, ()))
        if not part.any():
            continue
        above = np.round(floor - part * _STRIP, 1)
        words = f"{row.model}\n{queue}: {percent(float(part.mean()))} on average"
        path = svg.ribbon(edges, above.tolist(), floor.tolist())
        yield svg.path(path, class_=f"f{min(i, 7)}", data_tip=words)
        floor = above
    yield svg.line((LEFT, top), (RIGHT, top), class_="grid")
    yield svg.text((LEFT - 8, top + 10), "100 %", text_anchor="end")
    yield svg.text((LEFT - 8, floor_y), "0 %", text_anchor="end")


# --- GPU hours and reproduction ------------------------------------------------------------------


def _usage_table(found: Comparison) -> Table:
    by_model = [found.charges(model).by_queue for model in found.models]
    rows = []
    for queue in sorted({queue for held in by_model for queue in held}):
        cells = [Cell(queue)]
        for amounts in (held.get(queue, Amounts()) for held in by_model):
            lost = f" ({plain(amounts.evicted / HOUR_US)} lost)" if amounts.evicted else ""
            cells.append(Cell(f"{plain(amounts.held / HOUR_US)}{lost}", amounts.held))
        rows.append(cells)
    caption = "By queue, summed over all replays of a model; lost: work that must be repeated"
    return Table(caption, ("queue", *found.models), rows, found.models)


def _replay_table(found: Comparison) -> Table:
    numbers = ("seed", "gangs", "finished", "JCT mean", "allocation", "preemptions", "wall time")
    figures = {figure.name: figure for figure in FIGURES}
    rows = []
    for row in found.rows:
        metrics, result = row.result["metrics"], row.result
        jct = metrics["jct_s"] and metrics["jct_s"]["mean"]
        wall, allocation = result["wall_seconds"], metrics["allocation"]
        gangs, finished, stops = (
            Cell(plain(metrics[key]), metrics[key]) for key in ("jobs", "finished", "preemptions")
        )
        mean = Cell(value_text(figures["JCT mean"], jct), jct)
        held = Cell(value_text(figures["allocation"], allocation), allocation)
        seconds, record = Cell(f"{plain(wall, 1)} s", wall), Cell(result["record"]["sha256"][:12])
        names = Cell(row.model), Cell(row.trace), Cell(str(row.seed), row.seed)
        rows.append((*names, gangs, finished, mean, held, stops, seconds, record))
    note = "The record column shows the first digits of the SHA-256; the JSON has the full digest."
    return Table("All replays", ("model", "trace", *numbers, "record"), rows, numbers, note)
