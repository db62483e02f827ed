"""Draws of hypothesis: fixed, unless a run asks for others.

`pytest` alone draws the same examples each time. `--hypothesis-seed=N`, `--hypothesis-profile` and
more effort (`make nightly`) draw others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings

from tests.support.effort import EFFORT

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile before tests are collected: their settings build on it."""
    asked = config.getoption("--hypothesis-seed") or config.getoption("--hypothesis-profile")
    if asked is None:
        settings.register_profile("fixed", derandomize=EFFORT == 1, print_blob=True)
        settings.load_profile("fixed")
