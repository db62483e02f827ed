"""Read instance files that consist of integers; error messages name the file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.formats.files.diagnostics import InstanceError
from optsched.units import MAX_BASE

if TYPE_CHECKING:
    from pathlib import Path


_SHOWN: Final = 60
"""Maximum number of characters that a message quotes from an invalid number."""


class Numbers:
    """Reads the integers in a text one after another; an invalid integer raises InstanceError.

    `line` is the line of the last integer that was read.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._words = (
            (number, word)
            for number, line in enumerate(text.splitlines(), 1)
            for word in line.split()
        )
        self.line = 1

    def read_number(self, what: str, below: int | None = None, least: int = 0) -> int:
        """Return the next number, which must be at least `least` and less than `below`.

        `what` describes the number in error messages. `below` is the exclusive upper limit, by
        default the 64-bit limit. Raises InstanceError if there is no next number, or if it is not
        an integer in range.
        """
        word = self._next_token(what)
        if not word.isdecimal() or not word.isascii():
            raise self.error(what, word, "is not a whole number: write 0 or more")
        end = MAX_BASE + 1 if below is None else below
        # Count the digits first: Python refuses to convert numbers with thousands of digits.
        if len(word.lstrip("0")) > len(str(end)) or int(word) >= end:
            raise self.error(what, word, f"is too large: write 0 to {end - 1}")
        if int(word) < least:
            raise self.error(what, 0, f"is too small: write {least} or more")
        return int(word)

    def signed(self, what: str) -> int:
        """Return the next number, which may be negative."""
        word = self._next_token(what)
        if not word.removeprefix("-").isdecimal() or not word.isascii():
            raise self.error(what, word, "is not a whole number")
        digits = word.removeprefix("-").lstrip("0")
        if len(digits) > len(str(MAX_BASE)) or int(digits or "0") > MAX_BASE:
            message = f"is too large: write {-MAX_BASE} to {MAX_BASE}"
            raise self.error(what, word, message)
        return int(word)

    def _next_token(self, what: str) -> str:
        found = next(self._words, None)
        if found is None:
            raise InstanceError(f"{self._name}:{self.line}: the file ends, but {what} is missing")
        self.line, word = found
        return word

    def several(self, number: int, what: str, below: int | None = None) -> tuple[int, ...]:
        """Return the next `number` integers, each of which must be less than `below`."""
        return tuple(self.read_number(f"{what} {i}", below) for i in range(number))

    def end(self) -> None:
        """Raise InstanceError if the text contains another number."""
        found = next(self._words, None)
        if found is not None:
            self.line, word = found
            raise self.error("the end of the file", word, "is one number too many")

    def error(self, what: str, value: object, message: str) -> InstanceError:
        """Return an error that names the line of the last number that was read."""
        text = str(value)
        cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return InstanceError(f"{self._name}:{self.line}: {what}: {cut} {message}")


def text_of(file: Path) -> str:
    """Return the content of a file as text.

    Raises InstanceError if the file cannot be read or is not UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")
    except OSError as e:
        raise InstanceError(f"{file}: cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise InstanceError(f"{file}: is not UTF-8 text") from e
