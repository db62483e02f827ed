"""Report sections on gangs: why gangs wait, waiting times by queue, and gang states over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.number_text import (
    UNKNOWN,
    count_text,
    moment,
    plain,
    span,
    time_ticks,
    time_unit,
)
from optsched.study.reports.page import MOST_ROWS, Cell, Chart, Key, Section, Table
from optsched.study.reports.timeline_arrays import (
    BELOW,
    HEAD,
    LABEL,
    LEFT,
    RIGHT,
    describe_end,
    names_title,
    run_text,
)
from optsched.study.simulation.timeline import DONE, GOES_ON, bin_means, column, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from markupsafe import Markup

    from optsched.study.reports.timeline_arrays import View
    from optsched.study.simulation.timeline import Floats, Job, Timeline

NAME: Final = "by-queue"
MOST_JOBS: Final = 150
LONGEST: Final = 60
MOST_QUEUES: Final = 40
QUANTILES: Final = (5, 25, 50, 75, 95, 100)
_HEIGHT: Final = 15.0
_PANEL: Final = 74.0
_ROW: Final = 30.0
_WAITS_RIGHT: Final = svg.WIDTH - 190.0


# --- reasons for waiting -------------------------------------------------------------------------


def reason_section(timeline: Timeline) -> Section:
    """Return a section on the gangs that wait at the end, with reasons from the last session."""
    heading, end = "What waits, and why", moment(timeline.end_ms)
    unit, end_ms = timeline.lanes.unit, timeline.end_ms
    waiting = [job for job in timeline.jobs if job.done_ms is None and not job.is_running]
    waiting.sort(key=lambda job: (-job.waited_ms(end_ms), job.key))
    if not waiting:
        return Section("waiting", heading, (), [f"At the end, {end}, no gang waits."])
    rows = []
    for job in waiting[:MOST_ROWS]:
        default = UNKNOWN, "no session has considered this gang yet"
        code, words = timeline.reasons.get(job.key, default)
        waited = job.waited_ms(end_ms)
        cells = Cell(plain(job.tasks), job.tasks), Cell(plain(job.size / 1000), job.size)
        names = Cell(job.key), Cell(timeline.queues[job.queue])
        rows.append((*names, *cells, Cell(span(waited), waited), Cell(code), Cell(words)))
    note = ""
    if len(waiting) > MOST_ROWS:
        note = (
            f"The {plain(MOST_ROWS)} of {plain(len(waiting))} gangs that waited longest are shown."
        )
    headings = ("gang", "queue", "tasks", unit, "waited", "reason", "reason in full")
    caption = f"At the end, {end}: {count_text(len(waiting), 'gang')} waiting"
    table = Table(caption, headings, rows, ("tasks", unit, "waited"), note)
    return Section("waiting", heading, [table])


# --- waiting times by queue ----------------------------------------------------------------------


def wait_chart(timeline: Timeline) -> Chart:
    """Return a chart of the waiting time quantiles of each queue."""
    times: dict[str, list[int]] = {}
    for job in timeline.jobs:
        times.setdefault(timeline.queues[job.queue], []).append(job.waited_ms(timeline.end_ms))
    note = (
        "Total time for which a gang waited for its minimum number of tasks, before and between "
        "its runs. A gang that is still waiting counts with its waiting time so far."
    )
    return quantile_chart("waits", "Waiting time by queue", times, "queue", note)


def quantile_chart(
    name: str,
    title: str,
    times: Mapping[str, Iterable[int]],
    of: str,
    note: str,
    *,
    is_pooled: bool = False,
) -> Chart:
    """Return a chart of quantiles with one row per key of `times` (in milliseconds).

    By default, each time belongs to one gang, the chart shows the number of gangs, and the rows
    with the longest times come first. If `is_pooled` is true, the times are percentiles from
    several replays, the chart does not show their number, and the rows keep the given order.
    """
    ordered = {row: sorted(waits) for row, waits in times.items()}
    order = list(ordered)
    if not is_pooled:
        order.sort(key=lambda n: (-nearest_rank(ordered[n], 95), -ordered[n][-1], n))
    end_ms = max((ordered[n][-1] for n in order), default=0) or 1000
    parts: list[Markup] = [names_title(of)]
    at = 18.0
    for row in order[:MOST_QUEUES]:
        height = max(_ROW, svg.LINE * len(svg.label_lines(row, LABEL, css="heading")) + 4)
        parts.append(svg.label((LEFT - 8, at + height / 2), LABEL, row, css="heading"))
        number = "" if is_pooled else f": {count_text(len(ordered[row]), 'gang')}"
        parts += _draw_box_plot(f"{row}{number}", ordered[row], end_ms, at + height / 2)
        at += height
    if len(order) > MOST_QUEUES:
        note += f" The {MOST_QUEUES} of {len(order)} rows with the longest waits are shown."
    keys = [
        Key("q0", "25th to 75th percentile"),
        Key("lall", "median (p50)"),
        Key("whisker", "5th to 95th percentile"),
        Key("mark", "longest wait"),
    ]
    marks = (
        (svg.scale(at_ms, end_ms, LEFT, _WAITS_RIGHT), words)
        for at_ms, words in time_ticks(end_ms, 6)
    )
    axis = f"waiting time ({time_unit(end_ms)[0]})"
    grid = [*svg.x_grid(marks, 18, at), svg.x_title((LEFT + _WAITS_RIGHT) / 2, at + 35, axis)]
    columns = ("mean", *(f"p{p}" for p in QUANTILES[:-1]), "longest")
    rows = []
    for row in order[:MOST_ROWS]:
        waits = ordered[row]
        figures = [sum(waits) / len(waits), *(nearest_rank(waits, p) for p in QUANTILES)]
        count = [] if is_pooled else [Cell(plain(len(waits)), len(waits))]
        rows.append((Cell(row), *count, *(Cell(span(v), v) for v in figures)))
    columns = columns if is_pooled else ("gangs", *columns)
    table = Table(title, (of, *columns), rows, columns)
    drawing = svg.drawing(name, at + 42, f"{title}: quantiles", [*grid, *parts])
    return Chart(name, title, drawing, keys, [table], note, is_walkable=True)


def _draw_box_plot(name: str, waits: Sequence[int], end_ms: int, y: float) -> Iterable[Markup]:
    """Yield a box plot: box p25 to p75, whiskers p5 and p95, marks at p50 and the maximum."""
    _, _, p50, _, p95, most = (nearest_rank(waits, p) for p in QUANTILES)
    x5, x25, x50, x75, x95, x_most = (
        svg.scale(nearest_rank(waits, p), end_ms, LEFT, _WAITS_RIGHT) for p in QUANTILES
    )
    words = f"{name}\np50 {span(p50)}, p95 {span(p95)}, longest {span(most)}"
    yield svg.line((x5, y), (x95, y), class_="whisker")
    for x in (x5, x95):
        yield svg.line((x, y - 5), (x, y + 5), class_="whisker")
    box = (x25, y - 8, max(x75 - x25, 1.5), 16)
    yield svg.rect(box, class_="bar q0", data_tip=words)
    yield svg.line((x50, y - 9), (x50, y + 9), class_="lall")
    yield svg.diamond(x_most, y, 5, 5)
    unit, unit_ms = time_unit(end_ms)
    short = [
        plain(value, 0 if value >= 100 else 1 if value >= 10 else 2)
        for value in (p50 / unit_ms, p95 / unit_ms)
    ]
    yield svg.text(
        (_WAITS_RIGHT + 12, y + 4), f"p50 {short[0]} · p95 {short[1]} {unit}", class_="name"
    )


# --- gangs over time -----------------------------------------------------------------------------


def queue_charts(view: View) -> list[Chart]:
    """Return a chart of all gangs or, if these are too many, of queues and of the longest waits."""
    timeline = view.timeline
    jobs = list(range(len(timeline.jobs)))
    if len(jobs) <= MOST_JOBS:
        return [_rows_chart(view, jobs, NAME, "Gangs by queue", "")]
    longest = sorted(jobs, key=lambda j: -timeline.jobs[j].waited_ms(timeline.end_ms))
    note = f"{count_text(LONGEST, 'gang')} of {plain(len(jobs))}."
    return [
        _queue_panels(view),
        _rows_chart(view, longest[:LONGEST], "longest", "Gangs that waited longest", note),
    ]


def _rows_chart(view: View, jobs: Sequence[int], name: str, title: str, note: str) -> Chart:
    parts: list[Markup] = [names_title("gang")]
    at = HEAD
    ordered = sorted(jobs, key=lambda j: (view.colour_of(j), view.timeline.jobs[j].queue, j))
    last = -1
    for number in ordered:
        job = view.timeline.jobs[number]
        if job.queue != last:
            at += 6 if last >= 0 else 0
            parts.append(svg.heading(view.timeline.queues[job.queue], at))
            at += 20
            last = job.queue
        height = max(_HEIGHT, svg.LINE * len(svg.label_lines(job.key, LABEL)))
        parts.append(svg.label((LEFT - 8, at + height / 2), LABEL, job.key))
        parts += _draw_bars(view, job, at + (height - _HEIGHT) / 2)
        at += height + 4
    words = f"When {count_text(len(jobs), 'gang')} waited and ran"
    frame = [*view.time_axis(HEAD, at), *parts, view.slider_line(HEAD, at)]
    drawing = svg.drawing(name, at + BELOW, words, frame)
    keys = [*view.legend, Key("f7 wait", "light: waits"), Key("mark", "stopped")]
    return Chart(name, title, drawing, keys, [_job_table(view)], note, is_walkable=True)


def _job_table(view: View) -> Table:
    timeline, end_ms = view.timeline, view.timeline.end_ms
    jobs = sorted(timeline.jobs, key=lambda j: -j.waited_ms(end_ms))
    rows = []
    for job in sorted(jobs[:MOST_ROWS], key=lambda j: j.submit_ms):
        waited, start = job.waited_ms(end_ms), job.start_ms()
        stops = sum(run.why not in (DONE, GOES_ON) for run in job.runs)
        fate = "finished" if job.done_ms is not None else "runs" if job.is_running else "waits"
        fate += f", stopped {count_text(stops, 'time')} before" if stops else ""
        began, done = (
            Cell("–") if at is None else Cell(moment(at), at) for at in (start, job.done_ms)
        )
        rows.append(
            (
                *(Cell(job.key), Cell(timeline.queues[job.queue])),
                *(Cell(plain(job.tasks), job.tasks), Cell(plain(job.size / 1000), job.size)),
                *(Cell(moment(job.submit_ms), job.submit_ms), began, Cell(span(waited), waited)),
                *(Cell(str(len(job.runs)), len(job.runs)), done, Cell(fate)),
            )
        )
    note = ""
    if len(jobs) > MOST_ROWS:
        note = f"The {plain(MOST_ROWS)} of {plain(len(jobs))} gangs that waited longest are shown."
    numbers = ("tasks", timeline.lanes.unit, "arrived", "first start", "waited", "runs", "end")
    return Table("Gangs", ("gang", "queue", *numbers, "how the gang ended"), rows, numbers, note)


def _draw_bars(view: View, job: Job, top: float) -> Iterable[Markup]:
    """Yield a bar for each wait and each run of a gang, and a mark where a run was stopped."""
    css, where = f"f{view.colour[job.queue]}", f"{job.key} ({view.timeline.queues[job.queue]})"
    bars = [
        (a, b, 4, f"bar wait {css}", f"waits from {moment(a)} to {moment(b)} ({span(b - a)})")
        for a, b in job.waits(view.timeline.end_ms)
    ]
    bars += [(run.from_ms, run.to_ms, 0, f"bar {css}", run_text(run)) for run in job.runs]
    for begin, end, shrunk, bar_css, words in bars:
        x, height = view.x(begin), _HEIGHT - 2 * shrunk
        box = (x, top + shrunk, max(view.x(end) - x, 0.8), height)
        yield svg.rect(box, class_=bar_css, rx=2, data_tip=f"{where}\n{words}")
    for run in job.runs:
        if run.why not in (DONE, GOES_ON):
            words = f"{where}\n{describe_end(run.why)}"
            yield _draw_stop(view, run.to_ms, top + _HEIGHT / 2, words)


def _draw_stop(view: View, at_ms: int, y: float, words: str) -> Markup:
    return svg.diamond(view.x(at_ms), y, 5.5, 6, data_tip=f"{words} at {moment(at_ms)}")


# --- queues over time ----------------------------------------------------------------------------


def _queue_panels(view: View) -> Chart:
    """Return a chart of the GPUs that each queue holds, and that its waiting gangs request.

    In clusters without GPUs, the chart shows CPUs instead.
    """
    timeline, colours = view.timeline, len(view.colours)
    running = bin_means(view.spans, view.gpu_milli / 1000, view.stay_colours, colours, view.edges)
    waits = [
        (a, b, job.size / 1000, view.colour[job.queue])
        for job in timeline.jobs
        for a, b in job.waits(timeline.end_ms)
    ]
    begins, ends, rows = (column([w[i] for w in waits]) for i in (0, 1, 3))
    sizes = np.array([w[2] for w in waits], dtype=np.float64)
    waiting = bin_means((begins, ends), sizes, rows, colours, view.edges)
    parts: list[Markup] = [names_title("queue")]
    cells = []
    for colour, name in enumerate(view.colours):
        parts += _draw_panel(view, colour, running[colour], waiting[colour])
        series = running[colour], waiting[colour]
        values = [float(v) for each in series for v in (each.mean(), each.max())]
        cells.append((Cell(name), *(Cell(plain(v, 1), v) for v in values)))
    bottom = HEAD + colours * (_PANEL + 12)
    frame = [*view.time_axis(HEAD, bottom), *parts, view.slider_line(HEAD, bottom)]
    unit = timeline.lanes.unit
    columns = ("allocated, mean", "allocated, max", "waited for, mean", "waited for, max")
    return Chart(
        NAME,
        f"Allocated and requested {unit}s by queue",
        svg.drawing(NAME, bottom + BELOW, f"Allocated and requested {unit}s by queue", frame),
        [*view.legend, Key("f7 wait", "light: waited for"), Key("mark", "gangs were stopped")],
        [Table(f"{unit}s", ("queue", *columns), cells, columns)],
        "Each queue has its own scale; the maximum is written next to the queue.",
        is_walkable=True,
    )


def _draw_panel(view: View, colour: int, running: Floats, waiting: Floats) -> Iterable[Markup]:
    top, name = HEAD + colour * (_PANEL + 12), view.colours[colour]
    floor, most = top + _PANEL, float((running + waiting).max())
    scale = _PANEL / most if most else 0.0
    yield svg.lane(LEFT, top, RIGHT - LEFT, _PANEL)
    yield svg.label((LEFT - 8, top + 27), LABEL, name, css="heading")
    peak = f"up to {plain(most, 0 if most >= 10 else 1)} {view.timeline.lanes.unit}s"
    yield svg.text((LEFT - 8, top + 68), peak, text_anchor="end")
    base = np.full(len(running), floor)
    above = np.round(base - running * scale, 1)
    over = np.round(base - (running + waiting) * scale, 1)
    for low, high, css, series, what in (
        (above, over, f"f{colour} wait", waiting, "waited for"),
        (base, above, f"f{colour}", running, "run"),
    ):
        steps = svg.ribbon(view.edges_x, high.tolist(), low.tolist())
        tip = f"{name}: {plain(float(series.mean()), 1)} {what} on average"
        yield svg.path(steps, class_=css, data_tip=tip)
    times = [
        run.to_ms
        for job in view.timeline.jobs
        if view.colour[job.queue] == colour
        for run in job.runs
        if run.why not in (DONE, GOES_ON)
    ]
    # Draw one mark per time bin in which gangs were stopped.
    places = np.searchsorted(view.edges, column(times), "right") - 1
    numbers = np.bincount(np.minimum(places, len(view.edges) - 2))
    for place in np.flatnonzero(numbers).tolist():
        at_ms = int((view.edges[place] + view.edges[place + 1]) / 2)
        stopped = count_text(int(numbers[place]), "gang")
        yield _draw_stop(view, at_ms, floor, f"{name}: {stopped} stopped about")
