"""A part of an object under review: what it holds, where it is, and where its problems go.

Types are looked at before (`pod_types`), so rules read fields as what they should be; null counts
as absent, as it does for Go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.units.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.admission.findings import Findings
    from optsched.admission.review import Raw


@dataclass(frozen=True, slots=True)
class Part:
    """A mapping of field names to values, such as one container; path: to it, without a dot."""

    raw: Raw
    path: str
    findings: Findings

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return self.raw.get(name) is not None

    def text(self, name: str) -> str:
        """A text; empty where it is not there."""
        found: str = self.raw.get(name) or ""
        return found

    def number(self, name: str) -> int:
        """A number; 0 where it is not there."""
        found: int = self.raw.get(name) or 0
        return found

    def list_of(self, name: str) -> list[str]:
        """A list of texts; those that are null are empty."""
        return [each or "" for each in self.raw.get(name) or ()]

    def mapping(self, name: str) -> dict[str, str]:
        """A mapping of names to texts; those that are null are empty."""
        return {key: value or "" for key, value in (self.raw.get(name) or {}).items()}

    def part(self, name: str) -> Part | None:
        """A part of it; None where it is not there."""
        found = self.raw.get(name)
        return None if found is None else Part(found, f"{self.path}.{name}", self.findings)

    def parts(self, name: str) -> Sequence[Part]:
        """The parts in a list."""
        held = self.raw.get(name)
        if not held:
            return ()
        path, findings = f"{self.path}.{name}", self.findings
        return [Part(each or {}, f"{path}[{at}]", findings) for at, each in enumerate(held)]

    def present(self, *names: str) -> list[str]:
        """Those of some fields that are there."""
        return [name for name in names if self.has(name)]

    # --- what is wrong ----------------------------------------------------------------------------

    def invalid(self, name: str, sentence: str) -> None:
        """A field holds what it may not."""
        self.findings.invalid(f"{self.path}.{name}", self.raw.get(name), sentence)

    def required(self, name: str, sentence: str) -> None:
        """A field is missing."""
        self.findings.required(f"{self.path}.{name}", sentence)

    def forbidden(self, name: str, sentence: str) -> None:
        """A field may not be there."""
        self.findings.deny(f"{self.path}.{name}: Forbidden: {sentence}")

    def duplicate(self, name: str, value: object, sentence: str) -> None:
        """A field holds what another one holds."""
        self.findings.deny(f"{self.path}.{name}: Duplicate value: {shown(value)}: {sentence}")

    # --- rules that many fields have --------------------------------------------------------------

    def choose(self, name: str, *choices: str, is_required: bool = False) -> None:
        """A field holds one of some words; empty is as absent unless it is required."""
        value = self.text(name)
        if value and value not in choices:
            supported = ", ".join(f'"{choice}"' for choice in choices)
            self.findings.deny(
                f"{self.path}.{name}: Unsupported value: {shown(value)}: "
                f"supported values: {supported}"
            )
        elif is_required and not value:
            self.required(name, f"write one of {', '.join(choices)}")

    def fits(self, name: str, check: Callable[[str], bool], sentence: str) -> None:
        """A text that is there, and not empty, is as it should be."""
        value = self.text(name)
        if value and not check(value):
            self.invalid(name, sentence)

    def need(self, name: str, check: Callable[[str], bool], sentence: str) -> None:
        """A text is there, and as it should be."""
        if not self.text(name):
            self.required(name, sentence)
        else:
            self.fits(name, check, sentence)

    def within(self, name: str, least: int, most: int) -> None:
        """A number that is there lies between two others."""
        value = self.raw.get(name)
        if value is not None and not least <= value <= most:
            self.invalid(name, f"write {least} to {most}")

    def at_least(self, name: str, least: int) -> None:
        """A number that is there is not below another one."""
        value = self.raw.get(name)
        if value is not None and value < least:
            self.invalid(name, f"write {least} or more")
