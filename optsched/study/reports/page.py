"""A report as one HTML page: its content as values, and the page as text.

The page asks the network for nothing, and a Content-Security-Policy holds it to that: only the
script and the style that are part of it may run. Every text is escaped by the template engine or
by `optsched.study.reports.svg`. The same values give the same bytes.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from optsched.formats.files.atomic_write import write_atomically
from optsched.study.reports.number_text import plain
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

MOST_ROWS: Final = 1000
"""Rows of a table on a page; separate files hold them all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text in a table and the number by which it is sorted; None: by the text."""

    text: str
    key: float | None = None
    css: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; headings in `numbers` are of figures."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]  # the first cell of each is its heading
    numbers: Collection[str] = ()
    note: str = ""  # what is not in it
    is_sortable: bool = True


def capped(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    numbers: Collection[str] = (),
) -> Table:
    """Return a table with the first rows; its note says how many there are."""
    cut = f"The first {plain(MOST_ROWS)} of {plain(len(rows))}." if len(rows) > MOST_ROWS else ""
    return Table(caption, headings, rows[:MOST_ROWS], numbers, cut)


@dataclass(frozen=True, slots=True)
class Key:
    """One line of a legend: the class of its swatch and its meaning."""

    css: str
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its legend, and the table with the same numbers."""

    name: str  # of its elements; one on a page
    title: str
    drawing: Markup  # SVG
    legend: Sequence[Key] = ()
    tables: Sequence[Table] = ()
    note: str = ""
    is_walkable: bool = False  # whether arrow keys move between the parts, each with a label


@dataclass(frozen=True, slots=True)
class Film:
    """A chart that shows one of many instants, and a slider that chooses it."""

    chart: Chart
    data: dict[str, Any]  # the data of all instances for the script, as JSON
    num_frames: int
    shown: int  # number of the instant that the drawing shows
    told: str  # in words, what the drawing shows


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page with a heading of its own."""

    name: str
    heading: str
    parts: Sequence[Chart | Film | Table] = ()
    said: Sequence[str] = ()  # paragraphs before its parts


@dataclass(frozen=True, slots=True)
class Page:
    """A report."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]  # (what, value) under the title
    sections: Sequence[Section]
    warnings: Sequence[str] = ()  # the limits of the figures, to be read first


def render(page: Page) -> str:
    """The page as HTML."""
    style, script = _shipped("report.css"), _shipped("report.js")
    hashes = (hashlib.sha256(part.encode()).digest() for part in (style, script))
    policy = (
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; "
        "base-uri 'none'; form-action 'none'"
    ).format(*(b64encode(each).decode() for each in hashes))
    template = _environment().get_template("report.html")
    return template.render(page=page, style=style, script=script, policy=policy).strip() + "\n"


def as_data(value: object) -> Markup:
    """A value as JSON that no HTML parser takes for markup."""
    told = write_json(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        told = told.replace(char, f"\\u{ord(char):04x}")
    return Markup(told)  # noqa: S704  nothing of markup is left in it


def write_page(page: Page, target: Path) -> None:
    """Write the page: the file holds all of it, or its old content.

    Raises OSError, with the name of the target, where it can not be written.
    """
    write_atomically(target, render(page))


@cache
def _shipped(name: str) -> str:
    return files("optsched.study.reports").joinpath(name).read_text("utf-8").strip()


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        loader=FunctionLoader(_shipped),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["data"] = as_data
    made.filters["trusted"] = Markup
    made.tests["chart"] = lambda part: isinstance(part, Chart)
    made.tests["film"] = lambda part: isinstance(part, Film)
    return made
