"""Report strings that are not valid amounts, durations or times, and state what is accepted.

`UnitError` is a ValueError and the base class of `QuantityError`, `DurationError` and others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Final

from optsched.units.plaintext import write_json

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
    """Return the start of an error message: the path, and the value if there is one."""
    is_missing = value is None and message.startswith("is missing")
    if is_missing:
        return path
    return f"{path}: {quote(value)}" if path else quote(value)


def quote(value: object) -> str:
    """Return the value as JSON for a message, truncated after 60 characters."""
    if isinstance(value, str):
        text = write_json(value[: _SHOWN + 1])
    elif isinstance(value, dict | list | tuple):
        # Only the start is encoded, because the value may be large.
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
    """Raised for an invalid `text`; `message` states the reason and what is accepted.

    `accepted` is the default message.
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
