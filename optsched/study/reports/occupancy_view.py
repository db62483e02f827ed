"""GPUs of nodes and their gangs at many instants: a grid and a slider.

Every GPU is a cell of its own up to `MOST_CELLS` of them; beyond, a cell stands for several nodes
and shows how full they are and who has the most of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.study.reports.gang_cells import (
    DOWN,
    FREE,
    GANG_COLOURS,
    MOST_CELLS,
    NAME,
    OTHERS,
    Grid,
    Holder,
    gang_colours,
    gang_keys,
    gang_table,
    grid_data,
    grid_drawing,
)
from optsched.study.reports.number_text import count_text, moment, percent, plain
from optsched.study.reports.page import Cell, Chart, Film, Key, Table
from optsched.study.reports.time_bins import at_instants, column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.study.reports.gang_cells import Parts
    from optsched.study.reports.time_bins import Floats, Ints
    from optsched.study.reports.timeline_arrays import View


def film(view: View) -> Film:
    """The grid, with the instant shown at which as much is held as ever."""
    is_exact = sum(view.timeline.lanes.number) <= MOST_CELLS
    grid, there = _by_lane(view) if is_exact else (_by_nodes(view), [])
    jobs, queues = view.timeline.jobs, view.timeline.queues
    gangs = [(jobs[job].key, queues[jobs[job].queue]) for job in there]
    shown = view.frame_shown
    told = _accessible_rows(view)
    unit = view.timeline.lanes.unit
    keys = [Key("downed", "node is down")] if view.timeline.down else []
    chart = Chart(
        NAME,
        f"Whose is each {unit}?" if grid.rows else f"Whose are the {unit}s?",
        grid_drawing(grid, shown),
        [
            *(
                gang_keys([h.name for h in grid.who], [h.css for h in grid.who])
                if is_exact
                else view.legend
            ),
            Key("free", "free"),
            *[
                *keys,
                *(
                    [Key("others", "pods that are not played")]
                    if view.timeline.lanes.others
                    else []
                ),
            ],
        ],
        [_table(view), *([gang_table(gangs)] if gangs else [])],
        _note(view, grid),
        is_walkable=True,
    )
    at = [round(at / view.timeline.end_ms, 5) for at in view.instants.tolist()]
    return Film(chart, grid_data(grid, at, told), len(at), shown, told[shown])


def grid_note(num_gangs: int) -> str:
    """Return the note on colours and names of gangs in a grid."""
    note = "Each gang has a colour, and its name or its number on its cells."
    if num_gangs > GANG_COLOURS:
        note += (
            f" There are {GANG_COLOURS} colours, so that some gangs have the same one; the table "
            "has all numbers."
        )
    return note


def _note(view: View, grid: Grid) -> str:
    frames = len(view.instants)
    changes = f"{count_text(frames, 'instant')}: all at which something changes."
    if frames > 1 and len(set(np.diff(view.instants).tolist())) <= 2 and frames > 100:
        changes = f"{count_text(frames, 'instant')}, equally far apart."
    if grid.rows:
        said = grid_note(len(grid.who))
        return f"{said} The slider has {changes} Arrow keys move it."
    number = len(view.timeline.nodes)
    each = "a node" if len(grid.places) == number else "several nodes"
    told = f"A cell is {each}; its fill is how full it is, its colour who has the most."
    return f"{told} The slider has {changes} Arrow keys move it."


# --- cells ----------------------------------------------------------------------------------------


def _by_lane(view: View) -> tuple[Grid, list[int]]:
    """A cell for each GPU, and the gangs that are anywhere in the order of their numbers."""
    timeline, instants = view.timeline, view.instants
    first = np.concatenate([[0], np.cumsum(column(timeline.lanes.number))]).astype(int).tolist()
    stays: list[list[tuple[int, int, int, int]]] = [[] for _ in range(first[-1])]
    for node, lane, milli in timeline.lanes.others:
        stays[first[node] + lane].append((0, len(instants), OTHERS, milli))
    begins, ends = (np.searchsorted(instants, side, "left").tolist() for side in view.display_spans)
    for stay, begin, end in zip(timeline.stays, begins, ends, strict=True):
        for lane in stay.lanes:
            stays[first[stay.node] + lane].append((begin, end, stay.job, stay.milli))
    there = sorted({job for each in stays for a, b, job, _ in each if job >= 0 and a < b})
    number = {job: i for i, job in enumerate(there)}
    down: list[list[tuple[int, int]]] = [[] for _ in range(first[-1])]
    for node, from_ms, to_ms in timeline.down:
        begin, end = np.searchsorted(instants, [from_ms, to_ms], "left").tolist()
        for cell in range(first[node], first[node + 1]):
            down[cell].append((begin, end))
    whole = np.repeat(column(timeline.lanes.milli), column(timeline.lanes.number)).tolist()
    cells = [
        _changes([(a, b, number.get(j, j), m) for a, b, j, m in each], lost, max(milli, 1))
        for each, lost, milli in zip(stays, down, whole, strict=True)
    ]
    rows = [(name, n) for name, n in zip(timeline.nodes, timeline.lanes.number, strict=True) if n]
    unit = timeline.lanes.unit
    places = [
        f"{name}, GPU {lane}" if unit == "GPU" else name
        for name, number in rows
        for lane in range(number)
    ]
    spans = {job: (len(instants), 0) for job in there}
    for stay, begin, end in zip(timeline.stays, begins, ends, strict=True):
        if stay.job in spans:
            first_at, last_at = spans[stay.job]
            spans[stay.job] = min(first_at, begin), max(last_at, end)
    colours = gang_colours(list(spans.values()))
    who = [
        Holder(timeline.jobs[job].key, css, timeline.jobs[job].key, i)
        for i, (job, css) in enumerate(zip(there, colours, strict=True), 1)
    ]
    return Grid(rows, places, who, cells), there


def _changes(
    stays: Sequence[tuple[int, int, int, int]], down: Sequence[tuple[int, int]], whole: int
) -> list[tuple[int, Parts]]:
    """The gang in a cell from each instant; `stays` are (begin, end, who, thousandths)."""
    turns = {0} | {t for a, b, *_ in stays for t in (a, b)} | {t for span in down for t in span}
    found: list[tuple[int, Parts]] = []
    for at in sorted(turns):
        held: dict[int, int] = {}
        for begin, end, who, milli in stays:
            if begin <= at < end:
                held[who] = held.get(who, 0) + milli
        parts: Parts = tuple(
            (who, min(round(100 * held[who] / whole), 100)) for who in sorted(held)
        )
        if any(begin <= at < end for begin, end in down):
            parts = ((DOWN, 100),)
        parts = parts or ((FREE, 100),)
        if not found or found[-1][1] != parts:
            found.append((at, parts))
    return found


def _by_nodes(view: View) -> Grid:
    timeline, colours, instants = view.timeline, len(view.colours), view.instants
    kept = [i for i, number in enumerate(timeline.lanes.number) if number]
    each = -(-len(kept) // MOST_CELLS)
    cells = [kept[i : i + each] for i in range(0, len(kept), each)]
    cell_of = np.zeros(len(timeline.nodes), dtype=np.int64)
    for number, group in enumerate(cells):
        cell_of[group] = number
    amounts = column(timeline.lanes.number) * column(timeline.lanes.milli)
    whole = np.bincount(cell_of, weights=amounts, minlength=len(cells))
    rows = cell_of[view.stay_nodes] * colours + view.stay_colours
    held = at_instants(view.display_spans, view.gpu_milli, rows, len(cells) * colours, instants)
    by_colour = held.reshape(len(cells), colours, -1)
    part: Ints = np.clip(
        np.round(100 * by_colour.sum(axis=1) / np.maximum(whole, 1)[:, None]), 0, 100
    ).astype(np.int64)
    owner = np.where(part > 0, by_colour.argmax(axis=1), FREE)
    lost = _lost(view, amounts, cell_of, len(cells))
    owner = np.where(lost >= whole[:, None], DOWN, owner)
    names = [span_of(timeline.nodes, group) for group in cells]
    who = [Holder(f"most held by {name}", f"f{i}") for i, name in enumerate(view.colours)]
    return Grid((), names, who, tile_changes(owner, part))


def tile_changes(owner: Ints, part: Ints) -> list[list[tuple[int, Parts]]]:
    """Of cells that have one owner at each instant; arrays are shaped (cells, instants)."""
    found: list[list[tuple[int, Parts]]] = []
    for who, filled in zip(owner, part, strict=True):
        changes = (np.diff(who) != 0) | ((np.diff(filled) != 0) & (who[1:] >= 0))
        begins = [0, *(np.flatnonzero(changes) + 1).tolist()]
        found.append([(at, ((int(who[at]), int(filled[at])),)) for at in begins])
    return found


def _lost(view: View, amounts: Ints, cell_of: Ints, num_cells: int) -> Floats:
    """The unavailable part of each cell at each instant."""
    nodes, begins, ends = (column([d[i] for d in view.timeline.down]) for i in range(3))
    sizes = amounts[nodes].astype(np.float64)
    return at_instants((begins, ends), sizes, cell_of[nodes], num_cells, view.instants)


def span_of(names: Sequence[str], group: Sequence[int]) -> str:
    """Neighbouring nodes by the first and last of their names."""
    first, last = names[group[0]], names[group[-1]]
    return first if len(group) == 1 else f"{first} – {last} ({count_text(len(group), 'node')})"


# --- in words ---------------------------------------------------------------------------------


def _accessible_rows(view: View) -> list[str]:
    timeline, instants = view.timeline, view.instants
    zeros = np.zeros_like(view.stay_nodes)
    held = at_instants(view.display_spans, view.gpu_milli, zeros, 1, instants)[0]
    waits = [(a, b) for job in timeline.jobs for a, b in job.waits(timeline.end_ms + 1)]
    begins, ends = column([a for a, _ in waits]), column([b for _, b in waits])
    ones = np.ones(len(waits))
    waiting = at_instants((begins, ends), ones, np.zeros_like(begins), 1, instants)[0]
    scale = 1000
    total = plain(timeline.lanes.total_milli / scale)
    return [
        f"At {moment(at)}: {plain(milli / scale, 1)} of {total} {timeline.lanes.unit}s held, "
        f"{count_text(number, 'gang')} waiting"
        for at, milli, number in zip(
            instants.tolist(), held.tolist(), waiting.round().astype(int).tolist(), strict=True
        )
    ]


def _table(view: View) -> Table:
    """The use of each queue at up to fifty instants."""
    timeline, instants = view.timeline, view.instants
    chosen = np.unique(
        np.linspace(0, len(instants) - 1, min(len(instants), 50)).round().astype(int)
    )
    held = at_instants(
        view.display_spans, view.gpu_milli, view.stay_colours, len(view.colours), instants[chosen]
    )
    total = timeline.lanes.total_milli or 1
    rows = []
    for at, parts in zip(instants[chosen].tolist(), held.T.tolist(), strict=True):
        cells = [Cell(plain(p / 1000, 1), p) for p in parts]
        rows.append((Cell(moment(at), at), *cells, Cell(percent(sum(parts) / total), sum(parts))))
    columns = (*view.colours, "held")
    caption = f"{timeline.lanes.unit}s held at some instants"
    return Table(caption, ("at", *columns), rows, frozenset(("at", *columns)))
