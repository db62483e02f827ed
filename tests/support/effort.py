"""The effort of tests: a fraction of the examples by default, many more at night."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

EFFORT: Final = float(os.environ.get("OPTSCHED_EFFORT", "0.15"))
"""The factor of the number of examples.

The value 1 is the effort during development. `make nightly` uses 20.
"""
IS_THOROUGH: Final = EFFORT >= 1
"""Whether tests marked `nightly` run too."""


def num_examples(number: int) -> int:
    """Return the scaled number of examples, at least one."""
    return max(1, round(number * EFFORT))


def nightly_except(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return the parameters of a test. Only the `quick` values run outside of `make nightly`.

    Raises ValueError for a quick value that is not a parameter.
    """
    found = list(values)
    if unknown := [value for value in quick if value not in found]:
        raise ValueError(f"{unknown}: no values of this test")
    return [v if v in quick else pytest.param(v, marks=pytest.mark.nightly) for v in found]
