"""A chart of nodes over time, with one bar per gang or with the load of node groups.

The chart shows bars if their number is small enough to distinguish them. If there are too many
bars, adjacent nodes (in name order) form groups, and each row shows the fraction of a group that
each queue held.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.number_text import (
    count_text,
    fit_name,
    moment,
    percent,
    plain,
    text_width,
)
from optsched.study.reports.page import Cell, Chart, Key, Table, cap_rows
from optsched.study.reports.timeline_arrays import (
    BELOW,
    HEAD,
    LABEL,
    LEFT,
    RIGHT,
    consecutive_ranges,
    describe_end,
    lanes_text,
    names_title,
    node_groups,
    ranges_text,
)
from optsched.study.simulation.timeline import bin_means, column

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from optsched.study.reports.timeline_arrays import View
    from optsched.study.simulation.timeline import Floats, Stay

NAME: Final = "by-node"
MOST_BARS: Final = 2500
MOST_NODES: Final = 64
MOST_GROUPS: Final = 24
TOP: Final = HEAD + 2
_GAP: Final = 7.0
_GROUP_HEIGHT: Final = 36.0
_GROUP_STEP: Final = _GROUP_HEIGHT + 4


def node_chart(view: View) -> Chart:
    """Return a chart with bars on each node, or with groups of nodes if there are too many bars."""
    if len(view.timeline.nodes) <= MOST_NODES:
        bars = _gang_bars(view)
        if len(bars) <= MOST_BARS:
            return _bar_chart(view, bars)
    return _group_chart(view)


def _chart(
    view: View, title: str, parts: list[Markup], bottom: float, words: str, table: Table, note: str
) -> Chart:
    """Return a node chart with the slider's vertical line and a note on omitted nodes and pods."""
    timeline = view.timeline
    bare = sum(number == 0 for number in timeline.lanes.number)
    idle = sum(not stay.lanes for stay in timeline.stays)
    remarks = [note] if note else []
    if bare:
        remarks.append(f"Not shown: {count_text(bare, 'node')} without GPUs.")
    if idle:
        remarks.append(f"Not shown: {count_text(idle, 'stay')} of pods without GPUs.")
    drawing = svg.drawing(NAME, bottom + BELOW, words, [*parts, view.slider_line(TOP, bottom)])
    keys = [*view.legend, *([Key("downed", "node is down")] if timeline.down else [])]
    return Chart(NAME, title, drawing, keys, [table], " ".join(remarks), is_walkable=True)


# --- bars ----------------------------------------------------------------------------------------


class ChartBar(NamedTuple):
    """A bar: lanes (GPUs, or the CPU lane) of one node that one gang holds during an interval.

    `above` and `height` are the bar's offset and height, in lanes.
    """

    job: int
    node: int
    above: float
    height: float
    from_ms: int
    to_ms: int
    why: str
    tasks: int
    what: str


def _gang_bars(view: View) -> list[ChartBar]:
    """Return one bar per GPU share, and one per range of whole lanes that a gang holds."""
    lanes = view.timeline.lanes
    whole: defaultdict[tuple[int, int, int, int, str], list[Stay]] = defaultdict(list)
    found: list[ChartBar] = []
    # The (end, offset, height) of each GPU share, keyed by (node, lane).
    parts: defaultdict[tuple[int, int], list[tuple[int, float, float]]] = defaultdict(list)
    for stay in view.timeline.stays:
        key = (stay.job, stay.node, stay.from_ms, stay.to_ms, stay.why)
        height = stay.milli / max(lanes.milli[stay.node], 1)
        if stay.milli >= lanes.milli[stay.node]:
            whole[key].append(stay)
            continue
        for lane in stay.lanes:
            overlapping = [p for p in parts[stay.node, lane] if p[0] > stay.from_ms]
            # Find the lowest offset at which the GPU share overlaps no other GPU share.
            above = 0.0
            for _, begin, size in sorted(overlapping, key=lambda p: p[1]):
                if begin >= above + height - 1e-9:
                    break
                above = max(above, begin + size)
            above = max(min(above, 1 - height), 0.0)
            parts[stay.node, lane] = [*overlapping, (stay.to_ms, above, height)]
            words = lanes_text(view, stay)
            when = stay.from_ms, stay.to_ms, stay.why
            found.append(ChartBar(stay.job, stay.node, lane + above, height, *when, 1, words))
    for (job, node, from_ms, to_ms, why), stays in whole.items():
        numbers = tuple(sorted(lane for stay in stays for lane in stay.lanes))
        words = f"GPU {ranges_text(numbers)}" if lanes.unit == "GPU" else "the whole node"
        for a, b in consecutive_ranges(numbers):
            when = from_ms, to_ms, why
            found.append(ChartBar(job, node, a, b - a + 1, *when, len(stays), words))
    return sorted(found, key=lambda b: (b.node, b.from_ms, b.above))


def _bar_chart(view: View, bars: Sequence[ChartBar]) -> Chart:
    timeline = view.timeline
    nodes, lanes = timeline.nodes, timeline.lanes.number
    each = 16.0 if max(lanes, default=1) == 1 else 3.0 if len(nodes) > 24 else 6.0
    rows, tops, at = [], [], TOP
    for name, number in zip(nodes, lanes, strict=True):
        tops.append(at)
        if number:
            label = svg.LINE * len(svg.label_lines(name, LABEL))
            height = max(number * each, label)
            rows.append(svg.label((LEFT - 8, at + height / 2), LABEL, name))
            rows.append(svg.lane(LEFT, at, RIGHT - LEFT, number * each))
            at += height + _GAP
    parts = [names_title("node"), *view.time_axis(TOP, at), *rows]
    for node, a, b in timeline.down:
        words = f"{nodes[node]} is down\nfrom {moment(a)} to {moment(b)}"
        box = (view.x(a), tops[node], view.x(b) - view.x(a), lanes[node] * each)
        parts.append(svg.rect(box, class_="downed", data_tip=words))
    for bar in bars:
        job, top, height = (
            timeline.jobs[bar.job],
            tops[bar.node] + bar.above * each,
            bar.height * each,
        )
        x, width = view.x(bar.from_ms), max(view.x(bar.to_ms) - view.x(bar.from_ms), 0.6)
        words = (
            f"{job.key} ({timeline.queues[job.queue]})\n"
            f"{nodes[bar.node]}, {bar.what}, {count_text(bar.tasks, 'task')}\n"
            f"from {moment(bar.from_ms)} to {moment(bar.to_ms)}: {describe_end(bar.why)}"
        )
        css = f"bar f{view.colour_of(bar.job)}"
        parts.append(svg.rect((x, top, width, height), class_=css, data_tip=words))
        words = fit_name(job.key, width - 10, bold=True)
        if height >= 14 and (words == job.key or len(words) >= 8):
            parts.append(svg.text((x + 5, top + height / 2 + 4), words, class_="barname"))
    cells = [
        (
            *(Cell(nodes[bar.node]), Cell(bar.what), Cell(timeline.jobs[bar.job].key)),
            Cell(timeline.queues[timeline.jobs[bar.job].queue]),
            *(Cell(moment(bar.from_ms), bar.from_ms), Cell(moment(bar.to_ms), bar.to_ms)),
            Cell(describe_end(bar.why)),
        )
        for bar in bars
    ]
    headings = ("node", "what", "gang", "queue", "from", "to", "end")
    table = cap_rows("Nodes held by gangs over time", headings, cells, ("from", "to"))
    words = f"{count_text(len(bars), 'bar')} of gangs on {count_text(len(nodes), 'node')}"
    title = f"Gangs on {timeline.lanes.unit}s over time"
    return _chart(view, title, parts, at, words, table, "")


# --- groups of nodes -----------------------------------------------------------------------------


def _group_chart(view: View) -> Chart:
    timeline, names = view.timeline, view.timeline.nodes
    groups = node_groups(timeline.lanes, MOST_GROUPS)
    held, down = _group_shares(view, groups)
    bottom = TOP + len(groups) * _GROUP_STEP
    parts, rows = [names_title("nodes"), *view.time_axis(TOP, bottom)], []
    for row, group in enumerate(groups):
        top = TOP + row * _GROUP_STEP
        first, more = names[group[0]], "" if len(group) == 1 else f" +{len(group) - 1}"
        ends = first if len(group) == 1 else f"{first} – {names[group[-1]]}"
        shown = svg.tag("title", ends), fit_name(first, LABEL - text_width(more)) + more
        x, y = LEFT - 8, top + _GROUP_HEIGHT / 2 + 4
        parts.append(svg.tag("text", *shown, x=x, y=y, text_anchor="end", class_="name"))
        parts.append(svg.lane(LEFT, top, RIGHT - LEFT, _GROUP_HEIGHT))
        parts += _draw_layers(view, held[row], down[row], top)
        means = held[row].mean(axis=1)
        values = [*means.tolist(), float(means.sum()), float(down[row].mean())]
        rows.append((Cell(ends), *(Cell(percent(v), round(v, 6)) for v in values)))
    columns = (*view.colours, "all", "down")
    unit = timeline.lanes.unit
    note = (
        f"{plain(sum(map(len, groups)))} nodes in {count_text(len(groups), 'row')} of up to "
        f"{len(groups[0])}, in name "
        f"order; the height of a colour is the fraction of the {unit}s that its queue held."
    )
    words = f"Load of {count_text(len(groups), 'group')} of nodes over time"
    table = Table("Means over time", ("nodes", *columns), rows, columns)
    return _chart(view, f"Queues on {unit}s over time", parts, bottom, words, table, note)


def _group_shares(view: View, groups: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """Return the fractions of each node group that queues hold, and the fractions on failed nodes.

    The first array has the axes (group, queue colour, time bin), the second array has the axes
    (group, time bin).
    """
    timeline, colours = view.timeline, len(view.colours)
    group_of = np.full(len(timeline.nodes), -1, dtype=np.int64)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
    amounts = column(timeline.lanes.number) * column(timeline.lanes.milli)
    whole = np.array([max(amounts[list(group)].sum(), 1) for group in groups], dtype=np.float64)
    stay_groups = group_of[view.stay_nodes]
    rows = np.maximum(stay_groups, 0) * colours + view.stay_colours
    milli = np.where(stay_groups >= 0, view.gpu_milli, 0.0)
    held = bin_means(view.spans, milli, rows, len(groups) * colours, view.edges)
    nodes, begins, ends = (column([d[i] for d in timeline.down]) for i in range(3))
    lost = np.where(group_of[nodes] >= 0, amounts[nodes], 0).astype(np.float64)
    of = np.maximum(group_of[nodes], 0)
    down = bin_means((begins, ends), lost, of, len(groups), view.edges) / whole[:, None]
    return held.reshape(len(groups), colours, -1) / whole[:, None, None], down


def _draw_layers(view: View, held: Floats, down: Floats, top: float) -> Iterable[Markup]:
    """Yield stacked areas: queue colours from the bottom of a row, failed nodes from the top."""
    floor = np.full(held.shape[1], top + _GROUP_HEIGHT)
    for colour, part in enumerate(held):
        if part.any():
            above = np.round(floor - part * _GROUP_HEIGHT, 1)
            words = f"{view.colours[colour]}: {percent(float(part.mean()))} on average"
            steps = svg.ribbon(view.edges_x, above.tolist(), floor.tolist())
            yield svg.path(steps, class_=f"f{colour}", data_tip=words)
            floor = above
    if down.any():
        tops = np.full(len(down), top)
        lower = np.round(tops + down * _GROUP_HEIGHT, 1)
        steps = svg.ribbon(view.edges_x, tops.tolist(), lower.tolist())
        yield svg.path(steps, class_="downed", data_tip="nodes that are down")
