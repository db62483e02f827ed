"""Fix hypothesis examples and deselect long tests by default.

`pytest` without options draws the same examples each time. `--hypothesis-seed=N`,
`--hypothesis-profile` and more effort (`make nightly`) draw others. Tests marked `nightly` run with
`OPTSCHED_EFFORT` of 1 or more, and with a marker expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

from tests.support.effort import EFFORT, IS_THOROUGH, num_examples

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile before collection, because the settings of tests derive from it."""
    if config.getoption("--hypothesis-profile") is not None:
        return
    is_fixed = EFFORT <= 1 and config.getoption("--hypothesis-seed") is None
    # A slow machine under load is no test failure.
    settings.register_profile(
        "ours",
        max_examples=num_examples(100),
        derandomize=is_fixed,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile("ours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect long variants of quick tests, unless effort or a marker expression selects them."""
    if IS_THOROUGH or config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("nightly")]
    items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=long)
