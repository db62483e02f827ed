"""Output formats of API objects: tables for people; JSON, YAML and names for programs.

A list in JSON or YAML is a `v1` List of objects as the server keeps them, without `managedFields`,
keys in order; one object is the object itself. `name` is what `kubectl get -o name` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.text import Text

from optsched.cli.base.console import echo, output, print_text, remarks
from optsched.cli.base.parameters import RenamedOption
from optsched.cli.objects.table_columns import TABLES, Column, Table, name_of, namespace_of
from optsched.formats.files.yaml_text import write_yaml
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from optsched.api.kinds import Kind

    Raw = Mapping[str, Any]

Command = TypeVar("Command", bound="Callable[..., Any]")

TABLE: Final = "table"
WIDE: Final = "wide"
JSON: Final = "json"
YAML: Final = "yaml"
NAME: Final = "name"
FORMATS: Final = (TABLE, WIDE, JSON, YAML, NAME)
GAP: Final = 3
"""Blanks between columns."""

_STYLES: Final = {
    **dict.fromkeys(("Running", "Completed", "Succeeded", "Succeed", "Open"), "green"),
    **dict.fromkeys(("Pending", "Restarting", "Closing", "Inqueue", "Aborting"), "yellow"),
    **dict.fromkeys(("Terminating", "Completing", "Aborted", "Closed", "Unknown"), "yellow"),
    **dict.fromkeys(("Failed", "Terminated"), "red"),
}
_STATES: Final = frozenset({"Phase", "State", "Status"})


def output_option(
    default: str = TABLE, help_text: str = "How to print."
) -> Callable[[Command], Command]:
    """Add `-o`, `--output`; Volcano's `--format` is accepted as a hidden option."""
    return click.option(
        "-o",
        "--output",
        "--format",
        "form",
        cls=RenamedOption,
        former=("--format",),
        type=click.Choice(FORMATS),
        default=default,
        show_default=True,
        help=help_text,
    )


def show_list(kind: Kind, objects: Sequence[Raw], form: str, table: Table | None = None) -> None:
    """Print a list of objects; an empty table becomes a note on the standard error."""
    stored = [as_stored(kind, obj) for obj in objects]
    if form in (JSON, YAML):
        whole = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": stored}
        echo(written(whole, form), nl=False)
    elif form == NAME:
        for obj in stored:
            echo(typed_name(kind, obj))
    elif not stored:
        print_text(remarks(), "No resources found", "dim")
    else:
        show_table(table or TABLES[kind], stored, wide=form == WIDE)


def print_object(kind: Kind, obj: Raw, form: str, table: Table | None = None) -> None:
    """Print an object in the requested format."""
    if form in (TABLE, WIDE):
        show_table(table or TABLES[kind], [obj], wide=form == WIDE)
    else:
        show_stored(kind, obj, form)


def print_change(kind: Kind, obj: Raw, form: str, sentence: str) -> None:
    """Print a change: a sentence, or the changed object in the requested format."""
    if form in (TABLE, WIDE):
        echo(sentence)
    else:
        show_stored(kind, obj, form)


def show_stored(kind: Kind, obj: Raw, form: str) -> None:
    """Print an object for programs. form: json, yaml or name."""
    stored = as_stored(kind, obj)
    is_name = form == NAME
    echo(typed_name(kind, stored) if is_name else written(stored, form), nl=is_name)


def as_stored(kind: Kind, obj: Raw) -> dict[str, Any]:
    """Return an object with apiVersion and kind, which list items lack, without managedFields."""
    meta = {k: v for k, v in (obj.get("metadata") or {}).items() if k != "managedFields"}
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}


def typed_name(kind: Kind, obj: Raw) -> str:
    """Return `kind.group/name`, such as `job.batch.volcano.sh/train`."""
    suffix = f".{kind.group}" if kind.group else ""
    return f"{kind.singular}{suffix}/{name_of(obj)}"


def written(value: object, form: str) -> str:
    """Return a value as JSON or YAML text with a final newline."""
    if form == JSON:
        return write_json(value, indent=2, sort_keys=True) + "\n"
    return write_yaml(value)


# --- tables --------------------------------------------------------------------------------------


def with_namespace(table: Table) -> Table:
    """Return the table with the namespace as its first column."""
    column = Column("Namespace", lambda pair, _: pair[0])
    rest = tuple(Column(c.heading, _second(c.cell), c.wide) for c in table.columns)
    return Table(lambda obj: (namespace_of(obj), table.read(obj)), (column, *rest))


def _second(cell: Callable[[Any, int], object]) -> Callable[[Any, int], object]:
    return lambda pair, now_ms: cell(pair[1], now_ms)


def show_table(table: Table, objects: Sequence[Raw], *, wide: bool) -> None:
    """Print a table without wrapping."""
    from optsched.kube.runtime.timing import SystemClock

    now_ms = SystemClock().now_ms()
    headings = table.headings(wide=wide)
    show_rows(headings, [table.row(obj, now_ms, wide=wide) for obj in objects])


def show_rows(
    headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None
) -> None:
    """Print rows with aligned columns; states are coloured on a terminal.

    console: where, if not to the standard output.
    """
    console = console or output()
    for line in lines_of(headings, rows):
        console.print(line, soft_wrap=True, highlight=False)


def lines_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Text]:
    """Return headings and rows as lines, each column as wide as its widest cell."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) + GAP for column in columns]
    return [_line(cells, headings, widths) for cells in (headings, *rows)]


def _line(cells: Sequence[str], headings: Sequence[str], widths: Sequence[int]) -> Text:
    line = Text()
    for cell, heading, width in zip(cells, headings, widths, strict=True):
        style = _STYLES.get(cell, "") if heading in _STATES and cells is not headings else ""
        line.append(cell, style).append(" " * (width - len(cell)))
    line.rstrip()
    return line
