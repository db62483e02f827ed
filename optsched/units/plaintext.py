"""Escape control characters in user-supplied texts before they reach logs, events and terminals."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SUSPECT: Final = re.compile(r"[^ -~]")
"""Matches every character outside printable ASCII; only these characters may need an escape."""

_LAYOUT: Final = "\n\t"


def printable(text: str, keep: str = "") -> str:
    """Return the text with an escape for each character that a terminal might interpret.

    Control characters, including line breaks, and invisible characters that change the direction of
    text are escaped. Characters in `keep` are not escaped. A YAML parser decodes the escapes inside
    double quotes.
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda match: _escape_character(match[0], keep, _escaped), text)


def write_json(value: object, **options: Any) -> str:  # noqa: ANN401  of json.dumps
    """Return JSON with non-ASCII letters kept and control characters escaped, by `json.dumps`."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda match: _escape_character(match[0], _LAYOUT, _json_escaped), text)


def is_plain(text: str) -> bool:
    """Return whether a text needs no escapes; line breaks and tabs are allowed."""
    return text.isprintable() or all(c.isprintable() or c in _LAYOUT for c in text)


def _escape_character(character: str, keep: str, escape: Callable[[str], str]) -> str:
    return character if character.isprintable() or character in keep else escape(character)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1]
