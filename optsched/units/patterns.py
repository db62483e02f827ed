"""Regular expressions that users write, read as Go reads them: RE2.

That is Volcano's use of them, and it bounds the time: for any pattern, a search takes time in
proportion to the length of the text. Only this module knows the library.

Source: https://github.com/google/re2/wiki/Syntax, and https://pkg.go.dev/regexp/syntax, which
leaves out single bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import re2

_KNOWN: Final = 4096
"""Patterns that are kept as they were read."""

_ACCEPTED: Final = (
    "write one that Go reads (RE2): no look-around such as (?=a) and (?<!a), no backreferences "
    r"such as \1, no possessive or atomic parts such as a*+ and (?>a), and at most 1000 repetitions"
)
_BYTE: Final = re.compile(r"\\Q.*?(?:\\E|$)|\\(.)", re.DOTALL)
r"""Escapes outside of quotations; \C is the only escape of RE2 that Go does not have."""


class PatternError(ValueError):
    """A text that is no regular expression of RE2; names what would be one."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, read; made by `parse_pattern`. Equal if its text is."""

    text: str
    _read: Any = field(compare=False, repr=False)

    def matches(self, text: str) -> bool:
        """Whether it is found anywhere in a text, as Go's `regexp.MatchString` has it."""
        return self._read.search(text) is not None


@lru_cache(_KNOWN)
def parse_pattern(text: str) -> Pattern:
    """Read a regular expression; raises PatternError."""
    options = re2.Options()
    options.log_errors = False
    try:
        found = re2.compile(text, options)
    except re2.error as e:
        raise PatternError(_complaint(_message_of(e))) from e
    if any(match[1] == "C" for match in _BYTE.finditer(text)):
        raise PatternError(_complaint(r"invalid escape sequence: \C"))
    return Pattern(text, found)


def _complaint(problem: str) -> str:
    return f"is not a regular expression: {problem}; {_ACCEPTED}"


def _message_of(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
