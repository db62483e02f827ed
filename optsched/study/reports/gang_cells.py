"""Cells of a grid of GPUs: their gangs at each instant, in colours with names.

A cell is filled from the left: each gang takes its part of the width. Adjacent whole cells of one
gang bear its name together. A gang has a number, for cells too narrow for its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from optsched.study.reports import svg
from optsched.study.reports.number_text import fitted, plain, text_width
from optsched.study.reports.page import MOST_ROWS, Cell, Key, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

NAME: Final = "occupancy"
MOST_CELLS: Final = 1024
FREE, DOWN, OTHERS = -1, -2, -3
STATES: Final = (("free", "free"), ("node is down", "downed"), ("not played", "others"))
GANG_COLOURS: Final = 24
MOST_KEYS: Final = 48
NAME_SIZE: Final = 11.0
LEAST_NAME: Final = 8
"""Letters of the shortest name of which the middle is left out."""
_LABEL: Final = 150.0

Box = tuple[float, float, float, float]
Parts = tuple[tuple[int, int], ...]


class Holder(NamedTuple):
    """The gangs of cells."""

    words: str  # in a tip
    css: str  # class of the colour
    name: str = ""  # on the cell; empty for none
    number: int = 0  # stands for a name without room; 0 for none


@dataclass(frozen=True, eq=False)
class Grid:
    """The gangs in each cell at each instant."""

    # Names of what cells belong to, and how many each has; none for tiles
    rows: Sequence[tuple[str, int]]
    places: Sequence[str]  # of each cell, in words
    who: Sequence[Holder]  # by number
    # Of each cell its changes: (instant, ((gang, percent), ...)), the first at instant 0. `who` is
    # a number of a gang or one of `FREE`, `DOWN`, `OTHERS`.
    cells: Sequence[Sequence[tuple[int, Parts]]]

    def cell_shares(self, cell: int, frame: int) -> Parts:
        """The gang in a cell at an instant."""
        return [parts for begin, parts in self.cells[cell] if begin <= frame][-1]


def gang_colours(spans: Sequence[tuple[int, int]]) -> list[str]:
    """A colour for each gang of (first instant, instant after its last).

    Gangs that are present at one instant have different colours as long as there are enough.
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
    """The gangs of a grid by number, where they are few enough for a legend."""
    if len(gangs) > MOST_KEYS:
        return []
    named = zip(gangs, colours, strict=True)
    return [Key(css, f"{i} {name}") for i, (name, css) in enumerate(named, 1)]


def gang_table(gangs: Sequence[tuple[str, str]]) -> Table:
    """Number, name and queue of each gang of a grid."""
    rows = [
        (Cell(str(i), i), Cell(name), Cell(queue))
        for i, (name, queue) in enumerate(gangs[:MOST_ROWS], 1)
    ]
    note = f"The first {plain(MOST_ROWS)} of {plain(len(gangs))}." if len(gangs) > MOST_ROWS else ""
    numbers = frozenset(("number",))
    return Table("Gangs of the grid", ("number", "gang", "queue"), rows, numbers, note)


# --- for the script ------------------------------------------------------------------------------


def grid_data(grid: Grid, at: Sequence[float], told: Sequence[str]) -> dict[str, Any]:
    """The data of the script: `at` are parts of the axis of time, `told` is the text shown."""
    return {
        "at": list(at),
        "told": list(told),
        "who": [list(each) for each in grid.who],
        "states": [list(each) for each in STATES],
        "places": list(grid.places),
        "rows": [number for _, number in grid.rows],
        "cells": [
            [[begin, *(n for part in parts for n in part)] for begin, parts in changes]
            for changes in grid.cells
        ],
    }


# --- drawing -------------------------------------------------------------------------------------


def grid_drawing(grid: Grid, shown: int) -> Markup:
    """The cells at one instant."""
    boxes, labels, height = _by_name(grid.rows) if grid.rows else _tiles(len(grid.places))
    now = [grid.cell_shares(i, shown) for i in range(len(boxes))]
    cells = [_cell(grid, i, box, now[i]) for i, box in enumerate(boxes)]
    names = svg.group(_names(grid, boxes, now), class_="names")
    title = "Who is where at the instant of the slider"
    return svg.drawing(NAME, height, title, [*labels, *cells, names])


def _by_name(rows: Sequence[tuple[str, int]]) -> tuple[list[Box], list[Markup], float]:
    """A row of cells for each node, in as many columns as there is room for."""
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
    boxes, labels, bottom = [], [], 0.0
    for column in range(columns):
        x, y = column * wide + label, 4.0
        for i in range(column * deep, min((column + 1) * deep, len(rows))):
            name, number = rows[i]
            middle = y + (heights[i] - 5) / 2
            labels.append(svg.label((x - 8, middle), label - 12, name))
            top = middle - tall / 2
            boxes += [(x + lane * size, top, size - 2, tall) for lane in range(number)]
            y += heights[i]
        bottom = max(bottom, y)
    return boxes, labels, bottom


def _tiles(number: int) -> tuple[list[Box], list[Markup], float]:
    """Cells side by side."""
    columns = 40 if number > 300 else 24
    size = svg.WIDTH / columns - 3
    boxes = [
        ((i % columns) * (size + 3), 2 + (i // columns) * (size + 3), size, size)
        for i in range(number)
    ]
    return boxes, [], 4 + -(-number // columns) * (size + 3)


def _holder(grid: Grid, who: int) -> Holder:
    return grid.who[who] if who >= 0 else Holder(*STATES[-1 - who])


def _segments(box: Box, parts: Parts) -> list[tuple[int, Box]]:
    """The gangs in a cell with their parts, from the left."""
    x, y, width, height = box
    found, used = [], 0.0
    for who, percent in parts:
        size = width * min(percent, 100 - used) / 100 if who >= 0 or who == OTHERS else width
        found.append((who, (x + width * used / 100, y, max(size, 1.0), height)))
        used = min(used + percent, 100.0)
    return found


def cell_tip(grid: Grid, number: int, parts: Parts) -> str:
    """The state of a cell, and the gang in it."""
    lines = [grid.places[number]]
    for who, percent in parts:
        part = f", {percent} %" if who >= 0 and percent < 100 else ""
        lines.append(f"{_holder(grid, who).words}{part}")
    return "\n".join(lines)


def _cell(grid: Grid, number: int, box: Box, parts: Parts) -> Markup:
    rects = [
        svg.rect(where, class_=_holder(grid, who).css, rx=2)
        for who, where in _segments(box, parts)
        if who != FREE
    ]
    back = svg.rect(box, class_="free", rx=2)
    return svg.group([back, *rects], class_="cell", data_tip=cell_tip(grid, number, parts))


def _names(grid: Grid, boxes: Sequence[Box], now: Sequence[Parts]) -> Iterable[Markup]:
    """Names on cells: over neighbours that one gang has as a whole, or on its part of a cell."""
    first = 0
    for _, number in grid.rows:
        at, end = first, first + number
        while at < end:
            run = at + 1
            while _covers_cell(now[at]) and run < end and now[run] == now[at]:
                run += 1
            (x, y, _, height), (last_x, _, last_width, _) = boxes[at], boxes[run - 1]
            whole = (x, y, last_x + last_width - x, height)
            pieces = [(now[at][0][0], whole)] if run > at + 1 else _segments(boxes[at], now[at])
            for who, box in pieces:
                if who >= 0:
                    yield from _name(grid.who[who], box)
            at = run
        first = end


def _covers_cell(parts: Parts) -> bool:
    return len(parts) == 1 and parts[0][0] >= 0 and parts[0][1] >= 100


def _name(holder: Holder, box: Box) -> Iterable[Markup]:
    x, y, width, height = box
    room = width - 6
    number = str(holder.number or "")
    words = fitted(holder.name, room, NAME_SIZE, bold=True)
    if words != holder.name:
        # Names with equal ends look the same without their middle: the number distinguishes them.
        head = text_width(f"{number} ", NAME_SIZE, bold=True)
        words = fitted(holder.name, room - head, NAME_SIZE, bold=True)
        words = f"{number} {words}" if len(words) >= LEAST_NAME else number
        if text_width(words, NAME_SIZE, bold=True) > width - 2:
            return
    if words:
        at = (x + width / 2, y + height / 2 + 4)
        yield svg.text(at, words, text_anchor="middle", class_="cellname")
