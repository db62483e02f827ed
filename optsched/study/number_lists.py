"""Read instance files of whole numbers; error messages name the file and line of a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.formats.files.diagnostics import InstanceError
from optsched.units import MAX_BASE

if TYPE_CHECKING:
    from pathlib import Path


_SHOWN: Final = 60
"""Maximum number of characters of an invalid number that a message quotes."""


class Numbers:
    """A reader that returns the whole numbers of a text one by one, and stops at the first error.

    The reader does not skip invalid numbers, because the remaining numbers would describe another
    instance. `line` is the line number of the last number that was read.
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
        """Return the next number, which must be at least `least` and below `below`.

        `what` is the meaning of the number, for error messages. `below` is the exclusive upper
        limit, or None for the limit of 64 bits. Raises InstanceError if the text ends, or if the
        next token is not a whole number in range.
        """
        word = self._next_token(what)
        if not word.isdecimal() or not word.isascii():
            raise self.error(what, word, "is not a whole number of zero or more")
        end = MAX_BASE + 1 if below is None else below
        # Count the digits first, because Python refuses to convert thousands of digits.
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
        """Return the next `number` whole numbers of the text; each must be less than `below`."""
        return tuple(self.read_number(f"{what} {i}", below) for i in range(number))

    def end(self) -> None:
        """Check that the text contains no further number.

        Raises InstanceError if a number follows.
        """
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
    """Return the text of a file.

    Raises InstanceError if the file cannot be read or is not UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")
    except OSError as e:
        raise InstanceError(f"{file}: cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise InstanceError(f"{file}: is not a text in UTF-8") from e
