"""Waiting gangs with reasons, and how long gangs of each queue have waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
from optsched.study.reports.timeline_arrays import LABEL, LEFT, names_title, waited_ms
from optsched.study.simulation.timeline import GOES_ON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from markupsafe import Markup

    from optsched.study.simulation.timeline import Job, Timeline

MOST_QUEUES: Final = 40
QUANTILES: Final = (5, 25, 50, 75, 95, 100)
_ROW: Final = 30.0
_RIGHT: Final = svg.WIDTH - 190.0


# --- what waits, and why -------------------------------------------------------------------------


def reason_section(timeline: Timeline) -> Section:
    """Gangs that wait at the end of a replay with the reason of the last session."""
    heading, end = "What waits, and why", moment(timeline.end_ms)
    waiting = [
        job
        for job in timeline.jobs
        if (job.done_ms is None and not (job.runs and job.runs[-1].why == GOES_ON))
    ]
    waiting.sort(key=lambda job: (-waited_ms(job, timeline.end_ms), job.key))
    rows = [_reason_row(timeline, job) for job in waiting[:MOST_ROWS]]
    if not rows:
        return Section("waiting", heading, (), [f"At the end, {end}, no gang waits."])
    number = count_text(len(waiting), "gang")
    note = ""
    if len(waiting) > MOST_ROWS:
        note = f"The {plain(MOST_ROWS)} of {plain(len(waiting))} that waited longest."
    headings = ("gang", "queue", "tasks", timeline.lanes.unit, "waited", "reason", "in words")
    numbers = frozenset(("tasks", timeline.lanes.unit, "waited"))
    caption = f"At the end, {end}: {number} waiting"
    return Section("waiting", heading, [Table(caption, headings, rows, numbers, note)])


def _reason_row(timeline: Timeline, job: Job) -> tuple[Cell, ...]:
    waited = waited_ms(job, timeline.end_ms)
    code, words = timeline.reasons.get(job.key, (UNKNOWN, "no session has decided on it yet"))
    return (
        Cell(job.key),
        Cell(timeline.queues[job.queue]),
        Cell(plain(job.tasks), job.tasks),
        Cell(plain(job.size / 1000), job.size),
        Cell(span(waited), waited),
        Cell(code),
        Cell(words),
    )


# --- waiting time by queue -----------------------------------------------------------------------


def quantile(ordered: Sequence[int], in_hundred: int) -> int:
    """Return the nearest-rank quantile of at least one increasing value."""
    return ordered[max(-(-len(ordered) * in_hundred // 100), 1) - 1]


def wait_chart(timeline: Timeline) -> Chart:
    """Return a chart with quantiles of waiting times, one row per queue."""
    times: dict[str, list[int]] = {}
    for job in timeline.jobs:
        times.setdefault(timeline.queues[job.queue], []).append(waited_ms(job, timeline.end_ms))
    for waits in times.values():
        waits.sort()
    note = (
        "All time in which a gang waited for its minimum, before and between its runs. Gangs that "
        "still wait count with their wait so far."
    )
    return quantile_chart("waits", "Waiting time by queue", times, "queue", note)


def quantile_chart(
    name: str,
    title: str,
    times: Mapping[str, Sequence[int]],
    of: str,
    note: str,
    *,
    is_counted: bool = True,
) -> Chart:
    """Return a chart of quantiles of increasing times (ms), one row per name, longest first.

    `is_counted`: each time is of one gang, so that their number says something.
    """
    order = sorted(times, key=lambda n: (-quantile(times[n], 95), -times[n][-1], n))
    shown = order[:MOST_QUEUES]
    end_ms = max((times[n][-1] for n in order), default=0) or 1000
    parts: list[Markup] = [names_title(of)]
    at = 18.0
    for row in shown:
        height = max(_ROW, svg.LINE * len(svg.label_lines(row, LABEL, css="heading")) + 4)
        parts.append(svg.label((LEFT - 8, at + height / 2), LABEL, row, css="heading"))
        parts += _row(row, times[row], (end_ms, at + height / 2), is_counted=is_counted)
        at += height
    if len(order) > MOST_QUEUES:
        note += f" The {MOST_QUEUES} of {len(order)} with the longest waits; the table has all."
    keys = [
        Key("q0", "middle half of the gangs"),
        Key("lall", "half of the gangs waited less"),
        Key("whisker", "5 to 95 of 100 gangs"),
        Key("mark", "the longest"),
    ]
    drawing = svg.drawing(name, at + 42, f"{title}: quantiles", [*_axis(end_ms, at), *parts])
    table = _table((title, of), order, times, is_counted=is_counted)
    return Chart(name, title, drawing, keys, [table], note, is_walkable=True)


def _x(at_ms: float, end_ms: int) -> float:
    return LEFT + (_RIGHT - LEFT) * at_ms / end_ms


def _axis(end_ms: int, bottom: float) -> Iterable[Markup]:
    for at_ms, words in time_ticks(end_ms, 6):
        x = _x(at_ms, end_ms)
        yield svg.line((x, 18), (x, bottom), class_="grid")
        yield svg.text((x, bottom + 16), words, text_anchor="middle")
    title = f"waiting time ({time_unit(end_ms)[0]})"
    yield svg.x_title((LEFT + _RIGHT) / 2, bottom + 35, title)


def _row(
    name: str, waits: Sequence[int], where: tuple[int, float], *, is_counted: bool
) -> Iterable[Markup]:
    end_ms, y = where
    p5, p25, p50, p75, p95, most = (quantile(waits, p) for p in QUANTILES)
    x5, x25, x50, x75, x95, x_most = (_x(v, end_ms) for v in (p5, p25, p50, p75, p95, most))
    number = f": {count_text(len(waits), 'gang')}" if is_counted else ""
    words = (
        f"{name}{number}\nhalf waited less than {span(p50)}, "
        f"95 of 100 less than {span(p95)}, the longest {span(most)}"
    )
    yield svg.line((x5, y), (x95, y), class_="whisker")
    for x in (x5, x95):
        yield svg.line((x, y - 5), (x, y + 5), class_="whisker")
    box = (x25, y - 8, max(x75 - x25, 1.5), 16)
    yield svg.rect(box, class_="bar q0", data_tip=words)
    yield svg.line((x50, y - 9), (x50, y + 9), class_="lall")
    yield svg.path(
        svg.polyline([(x_most, y - 5), (x_most + 5, y), (x_most, y + 5), (x_most - 5, y)]) + "Z",
        class_="mark",
    )
    unit, unit_ms = time_unit(end_ms)
    told = f"p50 {_short(p50 / unit_ms)} · p95 {_short(p95 / unit_ms)} {unit}"
    yield svg.text((_RIGHT + 12, y + 4), told, class_="name")


def _short(value: float) -> str:
    return plain(value, 0 if value >= 100 else 1 if value >= 10 else 2)


def _table(
    titles: tuple[str, str],
    order: Sequence[str],
    times: Mapping[str, Sequence[int]],
    *,
    is_counted: bool,
) -> Table:
    title, of = titles
    columns = ("mean", *(f"p{p}" for p in QUANTILES[:-1]), "longest")
    if is_counted:
        columns = ("gangs", *columns)
    rows = []
    for name in order[:MOST_ROWS]:
        waits = times[name]
        told = [sum(waits) / len(waits), *(quantile(waits, p) for p in QUANTILES)]
        cells = [Cell(span(v), v) for v in told]
        if is_counted:
            cells.insert(0, Cell(plain(len(waits)), len(waits)))
        rows.append((Cell(name), *cells))
    return Table(title, (of, *columns), rows, frozenset(columns))
