"""A grid of cells with a slider: for each selected instant, it shows which gang holds each GPU.

In clusters with up to `MOST_CELLS` GPUs, every GPU is a cell of the grid. In larger clusters, a
cell represents one or more nodes. The cell shows which part of the nodes' capacity is held, and the
queue that holds the most capacity. Cells are filled from the left; the width of a gang's segment is
the fraction of the cell's capacity that the gang holds. If one gang fills several adjacent cells,
these cells have one common label. If a gang's name does not fit, the gang's number is shown
instead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from optsched.study.reports.page import Cell, Chart, Film, Key, Table, cap_rows
from optsched.study.reports.timeline_arrays import node_groups
from optsched.study.simulation.timeline import at_instants, column

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from optsched.study.reports.timeline_arrays import View
    from optsched.study.simulation.timeline import Ints

NAME: Final = "occupancy"
MOST_CELLS: Final = 1024
FREE, DOWN, OTHERS = -1, -2, -3
STATES: Final = (("free", "free"), ("node is down", "downed"), ("not replayed", "others"))
GANG_COLOURS: Final = 24
MOST_KEYS: Final = 48
NAME_SIZE: Final = 11.0
LEAST_NAME: Final = 8
"""Minimum length of a shortened name.

If a name of this length does not fit, only the gang's number is shown.
"""
_LABEL: Final = 150.0

Box = tuple[float, float, float, float]
Parts = tuple[tuple[int, int], ...]


class Holder(NamedTuple):
    """A gang or queue that holds cells, with its tooltip and colour."""

    words: str  # Text of the tooltip.
    css: str  # CSS class of the colour.
    name: str = ""  # Name to show on the cell; may be empty.
    # Number of the gang, shown if the name does not fit; 0 if the gang has no number.
    number: int = 0


@dataclass(frozen=True, eq=False)
class Grid:
    """The gangs or queues that hold each cell of the grid at each instant."""

    # (node name, number of cells) of each row; empty for a grid without node names.
    rows: Sequence[tuple[str, int]]
    places: Sequence[str]  # Description of each cell.
    holders: Sequence[Holder]  # The gangs or queues, to which `cells` refers by index.
    # Changes of each cell as (index of the instant, ((gang, percent), ...)); the first change has
    # index 0. A gang is an index in `holders`, or one of `FREE`, `DOWN` and `OTHERS`.
    cells: Sequence[Sequence[tuple[int, Parts]]]


def gang_colours(spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return a colour for each gang; `spans` holds the instants at which each gang starts and ends.

    Gangs that are present at the same instant get different colours, if there are enough colours.
    """
    found = [""] * len(spans)
    free_at = [0] * GANG_COLOURS
    turn = 0
    for number in sorted(range(len(spans)), key=lambda i: (spans[i], i)):
        begin, end = spans[number]
        order = [(turn + i) % GANG_COLOURS for i in range(GANG_COLOURS)]
        free = next((c for c in order if free_at[c] <= begin), None)
        colour = min(order, key=lambda c: free_at[c]) if free is None else free
        free_at[colour] = max(free_at[colour], end)
        found[number] = f"g{colour}"
        turn = colour + 1
    return found


def gang_keys(gangs: Sequence[str], colours: Sequence[str]) -> list[Key]:
    """Return a legend of numbered gangs; empty if there are more gangs than `MOST_KEYS`."""
    if len(gangs) > MOST_KEYS:
        return []
    named = zip(gangs, colours, strict=True)
    return [Key(css, f"{i} {name}") for i, (name, css) in enumerate(named, 1)]


def gang_table(gangs: Sequence[tuple[str, str]]) -> Table:
    """Return a table with the number, name and queue of each gang in a grid."""
    rows = [(Cell(str(i), i), Cell(name), Cell(queue)) for i, (name, queue) in enumerate(gangs, 1)]
    return cap_rows("Gangs of the grid", ("number", "gang", "queue"), rows, ("number",))


def grid_note(num_gangs: int) -> str:
    """Return the note below a grid, which explains the gangs' colours and labels."""
    note = "Each gang has a colour, and its cells show the name or the number of the gang."
    if num_gangs > GANG_COLOURS:
        note += (
            f" There are {GANG_COLOURS} colours, so some gangs share a colour; the table lists "
            "all numbers."
        )
    return note


def grid_film(
    title: str,
    legend: Sequence[Key],
    tables: Sequence[Table],
    note: str,
    grid: Grid,
    shown: int,
    at: Sequence[float],
    captions: Sequence[str],
) -> Film:
    """Return a grid with a slider that selects the instant.

    `shown` is the index of the instant that is selected first. `at` lists the instants, as
    fractions of the time axis. `captions` lists the grid's caption at each instant.
    """
    data: dict[str, Any] = {
        "at": list(at),
        "captions": list(captions),
        "who": [list(each) for each in grid.holders],
        "states": [list(each) for each in STATES],
        "places": list(grid.places),
        "rows": [number for _, number in grid.rows],
        "cells": [
            [[begin, *(n for part in parts for n in part)] for begin, parts in changes]
            for changes in grid.cells
        ],
    }
    if grid.rows:
        boxes, labels, height = _place_rows(grid.rows)
    else:
        # Without node names, draw square cells that fill the width.
        number, labels = len(grid.places), []
        columns = 40 if number > 300 else 24
        size = svg.WIDTH / columns - 3
        boxes = [
            ((i % columns) * (size + 3), 2 + (i // columns) * (size + 3), size, size)
            for i in range(number)
        ]
        height = 4 + -(-number // columns) * (size + 3)
    now = [[holdings for begin, holdings in each if begin <= shown][-1] for each in grid.cells]
    cells = []
    for box, place, holdings in zip(boxes, grid.places, now, strict=True):
        lines, rects = [place], [svg.rect(box, class_="free", rx=2)]
        for (index, filled), (_, where) in zip(holdings, _segments(box, holdings), strict=True):
            holder = grid.holders[index] if index >= 0 else Holder(*STATES[-1 - index])
            lines.append(holder.words + (f", {filled} %" if index >= 0 and filled < 100 else ""))
            if index != FREE:
                rects.append(svg.rect(where, class_=holder.css, rx=2))
        cells.append(svg.group(rects, class_="cell", data_tip="\n".join(lines)))
    names = svg.group(_draw_names(grid, boxes, now), class_="names")
    caption = "Gangs on GPUs at the instant that the slider selects"
    drawing = svg.drawing(NAME, height, caption, [*labels, *cells, names])
    drawn = Chart(NAME, title, drawing, legend, tables, note, is_walkable=True)
    return Film(drawn, data, len(at), shown, captions[shown])


# --- drawing -------------------------------------------------------------------------------------


def _place_rows(rows: Sequence[tuple[str, int]]) -> tuple[list[Box], list[Markup], float]:
    """Return the boxes of the cells, the labels and the height of a grid with one row per node."""
    most = max(number for _, number in rows)
    columns = min(-(-len(rows) // 16), 3 if most > 1 else 4)
    while columns > 1 and (svg.WIDTH / columns - _LABEL) / most < 15:
        columns -= 1
    wide = svg.WIDTH / columns
    label = min(_LABEL, wide / 2.4)
    size = min((wide - label - 12) / most, 110.0)
    tall = 24.0 if columns == 1 else 20.0
    heights = [max(tall, svg.LINE * len(svg.label_lines(name, label - 12))) + 5 for name, _ in rows]
    deep = -(-len(rows) // columns)
    boxes, labels, bottom, y = [], [], 0.0, 4.0
    for i, (name, number) in enumerate(rows):
        x = i // deep * wide + label
        y = y if i % deep else 4.0
        middle = y + (heights[i] - 5) / 2
        labels.append(svg.label((x - 8, middle), label - 12, name))
        boxes += [(x + k * size, middle - tall / 2, size - 2, tall) for k in range(number)]
        y += heights[i]
        bottom = max(bottom, y)
    return boxes, labels, bottom


def _segments(box: Box, parts: Parts) -> list[tuple[int, Box]]:
    """Return the index and the box of each gang in a cell, from left to right."""
    x, y, width, height = box
    found, used = [], 0.0
    for index, part in parts:
        size = width * min(part, 100 - used) / 100 if index >= 0 or index == OTHERS else width
        found.append((index, (x + width * used / 100, y, max(size, 1.0), height)))
        used = min(used + part, 100.0)
    return found


def _draw_names(grid: Grid, boxes: Sequence[Box], now: Sequence[Parts]) -> Iterable[Markup]:
    """Yield gang names: one per range of cells that a single gang fills, else one per segment."""
    at = 0
    for _, number in grid.rows:
        end = at + number
        while at < end:
            parts, run = now[at], at + 1
            is_whole = len(parts) == 1 and parts[0][0] >= 0 and parts[0][1] >= 100
            while is_whole and run < end and now[run] == parts:
                run += 1
            (x, y, _, height), (last_x, _, last_width, _) = boxes[at], boxes[run - 1]
            whole = (x, y, last_x + last_width - x, height)
            pieces = [(parts[0][0], whole)] if run > at + 1 else _segments(boxes[at], parts)
            for index, box in pieces:
                if index >= 0:
                    yield from _draw_name(grid.holders[index], box)
            at = run


def _draw_name(holder: Holder, box: Box) -> Iterable[Markup]:
    """Yield the name or the number of a gang, or nothing if neither fits into the box."""
    x, y, width, height = box
    max_width = width - 6
    number = str(holder.number or "")
    words = fit_name(holder.name, max_width, NAME_SIZE, bold=True)
    if words != holder.name:
        # Two gangs may have the same shortened name, so add the gang's number.
        head = text_width(f"{number} ", NAME_SIZE, bold=True)
        words = fit_name(holder.name, max_width - head, NAME_SIZE, bold=True)
        words = f"{number} {words}" if len(words) >= LEAST_NAME else number
        if text_width(words, NAME_SIZE, bold=True) > width - 2:
            return
    if words:
        at = (x + width / 2, y + height / 2 + 4)
        yield svg.text(at, words, text_anchor="middle", class_="cellname")


# --- grid of a replay ----------------------------------------------------------------------------


def film(view: View) -> Film:
    """Return the grid of a replay; its slider starts at the instant of highest allocation."""
    timeline, unit = view.timeline, view.timeline.lanes.unit
    gangs: list[tuple[str, str]] = []
    if sum(timeline.lanes.number) <= MOST_CELLS:
        grid, shown_jobs = _gpu_grid(view)
        gangs = [
            (timeline.jobs[j].key, timeline.queues[timeline.jobs[j].queue]) for j in shown_jobs
        ]
        keys = gang_keys([h.name for h in grid.holders], [h.css for h in grid.holders])
    else:
        grid, keys = _node_grid(view), view.legend
    keys.append(Key("free", "free"))
    if timeline.down:
        keys.append(Key("downed", "node is down"))
    if timeline.lanes.others:
        keys.append(Key("others", "pods that are not replayed"))
    title = f"Gangs on each {unit}" if grid.rows else f"Queues on the {unit}s of nodes"
    tables = [_use_table(view), *([gang_table(gangs)] if gangs else [])]
    frames = len(view.instants)
    changes = f"{count_text(frames, 'instant')}: one for every change."
    if frames > 100 and len(set(np.diff(view.instants).tolist())) <= 2:
        changes = f"{count_text(frames, 'instant')} at equal distances."
    each = "a node" if len(grid.places) == len(timeline.nodes) else "several nodes"
    meaning = (
        f"A cell is {each}. The fill of a cell shows the load, and the colour shows the queue "
        "with the largest part."
    )
    meaning = grid_note(len(grid.holders)) if grid.rows else meaning
    note = f"{meaning} The slider has {changes} Arrow keys move it."
    at = [round(at / timeline.end_ms, 5) for at in view.instants.tolist()]
    instants, zeros = view.instants, np.zeros_like(view.stay_nodes)
    held = at_instants(view.display_spans, view.gpu_milli, zeros, 1, instants)[0].tolist()
    waits = [(a, b) for job in timeline.jobs for a, b in job.waits(timeline.end_ms + 1)]
    begins, ends = column([a for a, _ in waits]), column([b for _, b in waits])
    ones = np.ones(len(waits))
    waiting = at_instants((begins, ends), ones, np.zeros_like(begins), 1, instants)[0]
    numbers = waiting.round().astype(int).tolist()
    whole = f"{plain(timeline.lanes.total_milli / 1000)} {timeline.lanes.unit}s"
    captions = [
        f"At {moment(at)}: {plain(milli / 1000, 1)} of {whole} held, "
        f"{count_text(number, 'gang')} waiting"
        for at, milli, number in zip(instants.tolist(), held, numbers, strict=True)
    ]
    return grid_film(title, keys, tables, note, grid, view.frame_shown, at, captions)


def _gpu_grid(view: View) -> tuple[Grid, list[int]]:
    """Return a grid with one cell per GPU, and the job index of each numbered gang."""
    timeline, instants, lanes = view.timeline, view.instants, view.timeline.lanes
    first = np.concatenate([[0], np.cumsum(column(lanes.number))]).astype(int).tolist()
    stays: list[list[tuple[int, int, int, int]]] = [[] for _ in range(first[-1])]
    for node, lane, milli in lanes.others:
        stays[first[node] + lane].append((0, len(instants), OTHERS, milli))
    begins, ends = (np.searchsorted(instants, side, "left").tolist() for side in view.display_spans)
    spans: dict[int, tuple[int, int]] = {}
    for stay, begin, end in zip(timeline.stays, begins, ends, strict=True):
        for lane in stay.lanes:
            stays[first[stay.node] + lane].append((begin, end, stay.job, stay.milli))
        first_at, last_at = spans.get(stay.job, (len(instants), 0))
        spans[stay.job] = min(first_at, begin), max(last_at, end)
    shown_jobs = sorted({job for each in stays for a, b, job, _ in each if job >= 0 and a < b})
    number = {job: i for i, job in enumerate(shown_jobs)}
    down: list[list[tuple[int, int]]] = [[] for _ in range(first[-1])]
    for node, from_ms, to_ms in timeline.down:
        begin, end = np.searchsorted(instants, [from_ms, to_ms], "left").tolist()
        for cell in range(first[node], first[node + 1]):
            down[cell].append((begin, end))
    whole = np.repeat(column(lanes.milli), column(lanes.number)).tolist()
    cells = [
        _cell_changes([(a, b, number.get(j, j), m) for a, b, j, m in each], lost, max(milli, 1))
        for each, lost, milli in zip(stays, down, whole, strict=True)
    ]
    rows = [(name, n) for name, n in zip(timeline.nodes, lanes.number, strict=True) if n]
    places = [f"{n}, GPU {i}" if lanes.unit == "GPU" else n for n, k in rows for i in range(k)]
    colours = zip(shown_jobs, gang_colours([spans[job] for job in shown_jobs]), strict=True)
    keys = [(timeline.jobs[job].key, css) for job, css in colours]
    holders = [Holder(key, css, key, i) for i, (key, css) in enumerate(keys, 1)]
    return Grid(rows, places, holders, cells), shown_jobs


def shares_in(held: Counter[int], whole: int) -> Parts:
    """Return (gang index, percentage) for each gang in a cell; (`FREE`, 100) if there is none."""
    parts = tuple((gang, min(round(100 * held[gang] / whole), 100)) for gang in sorted(held))
    return parts or ((FREE, 100),)


def _cell_changes(
    stays: Sequence[tuple[int, int, int, int]], down: Sequence[tuple[int, int]], whole: int
) -> list[tuple[int, Parts]]:
    """Return the changes of a cell; `stays` holds (start, end, gang, thousandths of a GPU)."""
    turns = {0} | {t for a, b, *_ in stays for t in (a, b)} | {t for span in down for t in span}
    found: list[tuple[int, Parts]] = []
    for at in sorted(turns):
        held: Counter[int] = Counter()
        for begin, end, gang, milli in stays:
            if begin <= at < end:
                held[gang] += milli
        is_down = any(begin <= at < end for begin, end in down)
        parts: Parts = ((DOWN, 100),) if is_down else shares_in(held, whole)
        if not found or found[-1][1] != parts:
            found.append((at, parts))
    return found


def _node_grid(view: View) -> Grid:
    """Return a grid with one cell per node or per group of adjacent nodes."""
    timeline, colours, instants = view.timeline, len(view.colours), view.instants
    cells = node_groups(timeline.lanes, MOST_CELLS)
    cell_of = np.zeros(len(timeline.nodes), dtype=np.int64)
    for number, group in enumerate(cells):
        cell_of[group] = number
    amounts = column(timeline.lanes.number) * column(timeline.lanes.milli)
    whole = np.bincount(cell_of, weights=amounts, minlength=len(cells))[:, None]
    rows = cell_of[view.stay_nodes] * colours + view.stay_colours
    held = at_instants(view.display_spans, view.gpu_milli, rows, len(cells) * colours, instants)
    by_colour = held.reshape(len(cells), colours, -1)
    part = np.clip(np.round(100 * by_colour.sum(axis=1) / np.maximum(whole, 1)), 0, 100)
    owner = np.where(part > 0, by_colour.argmax(axis=1), FREE)
    nodes, begins, ends = (column([d[i] for d in timeline.down]) for i in range(3))
    sizes = amounts[nodes].astype(np.float64)
    lost = at_instants((begins, ends), sizes, cell_of[nodes], len(cells), instants)
    owner = np.where(lost >= whole, DOWN, owner)
    holders = [Holder(f"most held by {name}", f"f{i}") for i, name in enumerate(view.colours)]
    places = [span_of(timeline.nodes, group) for group in cells]
    return Grid((), places, holders, tile_changes(owner, part.astype(np.int64)))


def tile_changes(owner: Ints, part: Ints) -> list[list[tuple[int, Parts]]]:
    """Return the changes of each cell; `owner` and `part` (percent) are arrays (cell, instant)."""
    found: list[list[tuple[int, Parts]]] = []
    for owners, filled in zip(owner, part, strict=True):
        changes = (np.diff(owners) != 0) | ((np.diff(filled) != 0) & (owners[1:] >= 0))
        begins = [0, *(np.flatnonzero(changes) + 1).tolist()]
        found.append([(at, ((int(owners[at]), int(filled[at])),)) for at in begins])
    return found


def span_of(names: Sequence[str], group: Sequence[int]) -> str:
    """Describe a group of adjacent nodes by its first node, its last node and its size."""
    first, last = names[group[0]], names[group[-1]]
    return first if len(group) == 1 else f"{first} – {last} ({count_text(len(group), 'node')})"


def _use_table(view: View) -> Table:
    lanes, last = view.timeline.lanes, len(view.instants) - 1
    chosen = np.unique(np.linspace(0, last, min(last + 1, 50)).round().astype(int))
    instants, colours = view.instants[chosen], len(view.colours)
    held = at_instants(view.display_spans, view.gpu_milli, view.stay_colours, colours, instants)
    rows = []
    for at, parts in zip(instants.tolist(), held.T.tolist(), strict=True):
        cells = [Cell(plain(p / 1000, 1), p) for p in parts]
        whole = sum(parts)
        part = percent(whole / (lanes.total_milli or 1))
        rows.append((Cell(moment(at), at), *cells, Cell(part, whole)))
    columns = ("at", *view.colours, "held")
    return Table(f"{lanes.unit}s held by queue, at up to 50 instants", columns, rows, columns)
