"""Escape control characters in user-supplied text before it reaches logs, events and terminals."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_SUSPECT: Final = re.compile(r"[^ -~]")
"""Matches every character outside printable ASCII; only these characters may need an escape."""

_LAYOUT: Final = "\n\t"


def printable(text: str, keep: str = "") -> str:
    """Return `text`, with an escape for each character that a terminal might interpret.

    Control characters, including line breaks, and invisible characters that change the text
    direction are escaped. Characters in `keep` are not escaped. A YAML parser decodes the escapes
    if the result is in double quotes.
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(
        lambda match: (
            match[0]
            if match[0].isprintable() or match[0] in keep
            else match[0].encode("unicode_escape").decode("ascii")
        ),
        text,
    )


def write_json(value: object, **options: Any) -> str:  # noqa: ANN401  of json.dumps
    """Return `json.dumps` output with non-ASCII letters kept and control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.isprintable():
        return text
    return _SUSPECT.sub(
        lambda match: match[0] if is_plain(match[0]) else json.dumps(match[0])[1:-1], text
    )


def is_plain(text: str) -> bool:
    """Return whether `text` needs no escapes; line breaks and tabs are allowed."""
    return text.isprintable() or all(c.isprintable() or c in _LAYOUT for c in text)
