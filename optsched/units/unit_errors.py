"""A text that is no amount, duration or time: the value and what would be accepted.

`UnitError` is a ValueError with three kinds: `QuantityError`, `DurationError`, `TimestampError`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from optsched.units.plaintext import write_json

_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that cannot be used: where it is, what it holds and what would be accepted.

    path: dotted, map keys in brackets, list positions as numbers in brackets, for example
    `spec.capability[cpu]` or `spec.subGroupPolicy[0].name`.
    """

    path: str
    value: object
    message: str

    def __str__(self) -> str:
        return f"{describe_field(self.path, self.value, self.message)} {self.message}"


def describe_field(path: str, value: object, message: str) -> str:
    """The field and its value, before a message; of a field that is missing its path alone."""
    is_missing = value is None and message.startswith("is missing")
    if is_missing:
        return path
    return f"{path}: {quote(value)}" if path else quote(value)


def quote(value: object) -> str:
    """The value as a message quotes it, cut where it would run off the line."""
    if isinstance(value, str):
        text = write_json(value[: _SHOWN + 1])
    elif isinstance(value, dict | list | tuple):
        text = _start(value)
    else:
        text = write_json(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _start(value: object) -> str:
    """The start of the text of a list or a mapping, which may be long."""
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, default=str, skipkeys=True).iterencode(value):
        text += piece[: _SHOWN + 1]
        if len(text) > _SHOWN:
            break
    return text


class UnitError(ValueError):
    """A text without a reading: `text` as given, `message` with the reason and what would do."""

    def __init__(self, text: object, message: str) -> None:
        super().__init__(text, message)
        self.text = text
        self.message = message

    def __str__(self) -> str:
        return f"{quote(self.text)} {self.message}"

    def at_path(self, path: str) -> FieldError:
        """The same complaint about the field at `path`."""
        return FieldError(path, self.text, self.message)
