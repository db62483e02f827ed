"""How hard tests try: a part of the examples by default, many more at night."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

EFFORT: Final = float(os.environ.get("OPTSCHED_EFFORT", "0.15"))
"""Examples are multiplied by this: 1 is what a rule was developed with, `make nightly` takes 20."""
IS_THOROUGH: Final = EFFORT >= 1
"""Whether tests marked `nightly` run too."""


def num_examples(number: int) -> int:
    """Return how many of some examples are tried: at least one."""
    return max(1, round(number * EFFORT))


def nightly_except(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return parameters of a test, of which all but the quick ones are left to `make nightly`.

    Raises `ValueError` where one of the quick ones is no value.
    """
    found = list(values)
    if unknown := [value for value in quick if value not in found]:
        raise ValueError(f"{unknown}: no values of this test")
    return [v if v in quick else pytest.param(v, marks=pytest.mark.nightly) for v in found]
