"""Instances written as whole numbers one after the other, with the place of each for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.formats.files.diagnostics import InstanceError
from optsched.units import MAX_BASE

if TYPE_CHECKING:
    from pathlib import Path


_SHOWN: Final = 60
"""Most characters of a mistake that a message quotes."""


class Numbers:
    """Numbers of a text in order; the first thing that is wrong ends the reading.

    An instance with a part left out would be another instance.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._words = (
            (number, word)
            for number, line in enumerate(text.splitlines(), 1)
            for word in line.split()
        )
        self._line = 1

    @property
    def line(self) -> int:
        """Where the last number is that was read."""
        return self._line

    def read_number(self, what: str, below: int | None = None, least: int = 0) -> int:
        """The next number, zero or more.

        `what`: the meaning, for messages. `below`: the bound that it has to be below; None for that
        of 64 bits. Raises InstanceError: there is none, it is no whole number, it is negative or
        too large.
        """
        word = self._next_token(what)
        if not word.isdecimal() or not word.isascii():
            raise self.error(what, word, "is not a whole number of zero or more")
        end = MAX_BASE + 1 if below is None else below
        # Digits are counted first: Python refuses to convert thousands of them.
        if len(word.lstrip("0")) > len(str(end)) or int(word) >= end:
            raise self.error(what, word, f"is too large: write 0 to {end - 1}")
        if int(word) < least:
            raise self.error(what, 0, f"is too small: write {least} or more")
        return int(word)

    def signed(self, what: str) -> int:
        """The next number, which may be below zero, too."""
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
            raise InstanceError(f"{self._name}:{self._line}: the file ends; {what} belongs here")
        self._line, word = found
        return word

    def flag(self, what: str) -> bool:
        """A number that is 0 or 1."""
        return bool(self.read_number(what, below=2))

    def several(self, number: int, what: str, below: int | None = None) -> tuple[int, ...]:
        """So many numbers."""
        return tuple(self.read_number(f"{what} {i}", below) for i in range(number))

    def end(self) -> None:
        """Make sure that nothing follows."""
        found = next(self._words, None)
        if found is not None:
            self._line, word = found
            raise self.error("the end of the file", word, "is one number too many")

    def error(self, what: str, value: object, message: str) -> InstanceError:
        """The problem of the last number that was read."""
        text = str(value)
        cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return InstanceError(f"{self._name}:{self._line}: {what}: {cut} {message}")


def text_of(file: Path) -> str:
    """The text of a file.

    Raises InstanceError: it is not there, or no text.
    """
    try:
        return file.read_text("utf-8-sig")
    except OSError as e:
        raise InstanceError(f"{file}: can not be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise InstanceError(f"{file}: is not a text in UTF-8") from e
