"""Texts of users as logs, events and terminals may show them: without control characters."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SUSPECT: Final = re.compile(r"[^ -~]")
"""Most characters need no closer look."""

_LAYOUT: Final = "\n\t"


def printable(text: str, keep: str = "") -> str:
    """The text with an escape for each character that a terminal might act on.

    That are control characters, among them line breaks, and invisible ones that change the
    direction of text. keep: characters that stay. YAML reads the escapes in double quotes.
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda match: _escape_character(match[0], keep, _escaped), text)


def write_json(value: object, **options: Any) -> str:  # noqa: ANN401  of json.dumps
    """The value as JSON in Unicode, control characters in texts as escapes; see `json.dumps`."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda match: _escape_character(match[0], _LAYOUT, _json_escaped), text)


def is_plain(text: str) -> bool:
    """Whether a text, of one line or many, holds nothing that a terminal might act on."""
    return text.isprintable() or all(c.isprintable() or c in _LAYOUT for c in text)


def _escape_character(character: str, keep: str, escape: Callable[[str], str]) -> str:
    return character if character.isprintable() or character in keep else escape(character)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1]
