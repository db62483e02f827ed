"""Truth values in annotations and labels."""

from __future__ import annotations

from typing import Final

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""What Go's `strconv.ParseBool` takes for true."""


def is_true(text: str | None) -> bool:
    """Whether a text is a truth value that is true."""
    return text in _TRUE
