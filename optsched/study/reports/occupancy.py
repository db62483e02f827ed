"""Which GPU of which node is whose, at one of many instants: a grid and a slider.

Every GPU is a cell of its own up to `MOST_CELLS` of them; beyond, a cell stands for several nodes
and shows how full they are and who has the most of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.bins import at_instants, column
from optsched.study.reports.page import Cell, Chart, Film, Key, Table
from optsched.study.reports.words import counted, moment, percent, plain, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from numpy.typing import NDArray

    from optsched.study.reports.bins import Floats, Ints
    from optsched.study.reports.views import View

NAME: Final = "occupancy"
MOST_CELLS: Final = 1024
FREE, DOWN, OTHERS = -1, -2, -3
_STATES: Final = (("free", "free"), ("node is down", "downed"), ("not played", "others"))
_LABEL: Final = 150.0


@dataclass(frozen=True, eq=False)
class Grid:
    """What is in each cell at each instant.

    Attributes
    ----------
    rows
        Names of what cells belong to, and how many each has.
    places
        Of each cell, in words.
    who
        By number: who may be in a cell, and the class of the colour.
    owner, part
        Who is in each cell at each instant (or one of `FREE`, `DOWN`, `OTHERS`), and how full it
        is in percent; shaped (cells, instants).

    """

    rows: Sequence[tuple[str, int]]
    places: Sequence[str]
    who: Sequence[tuple[str, str]]
    owner: Ints
    part: Ints


def film(view: View) -> Film:
    """The grid, with the instant shown at which as much is held as ever."""
    grid = _by_lane(view) if sum(view.story.lanes.number) <= MOST_CELLS else _by_nodes(view)
    shown = view.frame_shown
    told = _told(view)
    unit = view.story.lanes.unit
    chart = Chart(
        NAME,
        f"Whose is each {unit}?" if grid.rows else f"Whose are the {unit}s?",
        grid_drawing(grid, shown),
        [*view.legend, Key("free", "free"), *_more_keys(view)],
        [_table(view)],
        _note(view, grid),
        is_walkable=True,
    )
    at = [round(at / view.story.end_ms, 5) for at in view.instants.tolist()]
    return Film(chart, grid_data(grid, at, told), len(at), shown, told[shown])


def _more_keys(view: View) -> list[Key]:
    keys = [Key("downed", "node is down")] if view.story.down else []
    return [
        *keys,
        *([Key("others", "pods that are not played")] if view.story.lanes.others else []),
    ]


def _note(view: View, grid: Grid) -> str:
    frames = len(view.instants)
    changes = f"{counted(frames, 'instant')}: all at which something changes."
    if frames > 1 and len(set(np.diff(view.instants).tolist())) <= 2 and frames > 100:
        changes = f"{counted(frames, 'instant')}, equally far apart."
    if grid.rows:
        return f"The slider has {changes} Arrow keys move it."
    number = len(view.story.nodes)
    each = "a node" if len(grid.places) == number else "several nodes"
    told = f"A cell is {each}; its height is how full it is, its colour who has the most."
    return f"{told} The slider has {changes} Arrow keys move it."


# --- what is in the cells ------------------------------------------------------------------------


def _by_lane(view: View) -> Grid:
    story, instants = view.story, view.instants
    first = np.concatenate([[0], np.cumsum(column(story.lanes.number))])
    shape = (int(first[-1]), len(instants))
    owner: Ints = np.full(shape, FREE, dtype=np.int64)
    held = np.zeros((shape[0], shape[1] + 1))
    for node, lane, milli in story.lanes.others:
        owner[first[node] + lane] = OTHERS
        held[first[node] + lane, 0] += milli
    begins, ends = (np.searchsorted(instants, side, "left") for side in view.seen)
    for stay, begin, end in zip(story.stays, begins.tolist(), ends.tolist(), strict=True):
        for lane in stay.lanes:
            cell = first[stay.node] + lane
            owner[cell, begin:end] = stay.job
            held[cell, begin] += stay.milli
            held[cell, end] -= stay.milli
    for node, from_ms, to_ms in story.down:
        begin, end = np.searchsorted(instants, [from_ms, to_ms], "left").tolist()
        owner[first[node] : first[node + 1], begin:end] = DOWN
    whole = np.repeat(column(story.lanes.milli), column(story.lanes.number))
    part = _percent(held.cumsum(axis=1)[:, :-1], np.maximum(whole, 1)[:, None])
    rows = [(name, n) for name, n in zip(story.nodes, story.lanes.number, strict=True) if n]
    unit = story.lanes.unit
    places = [
        f"{name}, GPU {lane}" if unit == "GPU" else name
        for name, number in rows
        for lane in range(number)
    ]
    who = [(job.key, f"f{view.colour[job.queue]}") for job in story.jobs]
    return only_known(Grid(rows, places, who, owner, part))


def only_known(grid: Grid) -> Grid:
    """Only those are named that are anywhere."""
    there = np.unique(grid.owner[grid.owner >= 0])
    owner = np.where(grid.owner >= 0, np.searchsorted(there, grid.owner), grid.owner)
    return Grid(grid.rows, grid.places, [grid.who[i] for i in there.tolist()], owner, grid.part)


def _by_nodes(view: View) -> Grid:
    story, colours, instants = view.story, len(view.colours), view.instants
    kept = [i for i, number in enumerate(story.lanes.number) if number]
    each = -(-len(kept) // MOST_CELLS)
    cells = [kept[i : i + each] for i in range(0, len(kept), each)]
    cell_of = np.zeros(len(story.nodes), dtype=np.int64)
    for number, group in enumerate(cells):
        cell_of[group] = number
    amounts = column(story.lanes.number) * column(story.lanes.milli)
    whole = np.bincount(cell_of, weights=amounts, minlength=len(cells))
    rows = cell_of[view.stay_nodes] * colours + view.stay_colours
    held = at_instants(view.seen, view.held, rows, len(cells) * colours, instants)
    by_colour = held.reshape(len(cells), colours, -1)
    part = _percent(by_colour.sum(axis=1), np.maximum(whole, 1)[:, None])
    owner = np.where(part > 0, by_colour.argmax(axis=1), FREE)
    lost = _lost(view, amounts, cell_of, len(cells))
    owner = np.where(lost >= whole[:, None], DOWN, owner)
    names = [span_of(story.nodes, group) for group in cells]
    who = [(f"most held by {name}", f"f{i}") for i, name in enumerate(view.colours)]
    return Grid((), names, who, owner, part)


def _lost(view: View, amounts: Ints, cell_of: Ints, num_cells: int) -> Floats:
    """What is down of each cell at each instant."""
    nodes, begins, ends = (column([d[i] for d in view.story.down]) for i in range(3))
    sizes = amounts[nodes].astype(np.float64)
    return at_instants((begins, ends), sizes, cell_of[nodes], num_cells, view.instants)


def span_of(names: Sequence[str], group: Sequence[int]) -> str:
    """Neighbouring nodes by the first and last of their names."""
    first, last = names[group[0]], names[group[-1]]
    return first if len(group) == 1 else f"{first} – {last} ({counted(len(group), 'node')})"


def _percent(held: Floats, whole: NDArray[Any]) -> Ints:
    found: Ints = np.clip(np.round(100 * held / whole), 0, 100).astype(np.int64)
    return found


# --- for the script ------------------------------------------------------------------------------


def grid_data(grid: Grid, at: Sequence[float], told: Sequence[str]) -> dict[str, Any]:
    """What the script needs: `at` are parts of the axis of time, `told` what is shown in words."""
    return {
        "at": list(at),
        "told": list(told),
        "who": [list(each) for each in grid.who],
        "states": [list(each) for each in _STATES],
        "places": list(grid.places),
        "cells": [_runs(owner, part) for owner, part in zip(grid.owner, grid.part, strict=True)],
    }


def _runs(owner: Ints, part: Ints) -> list[int]:
    """First instant, owner and percent of each stretch in which nothing changes."""
    changes = (np.diff(owner) != 0) | ((np.diff(part) != 0) & (owner[1:] >= 0))
    begins = np.concatenate([[0], np.flatnonzero(changes) + 1])
    found: list[int] = np.column_stack([begins, owner[begins], part[begins]]).ravel().tolist()
    return found


def _told(view: View) -> list[str]:
    story, instants = view.story, view.instants
    zeros = np.zeros_like(view.stay_nodes)
    held = at_instants(view.seen, view.held, zeros, 1, instants)[0]
    waits = [(a, b) for job in story.jobs for a, b in job.waits(story.end_ms + 1)]
    begins, ends = column([a for a, _ in waits]), column([b for _, b in waits])
    ones = np.ones(len(waits))
    waiting = at_instants((begins, ends), ones, np.zeros_like(begins), 1, instants)[0]
    scale = 1000
    total = plain(story.lanes.total_milli / scale)
    return [
        f"At {moment(at)}: {plain(milli / scale, 1)} of {total} {story.lanes.unit}s held, "
        f"{counted(number, 'gang')} waiting"
        for at, milli, number in zip(
            instants.tolist(), held.tolist(), waiting.round().astype(int).tolist(), strict=True
        )
    ]


# --- drawing -------------------------------------------------------------------------------------


def grid_drawing(grid: Grid, shown: int) -> Markup:
    """The cells at one instant."""
    boxes, labels, height = _by_name(grid.rows) if grid.rows else _tiles(len(grid.places))
    parts = list(labels)
    for i, box in enumerate(boxes):
        parts.append(_cell(grid, i, box, shown))
    return svg.drawing(NAME, height, "Who is where at the instant of the slider", parts)


Box = tuple[float, float, float, float]


def _by_name(rows: Sequence[tuple[str, int]]) -> tuple[list[Box], list[Markup], float]:
    """A row of cells for each node, in as many columns as there is room for."""
    most = max(number for _, number in rows)
    size = 22.0 if len(rows) <= 24 else 14.0
    wide = _LABEL + most * (size + 2) + 18
    columns = max(1, min(int(svg.WIDTH // wide), -(-len(rows) // 12)))
    while most * (size + 2) + _LABEL > svg.WIDTH:
        size -= 1
    deep = -(-len(rows) // columns)
    boxes, labels = [], []
    for i, (name, number) in enumerate(rows):
        x, y = (i // deep) * (svg.WIDTH / columns), 4 + (i % deep) * (size + 8)
        labels.append(
            svg.tag(
                "text",
                svg.tag("title", name),
                short(name, 19),
                x=x + _LABEL - 8,
                y=y + size / 2 + 4,
                text_anchor="end",
                class_="name",
            )
        )
        boxes += [(x + _LABEL + lane * (size + 2), y, size, size) for lane in range(number)]
    return boxes, labels, 4 + deep * (size + 8)


def _tiles(number: int) -> tuple[list[Box], list[Markup], float]:
    """Cells side by side."""
    columns = 40 if number > 300 else 24
    size = svg.WIDTH / columns - 3
    boxes = [
        ((i % columns) * (size + 3), 2 + (i // columns) * (size + 3), size, size)
        for i in range(number)
    ]
    return boxes, [], 4 + -(-number // columns) * (size + 3)


def _cell(grid: Grid, number: int, box: Box, shown: int) -> Markup:
    owner, part = int(grid.owner[number, shown]), int(grid.part[number, shown])
    x, y, size, height = box
    name, css = grid.who[owner] if owner >= 0 else _STATES[-1 - owner]
    filled = max(height * part / 100, 1) if owner >= 0 else height
    return svg.group(
        [
            svg.rect((x, y, size, height), class_="free", rx=2),
            svg.rect((x, y + height - filled, size, filled), class_=css, rx=2),
        ],
        class_="cell",
        data_tip=f"{grid.places[number]}\n{name}",
    )


def _table(view: View) -> Table:
    """What each queue holds at up to fifty instants."""
    story, instants = view.story, view.instants
    chosen = np.unique(
        np.linspace(0, len(instants) - 1, min(len(instants), 50)).round().astype(int)
    )
    held = at_instants(view.seen, view.held, view.stay_colours, len(view.colours), instants[chosen])
    total = story.lanes.total_milli or 1
    rows = []
    for at, parts in zip(instants[chosen].tolist(), held.T.tolist(), strict=True):
        cells = [Cell(plain(p / 1000, 1), p) for p in parts]
        rows.append((Cell(moment(at), at), *cells, Cell(percent(sum(parts) / total), sum(parts))))
    columns = (*view.colours, "held")
    caption = f"{story.lanes.unit}s held at some instants"
    return Table(caption, ("at", *columns), rows, frozenset(("at", *columns)))
