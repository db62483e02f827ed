"""Explain to the author of a file or string why it could not be read."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

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
