"""Tables of a trace, row by row: only a row that can not be read is reported and skipped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

from optsched.cluster.trace import TraceProblem
from optsched.formats.files.diagnostics import InstanceError
from optsched.units.read_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

NOTHING: Final = frozenset({"", "None", "none", "null", "NaN", "nan", "NULL", "N/A"})
"""Texts that mean an empty cell."""

_MISSING: Final = "is missing: the row ends before this column"
_NOT_A_COUNT: Final = "is not a whole number of zero or more"
_NOT_SECONDS: Final = "is no number of seconds of zero or more"
_NOT_A_NUMBER: Final = "is no number of zero or more"
_TOO_MUCH: Final = "is too much: write at most"
_NO_TIME: Final = "is no time: write YYYY-MM-DD HH:MM:SS"
_LONGEST_S: Final = Decimal(10**12)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, and where to complain about it.

    Each reading method reports a problem and then returns 0, "" or None; `is_sound` says whether
    there was any problem so far.
    """

    kind: str
    name: str
    where: str
    cells: Mapping[str, str | None]
    problems: list[TraceProblem]
    _before: int

    @property
    def is_sound(self) -> bool:
        """Whether this row has no problem so far."""
        return len(self.problems) == self._before

    def reject(self, column: str, message: str) -> None:
        """Report a problem of a cell and what would be accepted."""
        value = self.cells.get(column)
        self.problems.append(
            TraceProblem(
                self.kind,
                self.name,
                column,
                None if value is None else repr(value),
                message,
                self.where,
            )
        )

    def has_value(self, column: str) -> bool:
        """Whether there is anything in a cell."""
        return (self.cells.get(column) or "").strip() not in NOTHING

    def reach(self, column: str) -> None:
        """Tell it where the row ends before a column, be there anything in it or not."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)

    def text(self, column: str) -> str:
        """The content of a cell; an empty one is a problem."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)
        elif not self.has_value(column):
            self.reject(column, "is empty")
        return (self.cells.get(column) or "").strip()

    def number(self, column: str, message: str = _NOT_A_NUMBER, most: int | None = None) -> Decimal:
        """A number of zero or more."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)
            return Decimal(0)
        try:
            found = Decimal(self.cells[column] or "")
        except InvalidOperation:
            found = Decimal(-1)
        if not (found.is_finite() and 0 <= found <= _LONGEST_S):
            self.reject(column, message)
        elif most is not None and found > most:
            self.reject(column, f"{_TOO_MUCH} {most}")
        else:
            return found
        return Decimal(0)

    def integer(self, column: str, most: int | None = None) -> int:
        """A whole number of zero or more; `4.0` is one, too."""
        found = self.number(column, _NOT_A_COUNT, most)
        if found == int(found):
            return int(found)
        self.reject(column, _NOT_A_COUNT)
        return 0

    def milliseconds(self, column: str) -> int:
        """A number of seconds, in milliseconds."""
        return round(self.number(column, _NOT_SECONDS) * 1000)

    def instant_ms(self, column: str) -> int:
        """A date and time, in milliseconds since 1970; UTC unless it says otherwise."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)
            return 0
        found = instant_ms(self.cells[column] or "")
        if found is None:
            self.reject(column, _NO_TIME)
        return found or 0


def instant_ms(text: str) -> int | None:
    """Milliseconds since 1970 of `YYYY-MM-DD HH:MM:SS`, with or without an offset; None for none.

    `PST` and `PDT` at the end are ignored: where they occur, all times have them.
    """
    try:
        found = datetime.fromisoformat(text.removesuffix(" PST").removesuffix(" PDT").strip())
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Table:
    """The layout of a table: a line a row, no quotes. A broken line takes no other with it.

    Attributes
    ----------
    kind
        The thing that a row describes, such as Job.
    columns
        Columns that have to be there.
    name
        The one that names the row.
    delimiter
        Between cells.
    is_headless
        Whether the table begins with its first row; a header is recognised by the name of its first
        column and skipped.

    """

    kind: str
    columns: tuple[str, ...]
    name: str
    delimiter: str = ","
    is_headless: bool = False

    def read(self, file: Path, problems: list[TraceProblem]) -> Iterator[Row]:
        """Rows of a file, one after the other.

        Raises
        ------
        InstanceError
            The file is not there, is no text, or lacks columns.

        """
        try:
            with file.open(encoding="utf-8-sig") as lines:
                yield from self._rows(lines, file, problems)
        except (OSError, UnicodeDecodeError) as e:
            what = f"this list of {self.kind.lower()}s"
            message = f"{file}: {what} can not be read: {why_unreadable(e)}"
            raise InstanceError(message) from e

    def _rows(
        self, lines: Iterable[str], file: Path, problems: list[TraceProblem]
    ) -> Iterator[Row]:
        header: Sequence[str] | None = self.columns if self.is_headless else None
        for number, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n").split(self.delimiter)
            if header is None:
                header = self._header(cells, file)
                continue
            if not any(cells) or (self.is_headless and cells[0] == self.columns[0]):
                continue
            named: dict[str, str | None] = dict.fromkeys(self.columns)
            named.update(zip(header, cells, strict=False))
            name = (named.get(self.name) or "").strip()
            where = f"{file.name}:{number}"
            yield Row(self.kind, name, where, named, problems, len(problems))
        if header is None:
            raise InstanceError(f"{file}: this list of {self.kind.lower()}s is empty")

    def _header(self, cells: Sequence[str], file: Path) -> Sequence[str]:
        header = [cell.strip() for cell in cells]
        missing = [c for c in self.columns if c not in header]
        if missing:
            listed = ", ".join(missing)
            message = f"{file}: no list of {self.kind.lower()}s: it has no column {listed}"
            raise InstanceError(message)
        return header
