"""One browser for all page tests, and the pages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from optsched.study.reports.comparison_report import comparison_page
from optsched.study.reports.page import write_page
from optsched.study.reports.simulation_report import simulation_page
from optsched.study.reports.solve_report import solve_page
from tests.support.browser import MISSING, Browser, programs
from tests.support.pages import ROOT
from tests.support.stories import (
    base,
    compared,
    failures,
    harmful,
    large,
    solved,
    wordy,
    wordy_cluster,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.study.simulation.timeline import Timeline


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the page tests if no marker expression is given."""
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("pages")]
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A running Chromium browser.

    Without Chromium, page tests fail in CI and skip elsewhere.
    """
    found = programs()
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    browser = Browser.started(*found)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the written pages."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="session")
def timeline() -> Timeline:
    """The timeline of the replay on the page `replay`."""
    return failures()[1]


@pytest.fixture(scope="session")
def replay(folder: Path) -> Path:
    """A small replay with a separate mark for every gang and every GPU."""
    result, timeline = failures()
    write_page(simulation_page(result, timeline, base()), folder / "replay.html")
    return folder / "replay.html"


@pytest.fixture(scope="session")
def crowd(folder: Path) -> Path:
    """A large replay with grouped nodes, gangs and queues."""
    result, _ = failures()
    write_page(simulation_page(result, large(3000, 200), base()), folder / "crowd.html")
    return folder / "crowd.html"


@pytest.fixture(scope="session")
def trap(folder: Path) -> Path:
    """A replay with names that are markup and scripts."""
    write_page(simulation_page(*harmful(), base()), folder / "trap.html")
    return folder / "trap.html"


@pytest.fixture(scope="session")
def names(folder: Path) -> Path:
    """A replay with names that are long, in many scripts, or markup."""
    write_page(simulation_page(*wordy(), base()), folder / "names.html")
    return folder / "names.html"


@pytest.fixture(scope="session")
def plans(folder: Path) -> Path:
    """Two plans for a cluster with long names."""
    path = wordy_cluster(folder)
    found = solved(str(path), "volcano-default", "volcano-compatible")
    write_page(solve_page(*found, base()), folder / "plans.html")
    return folder / "plans.html"


@pytest.fixture(scope="session")
def shared(folder: Path) -> Path:
    """A plan for a cluster with shared GPUs."""
    path = ROOT / "instances" / "gpus-shared"
    found = solved(str(path / "small.yaml"), str(path / "model.yaml"))
    write_page(solve_page(*found, base()), folder / "shared.html")
    return folder / "shared.html"


@pytest.fixture(scope="session")
def compare(folder: Path) -> Path:
    """A comparison of two models."""
    write_page(comparison_page(compared()), folder / "compare.html")
    return folder / "compare.html"
