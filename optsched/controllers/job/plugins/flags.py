"""Arguments of plugins, in the notation of Go's package flag."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Value: TypeAlias = str | int | bool
Defaults: TypeAlias = "tuple[tuple[str, Value], ...]"

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


@dataclass(frozen=True, slots=True)
class Flags:
    """Values of a plugin's flags. problems: arguments that cannot be read, with what can."""

    values: Mapping[str, Value]
    problems: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """A flag that takes a text."""
        return str(self.values[name])

    def number(self, name: str) -> int:
        """A flag that takes a number."""
        return int(self.values[name])

    def boolean(self, name: str) -> bool:
        """A flag that is true or false."""
        return bool(self.values[name])


@lru_cache(maxsize=1024)
def read_flags(arguments: tuple[str, ...], defaults: Defaults) -> Flags:
    """The flags in arguments such as `--port=22` or `-port 22`.

    defaults: every flag with its value; the value's type is the flag's. As in Go, reading ends
    with the first argument that cannot be read.
    """
    values = dict(defaults)
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, text = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name not in values:
            accepted = ", ".join(f"--{known}" for known in values) or "no arguments"
            return Flags(values, (f"{argument!r} is not one of {accepted}",))
        is_switch = isinstance(values[name], bool)
        if not equals:
            text = "true" if is_switch else left.pop(0) if left else ""
        value = _value(text, values[name])
        if value is None:
            kind = "true or false" if is_switch else "a whole number"
            return Flags(values, (f"{argument!r}: {text!r} is not {kind}",))
        values[name] = value
    return Flags(values)


_MAX_DIGITS: Final = 20
"""Characters of a whole number; Go reads 64 bits."""


def _value(text: str, like: Value) -> Value | None:
    if isinstance(like, bool):
        return True if text in _TRUE else False if text in _FALSE else None
    if isinstance(like, int):
        is_number = text.removeprefix("-").isdecimal() and len(text) <= _MAX_DIGITS
        return int(text) if is_number else None
    return text
