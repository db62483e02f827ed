"""Errors and warnings about a policy file, each with position, message and likely correction."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WIDTH = 96
"""The maximum number of characters of a source line in a message."""


class Severity(Enum):
    """The severity of a diagnostic; a file with an error cannot be used."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a file.

    Attributes
    ----------
    file
        The file name as given by the user.
    line, column
        Line and column, starting at 1, or 0 if an error or warning concerns the entire file.
    path
        The path of the YAML value, such as `tiers[1].plugins[0].name`.
    excerpt
        The text of the source line.
    """

    file: str
    line: int = 0
    column: int = 0
    path: str = ""
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error or warning, printed as `file:line:column: path: message` with the source line.

    Attributes
    ----------
    file, line, column, path, excerpt
        The position of the error or warning; see `Position`.
    message
        The description of the error or warning, and the accepted values.
    likely
        The accepted word that is most similar to the wrong word, or empty if none is similar.
    """

    file: str
    line: int
    column: int
    path: str
    message: str
    likely: str = ""
    severity: Severity = Severity.ERROR
    excerpt: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: "
        path = f"{self.path}: " if self.path else ""
        kind = "warning: " if self.severity is Severity.WARNING else ""
        hint = f"did you mean `{self.likely}`?" if self.likely else ""
        head = f"{place}{kind}{path}{self.message}"
        if not self.excerpt.strip():
            return f"{head}; {hint}" if hint else head
        plain = "".join(c if c.isprintable() else " " for c in self.excerpt).rstrip()
        offset = min(max(self.column - 1, 0), len(plain))
        cut = max(0, offset - _WIDTH // 2) if len(plain) > _WIDTH else 0
        before, after = "…" if cut else "", "…" if len(plain) > cut + _WIDTH else ""
        line = f"{before}{plain[cut : cut + _WIDTH]}{after}"
        indent = " " * (offset - cut + len(before))
        return f"{head}\n    {line}\n    {indent}^ {hint}".rstrip()


class PolicyError(Exception):
    """Raised for an unusable policy; `problems` holds all errors and warnings about the file."""

    def __init__(self, problems: Iterable[Diagnostic]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = [count_text(self.problems)] if len(self.problems) > 1 else []
        return "\n".join([*map(str, self.problems), *count])


def count_text(problems: Sequence[Diagnostic]) -> str:
    """Return the number of errors and warnings as text, such as "2 errors, 1 warning"."""
    counts = [(s.value, sum(p.severity is s for p in problems)) for s in Severity]
    shown = [f"{n} {noun}" if n == 1 else f"{n} {noun}s" for noun, n in counts if n]
    return ", ".join(shown) or "no errors"


class Findings:
    """A collector of the errors and warnings about a file."""

    def __init__(self) -> None:
        self._problems: list[Diagnostic] = []

    def error(self, spot: Position, message: str, likely: str = "") -> None:
        """Add an error, which makes the file unusable."""
        self._add(spot, message, likely, Severity.ERROR)

    def warn(self, spot: Position, message: str, likely: str = "") -> None:
        """Add a warning about a setting that is valid but likely a mistake."""
        self._add(spot, message, likely, Severity.WARNING)

    def _add(self, spot: Position, message: str, likely: str, severity: Severity) -> None:
        place = (spot.file, spot.line, spot.column, spot.path)
        self._problems.append(Diagnostic(*place, message, likely, severity, spot.excerpt))

    @property
    def has_errors(self) -> bool:
        """Whether the file has an error and is therefore unusable."""
        return any(p.severity is Severity.ERROR for p in self._problems)

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        """All errors and warnings, sorted by position in the file."""
        return tuple(sorted(self._problems, key=lambda p: (p.line, p.column)))

    def raise_errors(self) -> tuple[Diagnostic, ...]:
        """Return the warnings, or raise `PolicyError` if the file has an error."""
        if self.has_errors:
            raise PolicyError(self.problems)
        return self.problems


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the name that is most similar to `word`, or an empty string if none is similar."""
    by_fold = {name.casefold(): name for name in names}
    close = get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[close[0]] if close else ""
