r"""Compile regular expressions in RE2 syntax, as in Go and Volcano.

RE2 searches in time proportional to the length of the text, for every pattern. Only this module
uses the RE2 library.

Source: https://github.com/google/re2/wiki/Syntax and https://pkg.go.dev/regexp/syntax. Go does not
support the RE2 escape for single bytes (`\C`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import re2

_KNOWN: Final = 4096
"""Maximum number of compiled patterns in the cache."""

_INVALID: Final = (
    "is not a regular expression: {}; write one that Go reads (RE2): no look-around such as (?=a) "
    r"and (?<!a), no backreferences such as \1, no possessive or atomic parts such as a*+ and "
    "(?>a), and at most 1000 repetitions"
)
_BYTE: Final = re.compile(r"\\Q.*?(?:\\E|$)|\\(.)", re.DOTALL)
r"""Matches escapes outside \Q...\E. The escape \C is the only RE2 escape that Go lacks."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class PatternError(ValueError):
    """Raised for an invalid RE2 regular expression; the message states what is valid."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled regular expression from `parse_pattern`; patterns with equal `text` are equal."""

    text: str
    _read: Any = field(compare=False, repr=False)

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in `text`, like Go's `regexp.MatchString`.

        Surrogates, which UTF-8 cannot encode, count as U+FFFD, as in Go.
        """
        return self._read.search(_SURROGATE.sub("\ufffd", text)) is not None


@lru_cache(_KNOWN)
def parse_pattern(text: str) -> Pattern:
    """Compile a regular expression; raises `PatternError` if it is invalid."""
    options = re2.Options()
    options.log_errors = False
    try:
        found = re2.compile(text, options)
    except re2.error as e:
        problem = e.args[0] if e.args else ""
        if isinstance(problem, bytes):
            problem = problem.decode("utf-8", "replace")
        raise PatternError(_INVALID.format(problem)) from e
    except UnicodeEncodeError as e:
        raise PatternError(_INVALID.format("invalid UTF-8")) from e
    if any(match[1] == "C" for match in _BYTE.finditer(text)):
        raise PatternError(_INVALID.format(r"invalid escape sequence: \C"))
    return Pattern(text, found)
