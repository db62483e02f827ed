"""The distance of values from their bounds, in percent, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.study.reports import svg
from optsched.study.reports.number_text import part_ticks, percent
from optsched.study.reports.page import Chart, Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from optsched.study.reports.page import Table

LEFT: Final = 74.0
RIGHT: Final = svg.WIDTH - 24.0
TOP, BOTTOM = 10.0, 190.0
HEIGHT: Final = BOTTOM + 44


@dataclass(frozen=True, slots=True)
class GapLine:
    """A gap over time."""

    name: str
    css: str
    # (instant, gap as a part of one), by instant; a gap holds up to the next instant
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """An axis of time: its end, its marks as (instant, number), and its title with the unit."""

    end: float
    marks: Sequence[tuple[float, str]]
    title: str


def gap_chart(
    name: str,
    title: str,
    lines: Sequence[GapLine],
    time: TimeAxis,
    *,
    tables: Sequence[Table] = (),
    note: str = "",
) -> Chart:
    """A line for each gap, in percent; values above 100 % are drawn at 100 %."""
    greatest = max((gap for line in lines for _, gap in line.points), default=0.0)
    top = part_ticks(min(max(greatest, 0.01), 1.0))[-1]
    parts = list(_axes(time, top))
    for line in lines:
        parts += _line(line, time, top)
    drawing = svg.drawing(name, HEIGHT, f"{title}: gap in percent over time", parts)
    if greatest > 1:
        note = f"{note} Gaps above 100 % are drawn at 100 %.".strip()
    keys = [Key(line.css, line.name) for line in lines]
    return Chart(name, title, drawing, keys, tables, note, is_walkable=True)


def _x(at: float, time: TimeAxis) -> float:
    return round(LEFT + (RIGHT - LEFT) * at / (time.end or 1), 1)


def _y(gap: float, top: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * min(gap / top, 1.0), 1)


def _axes(time: TimeAxis, top: float) -> Iterable[Markup]:
    digits = 0 if top > 0.1 else 1
    for part in part_ticks(top):
        y = _y(part, top)
        yield svg.line((LEFT, y), (RIGHT, y), class_="grid")
        yield svg.text((LEFT - 8, y + 4), f"{100 * part:.{digits}f}", text_anchor="end")
    for at, words in time.marks:
        x = _x(at, time)
        yield svg.line((x, TOP), (x, BOTTOM), class_="grid")
        yield svg.text((x, BOTTOM + 16), words, text_anchor="middle")
    yield svg.x_title((LEFT + RIGHT) / 2, BOTTOM + 36, time.title)
    yield svg.y_title(LEFT - 50, (TOP + BOTTOM) / 2, "gap (%)")


def _line(line: GapLine, time: TimeAxis, top: float) -> Iterable[Markup]:
    if not line.points:
        return
    points = [(_x(at, time), _y(gap, top)) for at, gap in line.points]
    first, last = line.points[0][1], line.points[-1][1]
    tip = f"{line.name}: gap {percent(first, 2)} at first, {percent(last, 2)} in the end"
    steps = svg.staircase([*points, (RIGHT, points[-1][1])])
    yield svg.path(steps, class_=line.css, data_tip=tip)
    if len(points) <= 60:
        for (x, y), (_, gap) in zip(points, line.points, strict=True):
            words = f"{line.name}: gap {percent(gap, 2)}"
            yield svg.tag("circle", cx=x, cy=y, r=3, class_=f"q{line.css[1:]}", data_tip=words)
