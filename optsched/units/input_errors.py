"""Describe invalid values and unreadable files to the author of the input.

`UnitError`, a ValueError, is the base class of `QuantityError`, `DurationError` and other errors.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from pathlib import Path


_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class FieldError:
    """An invalid field: its path, its value, and a message that states what is accepted.

    `path` joins field names with dots and puts map keys and list positions in brackets, for example
    `spec.capability[cpu]` or `spec.subGroupPolicy[0].name`.
    """

    path: str
    value: object
    message: str

    def __str__(self) -> str:
        return f"{describe_field(self.path, self.value, self.message)} {self.message}"


def describe_field(path: str, value: object, message: str) -> str:
    """Return the start of an error message: a field's path and, if the field exists, its value."""
    is_missing = value is None and message.startswith("is missing")
    if is_missing:
        return path
    return f"{path}: {quote(value)}" if path else quote(value)


def quote(value: object) -> str:
    """Return a value as JSON for a message, truncated after 60 characters."""
    if isinstance(value, str):
        text = write_json(value[: _SHOWN + 1])
    elif isinstance(value, dict | list | tuple):
        # Only the start of the value is encoded, because the value may be large.
        encoder = json.JSONEncoder(ensure_ascii=False, default=str, skipkeys=True)
        text = ""
        for piece in encoder.iterencode(value):
            text += piece[: _SHOWN + 1]
            if len(text) > _SHOWN:
                break
    else:
        text = write_json(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class UnitError(ValueError):
    """Raised for an invalid value; `message` states the reason and what is accepted.

    `text` is the invalid value. If no message is given, `message` is the class attribute
    `accepted`.
    """

    accepted: ClassVar[str] = ""

    def __init__(self, text: object, message: str = "") -> None:
        self.text = text
        self.message = message or self.accepted
        super().__init__(text, self.message)

    def __str__(self) -> str:
        return f"{quote(self.text)} {self.message}"

    def at_path(self, path: str) -> FieldError:
        """Return this error as a FieldError for the field at `path`."""
        return FieldError(path, self.text, self.message)


# --- unreadable files -----------------------------------------------------------------------------

_JSON: Final = {
    "Expecting value": "a value is expected",
    "Expecting property name enclosed in double quotes": "a name in double quotes is expected",
    "Expecting ':' delimiter": "a colon is expected",
    "Expecting ',' delimiter": "a comma or the end is expected",
    "Illegal trailing comma before end of object": "a trailing comma is not allowed",
    "Illegal trailing comma before end of array": "a trailing comma is not allowed",
    "Extra data": "unexpected text after the end of the document",
    "Unterminated string starting at": "this string is not terminated",
    "Invalid control character at": "control characters are not allowed in a string",
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": "a byte order mark is not allowed",
}
_KINDS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((UnicodeDecodeError,), "is not UTF-8 text"),
    ((RecursionError,), "it is nested too deeply"),
    ((TypeError, AttributeError), "a value has the wrong type"),
)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BIND: Final = re.compile(r"error while attempting to bind on address \('([^']*)', (\d+)[^)]*\)")


def is_url(text: str) -> bool:
    """Return whether a string begins with a URL scheme and is therefore not a local path."""
    return _URL.match(text) is not None


def why_absent(path: Path) -> str:
    """Return why a path is missing or cannot be accessed, or an empty string if it exists."""
    try:
        return "" if path.exists() else "there is no such file or folder"
    except OSError as e:
        return f"cannot be read: {e.strerror}"


def why_unreadable(error: BaseException) -> str:
    """Return why a file or string could not be read, or why an address could not be bound.

    `error` is the exception raised by reading, decoding or parsing, or by binding an address.
    """
    if isinstance(error, OSError):
        description = _BIND.sub(r"\1:\2", error.strerror or str(error))
        return description or type(error).__name__
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {json_words(error)}"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing" if error.args else "a field is missing"
    description = " ".join(str(error).split()) or type(error).__name__
    return next((text for kinds, text in _KINDS if isinstance(error, kinds)), description)


def json_words(error: json.JSONDecodeError) -> str:
    """Return a plain description of a JSON syntax error."""
    return _JSON.get(error.msg, error.msg[:1].lower() + error.msg[1:])
