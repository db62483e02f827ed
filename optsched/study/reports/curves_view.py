"""Curve charts: optimality gaps and queue shares over time, and distributions of gang times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.number_text import (
    UNKNOWN,
    part_ticks,
    percent,
    plain,
    seconds,
    time_unit,
)
from optsched.study.reports.page import Cell, Chart, Key, Table
from optsched.study.reports.timeline_arrays import LEFT
from optsched.study.simulation.timeline import bin_means, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from optsched.study.reports.timeline_arrays import View
    from optsched.study.simulation.timeline import Floats

_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, svg.WIDTH - 16.0, 10.0, 250.0
_HEIGHT: Final = _BOTTOM + 44
_GAP_RIGHT, _GAP_BOTTOM = svg.WIDTH - 24.0, 190.0
MOST_STEPS: Final = 200
_CDF_COLUMNS: Final = ("mean", "p50", "p90", "p95", "p99", "most")
_MISSING: Final = (
    "A curve ends at the fraction of gangs whose time is known; 100 % means all gangs, including "
    "those whose time is not known."
)


def _percent_grid(
    marks: Sequence[tuple[float, float]], left: float, right: float
) -> Iterable[Markup]:
    """Yield horizontal grid lines with percent labels; `marks` holds (y coordinate, fraction)."""
    digits = 0 if marks[-1][1] > 0.1 else 1
    for y, part in marks:
        yield svg.line((left, y), (right, y), class_="grid")
        yield svg.text((left - 8, y + 4), f"{100 * part:.{digits}f}", text_anchor="end")


# --- gaps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GapLine:
    """A line in a gap chart, which shows an optimality gap over time."""

    name: str
    css: str
    # Points (instant, gap as a fraction of 1), sorted by instant. The gap stays constant from each
    # point until the next one.
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A time axis: its end, its tick marks (instant, label), and its title with the unit."""

    end: float
    marks: Sequence[tuple[float, str]]
    title: str


def gap_chart(
    name: str, title: str, lines: Sequence[GapLine], time: TimeAxis, table: Table, note: str
) -> Chart:
    """Return a chart with one line (in percent) per `GapLine`; gaps are capped at 100 %."""
    greatest = max((gap for line in lines for _, gap in line.points), default=0.0)
    ticks = part_ticks(min(max(greatest, 0.01), 1.0))
    right, bottom, end = _GAP_RIGHT, _GAP_BOTTOM, time.end or 1

    def y(gap: float) -> float:
        return round(bottom - (bottom - _TOP) * min(gap / ticks[-1], 1.0), 1)

    parts = [
        *_percent_grid([(y(part), part) for part in ticks], _LEFT, right),
        *svg.x_grid(
            ((round(svg.scale(at, end, _LEFT, right), 1), words) for at, words in time.marks),
            _TOP,
            bottom,
        ),
        svg.x_title((_LEFT + right) / 2, bottom + 36, time.title),
        svg.y_title(_LEFT - 50, (_TOP + bottom) / 2, "gap (%)"),
    ]
    for line in filter(lambda line: line.points, lines):
        points = [(round(svg.scale(at, end, _LEFT, right), 1), y(gap)) for at, gap in line.points]
        first, last = line.points[0][1], line.points[-1][1]
        tip = f"{line.name}: gap {percent(first, 2)} at the start, {percent(last, 2)} at the end"
        steps = svg.staircase([*points, (right, points[-1][1])])
        parts.append(svg.path(steps, class_=line.css, data_tip=tip))
        for (at_x, at_y), (_, gap) in zip(points, line.points, strict=True):
            if len(points) <= 60:
                words = f"{line.name}: gap {percent(gap, 2)}"
                css = f"q{line.css[1:]}"
                parts.append(svg.tag("circle", cx=at_x, cy=at_y, r=3, class_=css, data_tip=words))
    drawing = svg.drawing(name, bottom + 44, f"{title}: gap in percent over time", parts)
    if greatest > 1:
        note = f"{note} Gaps above 100 % are drawn at 100 %.".strip()
    keys = [Key(line.css, line.name) for line in lines]
    return Chart(name, title, drawing, keys, [table], note, is_walkable=True)


# --- shares over time ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shares:
    """The fractions of all capacity that queues hold, as arrays (queue colour, time bin)."""

    held: Floats  # Fraction of all GPUs, or of all CPUs in a cluster without GPUs.
    dominant: Floats  # Dominant share: the largest fraction of any resource that the queue holds.


def shares_of(view: View) -> Shares:
    """Return the shares that each queue holds in each time bin of a view."""
    timeline, colours = view.timeline, len(view.colours)
    total = timeline.lanes.total_milli or 1
    held = bin_means(view.spans, view.gpu_milli, view.stay_colours, colours, view.edges) / total
    dominant = np.zeros_like(held)
    shapes = np.array([s.shape for s in timeline.stays], dtype=np.int64)
    for resource in range(timeline.shapes.shape[1]):
        parts = timeline.shapes[shapes, resource]
        found = bin_means(view.spans, parts, view.stay_colours, colours, view.edges)
        dominant = np.maximum(dominant, found)
    return Shares(held, dominant)


def share_charts(view: View) -> list[Chart]:
    """Return a stacked chart of the GPUs held by each queue, and a chart of dominant shares."""
    shares, unit, charts = shares_of(view), view.timeline.lanes.unit, list[Chart]()
    time, height = view.time_axis(_TOP, _BOTTOM), _BOTTOM - _TOP
    stack_title, stack_words = f"Fraction of all {unit}s held", f"{unit}s held by queue"
    stack_axis, stack_caption = f"fraction of all {unit}s (%)", f"Fraction of all {unit}s"
    for name, title, words, axis, caption, css, series in (
        ("held", stack_title, stack_words, stack_axis, stack_caption, "f", shares.held),
        ("dominant", "Dominant shares", "Dominant share by queue", "dominant share (%)",
         "Dominant share", "l", shares.dominant),
    ):  # fmt: skip
        stacked = css == "f"
        top = max(float(series.sum(axis=0).max()), 1.0)
        if not stacked:
            top = part_ticks(max(float(series.max(initial=0.0)), 0.01))[-1]
        marks = [(_BOTTOM - part / top * height, part) for part in part_ticks(top)]
        parts = [*time, *_percent_grid(marks, view.x(0), _RIGHT)]
        floor, rows = np.full(series.shape[1], _BOTTOM), []
        for i, (queue, part) in enumerate(zip(view.colours, series, strict=True)):
            mean, most = float(part.mean()), float(part.max(initial=0.0))
            above = np.round(floor - part / top * height, 1)
            heights = above.tolist()
            steps = (
                svg.ribbon(view.edges_x, heights, floor.tolist())
                if stacked
                else svg.staircase(list(zip(view.edges_x, [*heights, heights[-1]], strict=True)))
            )
            tip = f"{queue}: {percent(mean)} on average"
            parts.append(svg.path(steps, class_=f"{css}{i}", data_tip=tip))
            rows.append((Cell(queue), *(Cell(percent(v), v) for v in (mean, most))))
            floor = above if stacked else floor
        parts.append(svg.y_title(LEFT - 58, (_TOP + _BOTTOM) / 2, axis))
        keys = [Key(f"{css}{i}", queue) for i, queue in enumerate(view.colours)]
        columns = ("mean", "most")
        table = Table(caption, ("queue", *columns), rows, columns)
        note = "Dominant share: the largest fraction of any resource that a queue holds."
        drawing = svg.drawing(name, _HEIGHT, words, parts)
        charts.append(Chart(name, title, drawing, keys, [table], "" if stacked else note))
    return charts


# --- distributions -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Curve:
    """How a duration in seconds, such as the completion time, is distributed over the gangs.

    A gang whose duration is not known, for example an unfinished gang, has no value. Gangs without
    a value still count in the fractions on the y axis, because starvation must not improve the
    curve.
    """

    name: str
    css: str
    values: Sequence[float]
    num_missing: int = 0  # Number of gangs whose time is not known.

    @property
    def known_fraction(self) -> float:
        """The fraction of gangs whose time is known."""
        return len(self.values) / max(len(self.values) + self.num_missing, 1)


def thin_values(values: Sequence[float], most: int = MOST_STEPS) -> list[float]:
    """Return the sorted values, or `most` of them at equidistant ranks if there are more."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most)]


def cdf_chart(
    name: str, title: str, curves: Sequence[Curve], note: str = "", *, is_counted: bool = True
) -> Chart:
    """Return a chart of cumulative distributions, with a logarithmic time axis.

    A curve ends at the fraction of gangs whose time is known. If `is_counted` is true, each value
    belongs to one gang, and the table shows the number of gangs.
    """
    kept = [c for c in curves if c.values or c.num_missing]
    values = [value for curve in kept for value in curve.values]
    top = max([1.0, *values])
    least = min([top, *values])
    unit, unit_ms = time_unit(1000 * top)
    # Tick marks are powers of ten in the time unit, converted to seconds; the first is at least one
    # second.
    powers = (unit_ms / 1000 * 10.0**power for power in range(-5, 6))
    marks = [mark for mark in powers if 1 <= mark <= top]
    begin = max((m for m in marks if m <= least and m < top), default=0.0)

    def x(value: float) -> float:
        low, high = math.log1p(begin), math.log1p(top)
        return round(_LEFT + (_RIGHT - _LEFT) * (math.log1p(value) - low) / (high - low), 1)

    def y(part: float) -> float:
        return _BOTTOM - part * (_BOTTOM - _TOP)

    ticks = ((x(v), f"{1000 * v / unit_ms:g}") for v in (0.0, *marks) if v >= begin)
    parts = [
        *_percent_grid([(y(part), part) for part in (0.0, 0.25, 0.5, 0.75, 1.0)], _LEFT, _RIGHT),
        *svg.x_grid(ticks, _TOP, _BOTTOM),
        svg.x_title((_LEFT + _RIGHT) / 2, _BOTTOM + 36, f"{title.lower()} ({unit}, logarithmic)"),
        svg.y_title(_LEFT - 50, (_TOP + _BOTTOM) / 2, "fraction of gangs (%)"),
    ]
    rows = []
    for curve in kept:
        ordered, steps = sorted(curve.values), thin_values(curve.values)
        points = [
            (x(value), y(curve.known_fraction * i / len(steps))) for i, value in enumerate(steps, 1)
        ]
        path = svg.staircase([(_LEFT, _BOTTOM), *points, (_RIGHT, y(curve.known_fraction))])
        tip = f"{curve.name}: {percent(curve.known_fraction)} of the gangs"
        cells = [Cell(UNKNOWN)] * len(_CDF_COLUMNS)
        if ordered:
            figures = [nearest_rank(ordered, p) for p in (50, 90, 95, 99, 100)]
            tip += f", whose median is {seconds(figures[0])}"
            mean = sum(ordered) / len(ordered)
            cells = [Cell(seconds(v), v) for v in (mean, *figures)]
        parts.append(svg.path(path, class_=curve.css, data_tip=tip))
        number = [Cell(plain(len(ordered)), len(ordered))] if is_counted else []
        part = Cell(percent(curve.known_fraction), curve.known_fraction)
        rows.append((Cell(curve.name), *number, part, *cells))
    columns = (*(("gangs",) if is_counted else ()), "fraction of gangs", *_CDF_COLUMNS)
    table = Table(title, ("of", *columns), rows, columns)
    if any(curve.num_missing for curve in kept):
        note = f"{_MISSING} {note}".strip()
    keys = [Key(c.css, c.name) for c in kept]
    drawing = svg.drawing(name, _HEIGHT, f"{title}: fraction of gangs by time", parts)
    return Chart(name, title, drawing, keys, [table], note)
