"""Draws of hypothesis: fixed, unless a run asks for others.

`pytest` alone draws the same examples each time. `--hypothesis-seed=N`, `--hypothesis-profile` and
more effort (`make nightly`) draw others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

from tests.support.effort import EFFORT

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile before tests are collected: their settings build on it."""
    if config.getoption("--hypothesis-profile") is not None:
        return
    is_fixed = EFFORT <= 1 and config.getoption("--hypothesis-seed") is None
    # A machine under load is slow: that is no finding.
    settings.register_profile(
        "ours",
        derandomize=is_fixed,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile("ours")
