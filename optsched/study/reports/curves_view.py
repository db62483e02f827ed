"""Curves: what queues held over time, and how times of gangs are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.number_text import part_ticks, percent, plain, seconds, time_unit
from optsched.study.reports.page import Cell, Chart, Key, Table
from optsched.study.reports.time_bins import bin_means
from optsched.study.reports.timeline_arrays import LEFT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from optsched.study.reports.time_bins import Floats
    from optsched.study.reports.timeline_arrays import View

_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, svg.WIDTH - 16.0, 10.0, 250.0
_HEIGHT: Final = _BOTTOM + 44
MOST_STEPS: Final = 200


# --- shares over time ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shares:
    """Parts of the cluster over time, in equal stretches."""

    names: Sequence[str]  # of queues, one a colour
    held: Floats  # parts of all GPUs (of all CPUs without GPUs), shaped (names, stretches)
    dominant: Floats  # the same of the resource of which the queue holds the greatest part
    end_ms: int


def shares_of(view: View) -> Shares:
    """Of a story."""
    timeline, colours = view.timeline, len(view.colours)
    total = timeline.lanes.total_milli or 1
    held = bin_means(view.spans, view.gpu_milli, view.stay_colours, colours, view.edges) / total
    dominant = np.zeros_like(held)
    shapes = np.array([s.shape for s in timeline.stays], dtype=np.int64)
    for resource in range(timeline.shapes.shape[1]):
        parts = timeline.shapes[shapes, resource]
        found = bin_means(view.spans, parts, view.stay_colours, colours, view.edges)
        dominant = np.maximum(dominant, found)
    return Shares(view.colours, held, dominant, timeline.end_ms)


def share_charts(view: View) -> list[Chart]:
    """Stacked use of queues, and their dominant shares as lines."""
    shares = shares_of(view)
    unit = view.timeline.lanes.unit
    ticks = view.time_axis(_TOP, _BOTTOM)
    return [
        Chart(
            "held",
            f"{unit}s held, as a part of all",
            svg.drawing(
                "held",
                _HEIGHT,
                f"{unit}s held by queue",
                [*ticks, *_area(view, shares), _share_title(f"part of all {unit}s (%)")],
            ),
            view.legend,
            [_share_table(shares, shares.held, f"Part of all {unit}s")],
        ),
        Chart(
            "dominant",
            "Dominant shares",
            svg.drawing(
                "dominant",
                _HEIGHT,
                "Dominant share by queue",
                [*_lines(view, shares), _share_title("dominant share (%)")],
            ),
            [Key(f"l{i}", name) for i, name in enumerate(shares.names)],
            [_share_table(shares, shares.dominant, "Dominant share")],
            "The greatest part of any resource of the cluster that a queue holds.",
        ),
    ]


def _area(view: View, shares: Shares) -> Iterable[Markup]:
    top = max(float(shares.held.sum(axis=0).max()), 1.0)
    yield from _part_axis(top, view.x(0))
    floor = np.full(shares.held.shape[1], _BOTTOM)
    for i, part in enumerate(shares.held):
        above = np.round(floor - part / top * (_BOTTOM - _TOP), 1)
        steps = svg.ribbon(view.edges_x, above.tolist(), floor.tolist())
        words = f"{shares.names[i]}: {percent(float(part.mean()))} on average"
        yield svg.path(steps, class_=f"f{i}", data_tip=words)
        floor = above


def _lines(view: View, shares: Shares) -> Iterable[Markup]:
    top = part_ticks(max(float(shares.dominant.max(initial=0.0)), 0.01))[-1]
    yield from view.time_axis(_TOP, _BOTTOM)
    yield from _part_axis(top, view.x(0))
    for i, part in enumerate(shares.dominant):
        heights = np.round(_BOTTOM - part / top * (_BOTTOM - _TOP), 1).tolist()
        points = list(zip(view.edges_x, [*heights, heights[-1]], strict=True))
        words = f"{shares.names[i]}: {percent(float(part.mean()))} on average"
        yield svg.path(svg.staircase(points), class_=f"l{i}", data_tip=words)


def _share_title(words: str) -> Markup:
    return svg.y_title(LEFT - 58, (_TOP + _BOTTOM) / 2, words)


def _part_axis(top: float, left: float) -> Iterable[Markup]:
    for part in part_ticks(top):
        y = _BOTTOM - part / top * (_BOTTOM - _TOP)
        yield svg.line((left, y), (_RIGHT, y), class_="grid")
        digits = 0 if top > 0.1 else 1
        yield svg.text((left - 8, y + 4), f"{100 * part:.{digits}f}", text_anchor="end")


def _share_table(shares: Shares, series: Floats, caption: str) -> Table:
    rows = []
    for name, part in zip(shares.names, series, strict=True):
        values = (float(part.mean()), float(part.max(initial=0.0)))
        rows.append((Cell(name), *(Cell(percent(v), v) for v in values)))
    columns = ("mean", "most")
    return Table(caption, ("queue", *columns), rows, frozenset(columns))


# --- distributions -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Curve:
    """A distribution of times: which part of all is done after how many seconds."""

    name: str
    css: str
    values: Sequence[float]


def thinned(values: Sequence[float], most: int = MOST_STEPS) -> list[float]:
    """Rising values; where there are more, those at equally many equal steps of rank."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most)]


def cdf_chart(name: str, title: str, curves: Sequence[Curve], note: str = "") -> Chart:
    """Distributions over a logarithmic axis of time that begins at nothing."""
    kept = [c for c in curves if c.values]
    top = max([1.0, *(max(c.values) for c in kept)])
    least = min([top, *(min(c.values) for c in kept)])
    reach = (max((m for m in _marks(top) if m <= least and m < top), default=0.0), top)
    parts = list(_cdf_axes(reach, title.lower()))
    for curve in kept:
        points = _steps(curve, reach)
        middle = seconds(_rank(curve.values, 50))
        words = f"{curve.name}: half of the gangs within {middle}"
        parts.append(svg.path(svg.staircase(points), class_=curve.css, data_tip=words))
    keys = [Key(c.css, c.name) for c in kept]
    drawing = svg.drawing(name, _HEIGHT, f"{title}: part of gangs by time", parts)
    return Chart(name, title, drawing, keys, [_cdf_table(title, kept)], note)


def _steps(curve: Curve, reach: tuple[float, float]) -> list[tuple[float, float]]:
    ordered = thinned(curve.values)
    points = [(_LEFT, _BOTTOM)]
    for i, value in enumerate(ordered, 1):
        points.append((_time_x(value, reach), _BOTTOM - i / len(ordered) * (_BOTTOM - _TOP)))
    return [*points, (_RIGHT, _TOP)]


def _time_x(value: float, reach: tuple[float, float]) -> float:
    least, top = (math.log1p(end) for end in reach)
    return round(_LEFT + (_RIGHT - _LEFT) * (math.log1p(value) - least) / (top - least), 1)


def _marks(top: float) -> list[float]:
    """Powers of ten of the unit of an axis, in seconds, from one second or so."""
    scale = time_unit(1000 * top)[1] / 1000
    return [mark for power in range(-5, 6) if 1 <= (mark := scale * 10.0**power) <= top]


def _cdf_axes(reach: tuple[float, float], title: str) -> Iterable[Markup]:
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _BOTTOM - part * (_BOTTOM - _TOP)
        yield svg.line((_LEFT, y), (_RIGHT, y), class_="grid")
        yield svg.text((_LEFT - 8, y + 4), f"{100 * part:.0f}", text_anchor="end")
    unit, unit_ms = time_unit(1000 * reach[1])
    for value in (0.0, *_marks(reach[1])):
        if reach[0] <= value <= reach[1]:
            x = _time_x(value, reach)
            yield svg.line((x, _TOP), (x, _BOTTOM), class_="grid")
            words = f"{1000 * value / unit_ms:g}"
            yield svg.text((x, _BOTTOM + 16), words, text_anchor="middle")
    yield svg.x_title((_LEFT + _RIGHT) / 2, _BOTTOM + 36, f"{title} ({unit}, logarithmic)")
    yield svg.y_title(_LEFT - 50, (_TOP + _BOTTOM) / 2, "part of gangs (%)")


def _rank(values: Sequence[float], in_hundred: int) -> float:
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * in_hundred // 100), 1) - 1]


def _cdf_table(title: str, curves: Sequence[Curve]) -> Table:
    columns = ("number", "mean", "p50", "p90", "p95", "p99", "most")
    rows = []
    for curve in curves:
        mean = sum(curve.values) / len(curve.values)
        told = [mean, *(_rank(curve.values, p) for p in (50, 90, 95, 99, 100))]
        cells = [Cell(seconds(v), v) for v in told]
        number = len(curve.values)
        rows.append((Cell(curve.name), Cell(plain(number), number), *cells))
    return Table(title, ("of", *columns), rows, frozenset(columns))
