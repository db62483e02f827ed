"""The content of report pages, and its rendering as HTML.

A page loads nothing from the network: its Content-Security-Policy allows only the embedded script
and style. The template engine or `optsched.study.reports.svg` escapes all text. Equal `Page`
objects give equal bytes.
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
"""Maximum number of rows per table on a page; the data files contain all rows."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell; rows are sorted by `key`, or by `text` if `key` is None."""

    text: str
    key: float | None = None
    css: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `numbers` lists the headings of numeric columns."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]  # The first cell is the row's heading.
    numbers: Collection[str] = ()
    note: str = ""  # Note below the table, for example on omitted rows.
    is_sortable: bool = True


def cap_rows(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    numbers: Collection[str] = (),
) -> Table:
    """Return a table with the first `MOST_ROWS` rows, and a note if rows are omitted."""
    cut = f"The first {plain(MOST_ROWS)} of {plain(len(rows))}." if len(rows) > MOST_ROWS else ""
    return Table(caption, headings, rows[:MOST_ROWS], numbers, cut)


@dataclass(frozen=True, slots=True)
class Key:
    """A legend entry: the CSS class of a colour, and the meaning of the colour."""

    css: str
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with a legend, and tables of the plotted values."""

    name: str  # Prefix of element ids, unique on a page.
    title: str
    drawing: Markup  # The drawing as SVG.
    legend: Sequence[Key] = ()
    tables: Sequence[Table] = ()
    note: str = ""
    # True if the arrow keys move between drawn elements and show their tooltips.
    is_walkable: bool = False


@dataclass(frozen=True, slots=True)
class Film:
    """A chart that shows one instant, with a slider that selects the instant."""

    chart: Chart
    data: dict[str, Any]  # Data of all instants for the page's script, to be encoded as JSON.
    num_frames: int
    shown: int  # Index of the instant that the drawing shows.
    caption: str  # Text above the drawing, for the instant `shown`.


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page, with a heading."""

    name: str
    heading: str
    parts: Sequence[Chart | Film | Table] = ()
    paragraphs: Sequence[str] = ()  # Paragraphs before the charts and tables.


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a report page."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]  # (name, value) of each fact below the title.
    sections: Sequence[Section]
    # Limitations of the report, which are shown before the other content.
    warnings: Sequence[str] = ()


def render(page: Page) -> str:
    """Render a page as HTML."""
    style, script = _shipped("report.css"), _shipped("report.js")
    hashes = (hashlib.sha256(part.encode()).digest() for part in (style, script))
    policy = (
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; "
        "base-uri 'none'; form-action 'none'"
    ).format(*(b64encode(each).decode() for each in hashes))
    template = _environment().get_template("report.html")
    return template.render(page=page, style=style, script=script, policy=policy).strip() + "\n"


def as_data(value: object) -> Markup:
    """Encode a value as JSON for use in HTML, with markup characters escaped."""
    text = write_json(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  all markup characters are escaped


def write_page(page: Page, target: Path) -> None:
    """Render a page to a file atomically; on an error, the old file stays unchanged.

    Raises OSError, which names the file, if the file cannot be written.
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
