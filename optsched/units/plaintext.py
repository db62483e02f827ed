"""Escape control characters in texts of users, for logs, events and terminals."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SUSPECT: Final = re.compile(r"[^ -~]")
"""Every character but printable ASCII is examined further."""

_LAYOUT: Final = "\n\t"


def printable(text: str, keep: str = "") -> str:
    """Return the text with an escape for each character that a terminal might act on.

    These are control characters, which include line breaks, and invisible characters that change
    the direction of text. keep: characters that stay. YAML reads the escapes in double quotes.
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda match: _escape_character(match[0], keep, _escaped), text)


def write_json(value: object, **options: Any) -> str:  # noqa: ANN401  of json.dumps
    """Return a value as Unicode JSON with control characters escaped; options: see `json.dumps`."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda match: _escape_character(match[0], _LAYOUT, _json_escaped), text)


def is_plain(text: str) -> bool:
    """Return whether a text of one or more lines has no character that a terminal might act on."""
    return text.isprintable() or all(c.isprintable() or c in _LAYOUT for c in text)


def _escape_character(character: str, keep: str, escape: Callable[[str], str]) -> str:
    return character if character.isprintable() or character in keep else escape(character)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1]
