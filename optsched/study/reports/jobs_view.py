"""How the gangs of each queue fared: waiting in light colour, running in full, stops as marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.number_text import count_text, fitted, moment, plain, span
from optsched.study.reports.page import MOST_ROWS, Cell, Chart, Key, Table
from optsched.study.reports.time_bins import bin_means, column
from optsched.study.reports.timeline_arrays import (
    BELOW,
    HEAD,
    LABEL,
    LEFT,
    RIGHT,
    describe_end,
    names_title,
    run_text,
    waited_ms,
)
from optsched.study.simulation.timeline import DONE, GOES_ON

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from optsched.study.reports.time_bins import Floats
    from optsched.study.reports.timeline_arrays import View
    from optsched.study.simulation.timeline import Job

NAME: Final = "by-queue"
MOST_JOBS: Final = 150
LONGEST: Final = 60
MOST_MARKS: Final = 400
_HEIGHT: Final = 15.0
_PANEL: Final = 74.0
TOP: Final = HEAD


def queue_charts(view: View) -> list[Chart]:
    """A row for each gang; where there are too many, queues and the gangs that waited longest."""
    jobs = list(range(len(view.timeline.jobs)))
    if len(jobs) <= MOST_JOBS:
        return [_rows_chart(view, jobs, NAME, "Gangs by queue", "")]
    longest = sorted(jobs, key=lambda j: -waited_ms(view.timeline.jobs[j], view.timeline.end_ms))
    note = f"{count_text(LONGEST, 'gang')} of {plain(len(jobs))}."
    return [
        _panels(view),
        _rows_chart(view, longest[:LONGEST], "longest", "Gangs that waited longest", note),
    ]


def job_table(view: View) -> Table:
    """Every gang for which there is room: those that waited longest."""
    end_ms = view.timeline.end_ms
    jobs = sorted(view.timeline.jobs, key=lambda j: -waited_ms(j, end_ms))
    rows = [_job_row(view, job) for job in sorted(jobs[:MOST_ROWS], key=lambda j: j.submit_ms)]
    note = ""
    if len(jobs) > MOST_ROWS:
        note = f"The {plain(MOST_ROWS)} of {plain(len(jobs))} gangs that waited longest."
    headings = ("gang", "queue", "tasks", view.timeline.lanes.unit, "arrived", "first start",
                "waited", "runs", "end", "how it ended")  # fmt: skip
    numbers = frozenset(headings) - {"gang", "queue", "how it ended"}
    return Table("Gangs", headings, rows, numbers, note)


def _job_row(view: View, job: Job) -> tuple[Cell, ...]:
    end_ms = view.timeline.end_ms
    start, waited = job.start_ms(), waited_ms(job, end_ms)
    return (
        Cell(job.key),
        Cell(view.timeline.queues[job.queue]),
        Cell(plain(job.tasks), job.tasks),
        Cell(plain(job.size / 1000), job.size),
        Cell(moment(job.submit_ms), job.submit_ms),
        _moment(start),
        Cell(span(waited), waited),
        Cell(str(len(job.runs)), len(job.runs)),
        _moment(job.done_ms),
        Cell(_fate(job)),
    )


def _moment(at_ms: int | None) -> Cell:
    return Cell("–") if at_ms is None else Cell(moment(at_ms), at_ms)


def _fate(job: Job) -> str:
    stops = sum(run.why not in (DONE, GOES_ON) for run in job.runs)
    stopped = f", stopped {count_text(stops, 'time')} before" if stops else ""
    if job.done_ms is not None:
        return f"finished{stopped}"
    if job.runs and job.runs[-1].why == GOES_ON:
        return f"runs{stopped}"
    return f"waits{stopped}"


# --- a row for each gang -------------------------------------------------------------------------


def _rows_chart(view: View, jobs: Sequence[int], name: str, title: str, note: str) -> Chart:
    parts: list[Markup] = [names_title("gang")]
    at = TOP
    ordered = sorted(jobs, key=lambda j: (view.colour_of(j), view.timeline.jobs[j].queue, j))
    last = -1
    for number in ordered:
        job = view.timeline.jobs[number]
        if job.queue != last:
            at += 6 if last >= 0 else 0
            queue = view.timeline.queues[job.queue]
            words = fitted(queue, svg.WIDTH - 8, bold=True)
            heading = svg.tag("title", queue), words
            parts.append(svg.tag("text", *heading, x=4, y=at + 13, class_="heading"))
            at += 20
            last = job.queue
        height = max(_HEIGHT, svg.LINE * len(svg.label_lines(job.key, LABEL)))
        parts.append(svg.label((LEFT - 8, at + height / 2), LABEL, job.key))
        parts += _row(view, job, at + (height - _HEIGHT) / 2)
        at += height + 4
    axis = view.time_axis(TOP, at)
    parts.append(view.slider_line(TOP, at, int(view.instants[view.frame_shown])))
    words = f"When {count_text(len(jobs), 'gang')} waited and ran"
    drawing = svg.drawing(name, at + BELOW, words, [*axis, *parts])
    keys = [*view.legend, Key("f7 wait", "light: waits"), Key("mark", "stopped")]
    tables = [job_table(view)]
    return Chart(name, title, drawing, keys, tables, note, is_walkable=True)


def _row(view: View, job: Job, top: float) -> Iterable[Markup]:
    css, where = f"f{view.colour[job.queue]}", f"{job.key} ({view.timeline.queues[job.queue]})"
    for a, b in job.waits(view.timeline.end_ms):
        words = f"{where}\nwaits from {moment(a)} to {moment(b)} ({span(b - a)})"
        yield _bar(view, (a, b), (top + 4, _HEIGHT - 8), f"bar wait {css}", words)
    for run in job.runs:
        words = f"{where}\n{run_text(run)}"
        yield _bar(view, (run.from_ms, run.to_ms), (top, _HEIGHT), f"bar {css}", words)
    for run in job.runs:
        if run.why not in (DONE, GOES_ON):
            yield _mark(view, run.to_ms, top + _HEIGHT / 2, f"{where}\n{describe_end(run.why)}")


def _bar(
    view: View, when: tuple[int, int], rows: tuple[float, float], css: str, words: str
) -> Markup:
    x, end = view.x(when[0]), view.x(when[1])
    box = (x, rows[0], max(end - x, 0.8), rows[1])
    return svg.rect(box, class_=css, rx=2, data_tip=words)


def _mark(view: View, at_ms: int, y: float, words: str) -> Markup:
    x = view.x(at_ms)
    steps = svg.polyline([(x, y - 6), (x + 5.5, y), (x, y + 6), (x - 5.5, y)]) + "Z"
    return svg.path(steps, class_="mark", data_tip=f"{words} at {moment(at_ms)}")


# --- queues as a whole ---------------------------------------------------------------------------


def _panels(view: View) -> Chart:
    running, waiting = _over_time(view)
    parts: list[Markup] = [names_title("queue")]
    unit = view.timeline.lanes.unit
    for colour, name in enumerate(view.colours):
        parts += _panel(view, colour, name, (running[colour], waiting[colour]))
    bottom = TOP + len(view.colours) * (_PANEL + 12)
    axis = view.time_axis(TOP, bottom)
    parts.append(view.slider_line(TOP, bottom, int(view.instants[view.frame_shown])))
    drawing = svg.drawing(
        NAME, bottom + BELOW, f"{unit}s that run and that wait, by queue", [*axis, *parts]
    )
    return Chart(
        NAME,
        f"{unit}s that run and that are waited for, by queue",
        drawing,
        [*view.legend, Key("f7 wait", "light: waited for"), Key("mark", "gangs were stopped")],
        [_panel_table(view, running, waiting)],
        "Each queue has a scale of its own; its greatest number is written beside it.",
        is_walkable=True,
    )


def _over_time(view: View) -> tuple[Floats, Floats]:
    """Units that run and that gangs wait for, by colour and stretch."""
    timeline, colours = view.timeline, len(view.colours)
    running = bin_means(view.spans, view.gpu_milli / 1000, view.stay_colours, colours, view.edges)
    waits = [
        (a, b, job.size / 1000, view.colour[job.queue])
        for job in timeline.jobs
        for a, b in job.waits(timeline.end_ms)
    ]
    begins, ends, rows = (column([w[i] for w in waits]) for i in (0, 1, 3))
    sizes = np.array([w[2] for w in waits], dtype=np.float64)
    return running, bin_means((begins, ends), sizes, rows, colours, view.edges)


def _panel(view: View, colour: int, name: str, series: tuple[Floats, Floats]) -> Iterable[Markup]:
    top, floor = TOP + colour * (_PANEL + 12), TOP + colour * (_PANEL + 12) + _PANEL
    running, waiting = series
    most = float((running + waiting).max())
    scale = _PANEL / most if most else 0.0
    yield svg.rect((LEFT, top, RIGHT - LEFT, _PANEL), class_="lane", fill_opacity=0.55)
    yield svg.label((LEFT - 8, top + 27), LABEL, name, css="heading")
    peak = f"up to {plain(most, 0 if most >= 10 else 1)} {view.timeline.lanes.unit}s"
    yield svg.text((LEFT - 8, top + 68), peak, text_anchor="end")
    base = np.full(len(running), floor)
    above = np.round(base - running * scale, 1)
    over = np.round(base - (running + waiting) * scale, 1)
    edges = view.edges_x
    yield svg.path(
        svg.ribbon(edges, over.tolist(), above.tolist()),
        class_=f"f{colour} wait",
        data_tip=f"{name}: {plain(float(waiting.mean()), 1)} waited for on average",
    )
    yield svg.path(
        svg.ribbon(edges, above.tolist(), base.tolist()),
        class_=f"f{colour}",
        data_tip=f"{name}: {plain(float(running.mean()), 1)} run on average",
    )
    yield from _stops(view, colour, floor)


def _stops(view: View, colour: int, floor: float) -> Iterable[Markup]:
    """Marks where gangs were stopped, neighbours together."""
    times = [
        run.to_ms
        for job in view.timeline.jobs
        if view.colour[job.queue] == colour
        for run in job.runs
        if run.why not in (DONE, GOES_ON)
    ]
    if not times:
        return
    places = np.searchsorted(view.edges, times, "right") - 1
    numbers = np.bincount(np.minimum(places, len(view.edges) - 2))
    for place in np.flatnonzero(numbers).tolist():
        at_ms = int((view.edges[place] + view.edges[place + 1]) / 2)
        words = f"{view.colours[colour]}: {count_text(int(numbers[place]), 'gang')} stopped about"
        yield _mark(view, at_ms, floor, words)


def _panel_table(view: View, running: Floats, waiting: Floats) -> Table:
    rows = []
    for i, name in enumerate(view.colours):
        values = [running[i].mean(), running[i].max(), waiting[i].mean(), waiting[i].max()]
        cells = [Cell(plain(float(v), 1), float(v)) for v in values]
        rows.append((Cell(name), *cells))
    columns = ("run, mean", "run, most", "waited for, mean", "waited for, most")
    return Table(f"{view.timeline.lanes.unit}s", ("queue", *columns), rows, frozenset(columns))
