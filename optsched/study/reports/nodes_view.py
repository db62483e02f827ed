"""Nodes over time: a bar for each gang, or the load of groups of nodes where there are many.

Bars are drawn where there are few enough to tell them apart; otherwise neighbours (in name order)
are put together, and each row shows how much of them each queue held.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.number_text import (
    count_text,
    fitted,
    moment,
    percent,
    plain,
    text_width,
)
from optsched.study.reports.page import MOST_ROWS, Cell, Chart, Key, Table
from optsched.study.reports.time_bins import bin_means, column
from optsched.study.reports.timeline_arrays import (
    BELOW,
    HEAD,
    LABEL,
    LEFT,
    RIGHT,
    describe_end,
    lanes_text,
    names_title,
    ranges,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from optsched.study.reports.time_bins import Floats
    from optsched.study.reports.timeline_arrays import View
    from optsched.study.simulation.timeline import Stay

NAME: Final = "by-node"
MOST_BARS: Final = 2500
MOST_NODES: Final = 64
MOST_GROUPS: Final = 24
TOP: Final = HEAD + 2
_GAP: Final = 7.0
_GROUP_HEIGHT: Final = 36.0


def node_chart(view: View) -> Chart:
    """Bars by node where there is room for each, else by groups of nodes."""
    if len(view.timeline.nodes) <= MOST_NODES:
        bars = _bars(view)
        if len(bars) <= MOST_BARS:
            return _exact(view, bars)
    return _grouped(view)


# --- bars ----------------------------------------------------------------------------------------


class ChartBar(NamedTuple):
    """Lanes of a node that a gang has for a while."""

    job: int
    node: int
    # above, height: in lanes of the node
    above: float
    height: float
    from_ms: int
    to_ms: int
    why: str
    tasks: int
    what: str


def _bars(view: View) -> list[ChartBar]:
    """Neighbouring lanes of one gang at one time together; parts of lanes one by one."""
    whole: defaultdict[tuple[int, int, int, int, str], list[Stay]] = defaultdict(list)
    found: list[ChartBar] = []
    parts = _Parts(view)
    for stay in view.timeline.stays:
        if not stay.lanes:
            continue
        if stay.milli < view.timeline.lanes.milli[stay.node]:
            found += parts.bars(stay)
        else:
            key = (stay.job, stay.node, stay.from_ms, stay.to_ms, stay.why)
            whole[key].append(stay)
    for (job, node, from_ms, to_ms, why), stays in whole.items():
        lanes = tuple(sorted(lane for stay in stays for lane in stay.lanes))
        words = f"GPU {ranges(lanes)}" if view.timeline.lanes.unit == "GPU" else "the whole node"
        for a, b in together(lanes):
            found.append(ChartBar(job, node, a, b - a + 1, from_ms, to_ms, why, len(stays), words))
    return sorted(found, key=lambda b: (b.node, b.from_ms, b.above))


class _Piece(NamedTuple):
    to_ms: int
    above: float
    height: float


class _Parts:
    """Finds places for parts of lanes, so that none covers another one."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._there: defaultdict[tuple[int, int], list[_Piece]] = defaultdict(list)

    def bars(self, stay: Stay) -> list[ChartBar]:
        """Of a task with a part of each of its lanes."""
        height = stay.milli / self._view.timeline.lanes.milli[stay.node]
        words = lanes_text(self._view, stay)
        return [
            ChartBar(
                stay.job, stay.node, lane + self._lane_offset(stay, lane, height), height,
                stay.from_ms, stay.to_ms, stay.why, 1, words,
            )
            for lane in stay.lanes
        ]  # fmt: skip

    def _lane_offset(self, stay: Stay, lane: int, height: float) -> float:
        there = [p for p in self._there[stay.node, lane] if p.to_ms > stay.from_ms]
        above = 0.0
        for _, begin, size in sorted(there, key=lambda p: p.above):
            if begin >= above + height - 1e-9:
                break
            above = max(above, begin + size)
        above = max(min(above, 1 - height), 0.0)
        self._there[stay.node, lane] = [*there, _Piece(stay.to_ms, above, height)]
        return above


@dataclass(frozen=True)
class _Rows:
    """Where the lanes of nodes are."""

    lane_height: float
    tops: tuple[float, ...]
    bottom: float


def _exact(view: View, bars: Sequence[ChartBar]) -> Chart:
    lanes = view.timeline.lanes
    most = max(lanes.number, default=1)
    small = len(view.timeline.nodes) > 24
    height = 16.0 if most == 1 else 3.0 if small else 6.0
    tops, at = [], TOP
    for number in lanes.number:
        tops.append(at)
        if number:
            label = svg.LINE * len(svg.label_lines(view.timeline.nodes[len(tops) - 1], LABEL))
            at += max(number * height, label) + _GAP
    rows = _Rows(height, tuple(tops), at)
    parts = [names_title("node"), *view.time_axis(TOP, rows.bottom)]
    parts += [part for node in range(len(view.timeline.nodes)) for part in _row(view, rows, node)]
    parts += [_downed(view, rows, *down) for down in view.timeline.down]
    parts += [part for bar in bars for part in _drawn(view, rows, bar)]
    parts.append(view.slider_line(TOP, rows.bottom, int(view.instants[view.frame_shown])))
    title = (
        f"{count_text(len(bars), 'bar')} of gangs on {count_text(len(view.timeline.nodes), 'node')}"
    )
    return Chart(
        NAME,
        f"Nodes, and who had their {view.timeline.lanes.unit}s when",
        svg.drawing(NAME, rows.bottom + BELOW, title, parts),
        _legend(view),
        [_bar_table(view, bars)],
        _omission_note(view),
        is_walkable=True,
    )


def _legend(view: View) -> list[Key]:
    return [*view.legend, *([Key("downed", "node is down")] if view.timeline.down else [])]


def _omission_note(view: View) -> str:
    timeline = view.timeline
    bare = sum(number == 0 for number in timeline.lanes.number)
    idle = sum(not stay.lanes for stay in timeline.stays)
    remarks = []
    if bare:
        remarks.append(f"{count_text(bare, 'node')} without GPUs left out.")
    if idle:
        remarks.append(f"{count_text(idle, 'stay')} of pods without GPUs left out.")
    return " ".join(remarks)


def _row(view: View, rows: _Rows, node: int) -> list[Markup]:
    number = view.timeline.lanes.number[node]
    if not number:
        return []
    name, top, height = view.timeline.nodes[node], rows.tops[node], number * rows.lane_height
    middle = max(height, svg.LINE * len(svg.label_lines(name, LABEL))) / 2
    label = svg.label((LEFT - 8, top + middle), LABEL, name)
    return [label, svg.rect((LEFT, top, RIGHT - LEFT, height), class_="lane", fill_opacity=0.55)]


def _downed(view: View, rows: _Rows, node: int, from_ms: int, to_ms: int) -> Markup:
    height = view.timeline.lanes.number[node] * rows.lane_height
    x, end = view.x(from_ms), view.x(to_ms)
    words = f"{view.timeline.nodes[node]} is down\nfrom {moment(from_ms)} to {moment(to_ms)}"
    box = (x, rows.tops[node], end - x, height)
    return svg.rect(box, class_="downed", data_tip=words)


def _drawn(view: View, rows: _Rows, bar: ChartBar) -> list[Markup]:
    job = view.timeline.jobs[bar.job]
    x, width = view.x(bar.from_ms), max(view.x(bar.to_ms) - view.x(bar.from_ms), 0.6)
    top, height = rows.tops[bar.node] + bar.above * rows.lane_height, bar.height * rows.lane_height
    words = (
        f"{job.key} ({view.timeline.queues[job.queue]})\n"
        f"{view.timeline.nodes[bar.node]}, {bar.what}, {count_text(bar.tasks, 'task')}\n"
        f"from {moment(bar.from_ms)} to {moment(bar.to_ms)}: {describe_end(bar.why)}"
    )
    css = f"bar f{view.colour_of(bar.job)}"
    drawn = [svg.rect((x, top, width, height), class_=css, data_tip=words)]
    words = fitted(job.key, width - 10, bold=True)
    if height >= 14 and (words == job.key or len(words) >= 8):
        drawn.append(svg.text((x + 5, top + height / 2 + 4), words, class_="barname"))
    return drawn


def _bar_table(view: View, bars: Sequence[ChartBar]) -> Table:
    timeline = view.timeline
    rows = [
        (
            Cell(timeline.nodes[bar.node]),
            Cell(bar.what),
            Cell(timeline.jobs[bar.job].key),
            Cell(timeline.queues[timeline.jobs[bar.job].queue]),
            Cell(moment(bar.from_ms), bar.from_ms),
            Cell(moment(bar.to_ms), bar.to_ms),
            Cell(describe_end(bar.why)),
        )
        for bar in bars[:MOST_ROWS]
    ]
    note = f"The first {plain(MOST_ROWS)} of {plain(len(bars))}." if len(bars) > MOST_ROWS else ""
    headings = ("node", "what", "gang", "queue", "from", "to", "end")
    return Table("Who had which node when", headings, rows, frozenset(("from", "to")), note)


# --- groups of nodes -----------------------------------------------------------------------------


def _grouped(view: View) -> Chart:
    timeline = view.timeline
    kept = [i for i, number in enumerate(timeline.lanes.number) if number]
    each = -(-len(kept) // MOST_GROUPS)
    groups = [kept[i : i + each] for i in range(0, len(kept), each)]
    held, down = _shares_of(view, groups)
    parts = [names_title("nodes")]
    parts += view.time_axis(TOP, TOP + len(groups) * (_GROUP_HEIGHT + 4))
    for row, group in enumerate(groups):
        top = TOP + row * (_GROUP_HEIGHT + 4)
        parts.append(_group_label(view, group, top))
        parts.append(
            svg.rect((LEFT, top, RIGHT - LEFT, _GROUP_HEIGHT), class_="lane", fill_opacity=0.55)
        )
        parts += _layers(view, held[row], down[row], top)
    bottom = TOP + len(groups) * (_GROUP_HEIGHT + 4)
    parts.append(view.slider_line(TOP, bottom, int(view.instants[view.frame_shown])))
    title = f"What {count_text(len(groups), 'group')} of nodes held over time"
    note = (
        f"{plain(len(kept))} nodes in {count_text(len(groups), 'row')} of up to {each}, in name "
        f"order; the height of a colour is the part of the {timeline.lanes.unit}s that its queue "
        "held. "
    )
    return Chart(
        NAME,
        f"Nodes, and who held their {timeline.lanes.unit}s",
        svg.drawing(NAME, bottom + BELOW, title, parts),
        _legend(view),
        [_group_table(view, groups, held, down)],
        (note + _omission_note(view)).strip(),
        is_walkable=True,
    )


def _shares_of(view: View, groups: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """Parts of each group that are held, by group, colour and stretch; and that are down."""
    timeline, colours = view.timeline, len(view.colours)
    group_of = np.full(len(timeline.nodes), -1, dtype=np.int64)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
    amounts = column(timeline.lanes.number) * column(timeline.lanes.milli)
    whole = np.array([max(amounts[list(group)].sum(), 1) for group in groups], dtype=np.float64)
    mine = group_of[view.stay_nodes] if len(view.stay_nodes) else column([])
    rows = np.maximum(mine, 0) * colours + view.stay_colours
    flat = bin_means(
        view.spans,
        np.where(mine >= 0, view.gpu_milli, 0.0),
        rows,
        len(groups) * colours,
        view.edges,
    )
    nodes, begins, ends = (column([d[i] for d in timeline.down]) for i in range(3))
    lost = bin_means(
        (begins, ends),
        np.where(group_of[nodes] >= 0, amounts[nodes], 0).astype(np.float64),
        np.maximum(group_of[nodes], 0),
        len(groups),
        view.edges,
    )
    shaped = flat.reshape(len(groups), colours, -1) / whole[:, None, None]
    return shaped, lost / whole[:, None]


def _layers(view: View, held: Floats, down: Floats, top: float) -> Iterable[Markup]:
    """Colours stacked from the bottom of a row; unavailable capacity from its top."""
    floor = np.full(held.shape[1], top + _GROUP_HEIGHT)
    for colour, part in enumerate(held):
        if not part.any():
            continue
        above = np.round(floor - part * _GROUP_HEIGHT, 1)
        words = f"{view.colours[colour]}: {percent(float(part.mean()))} on average"
        steps = svg.ribbon(view.edges_x, above.tolist(), floor.tolist())
        yield svg.path(steps, class_=f"f{colour}", data_tip=words)
        floor = above
    if down.any():
        tops = np.full(len(down), top)
        steps = svg.ribbon(
            view.edges_x, tops.tolist(), np.round(tops + down * _GROUP_HEIGHT, 1).tolist()
        )
        yield svg.path(steps, class_="downed", data_tip="nodes that are down")


def _group_label(view: View, group: Sequence[int], top: float) -> Markup:
    first, last = view.timeline.nodes[group[0]], view.timeline.nodes[group[-1]]
    name = first if first == last else f"{first} – {last}"
    more = "" if first == last else f" +{len(group) - 1}"
    shown = fitted(first, LABEL - text_width(more)) + more
    return svg.tag(
        "text", svg.tag("title", name), shown,
        x=LEFT - 8, y=top + _GROUP_HEIGHT / 2 + 4, text_anchor="end", class_="name",
    )  # fmt: skip


def _group_table(view: View, groups: Sequence[Sequence[int]], held: Floats, down: Floats) -> Table:
    def cell(part: float) -> Cell:
        return Cell(percent(part), round(part, 6))

    names = view.timeline.nodes
    rows = []
    for group, parts, lost in zip(groups, held.mean(axis=2), down.mean(axis=1), strict=True):
        ends = names[group[0]] if len(group) == 1 else f"{names[group[0]]} – {names[group[-1]]}"
        values = [*parts.tolist(), float(parts.sum()), float(lost)]
        rows.append((Cell(ends), *map(cell, values)))
    columns = (*view.colours, "all", "down")
    return Table("Means over time", ("nodes", *columns), rows, frozenset(columns))
