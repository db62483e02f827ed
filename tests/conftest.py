"""Draws of hypothesis are fixed and long tests left out, unless a run asks for others.

`pytest` alone draws the same examples each time. `--hypothesis-seed=N`, `--hypothesis-profile` and
more effort (`make nightly`) draw others. Tests marked `nightly` run with `OPTSCHED_EFFORT` of 1 or
more, and where a marker expression asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

from tests.support.effort import EFFORT, IS_THOROUGH

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long twins of quick tests out, unless effort or a marker expression asks for them."""
    if IS_THOROUGH or config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("nightly")]
    items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=long)
