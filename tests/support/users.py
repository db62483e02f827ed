"""Shared parts of user scenarios: their configurations, and waits for gang sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.shared import shared

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.live import Scheduler, Site
    from tests.support.story import Story

SEEDS = ("manifests", "seeds")


def conf(name: str) -> Path:
    """Return the path of a user's Volcano configuration, by name."""
    return shared("experiments", "conf", f"{name}.conf")


def seed(name: str) -> Path:
    """Return the path of a user's manifest, by the beginning of its name."""
    (path,) = shared(*SEEDS).glob(f"{name}*.yaml")
    return path


def begin(site: Site, config: Path | str, solver: str = "cpsat") -> Scheduler:
    """Start a scheduler of the site, and wait for its solver if it has one."""
    scheduler = site.scheduler("--config", str(config), "--solver", solver)
    return scheduler.begun() if solver == "cpsat" else scheduler


def reach(site: Site, wanted: Mapping[str, int]) -> None:
    """Wait until each gang has its wanted number of pods that hold resources."""

    def reached(story: Story) -> bool:
        return {gang: story.held(gang) for gang in wanted} == wanted

    site.story.until(reached, f"shares {wanted}")


def settle(site: Site, scheduler: Scheduler, wanted: Mapping[str, int]) -> None:
    """Wait for the wanted numbers of pods per gang, and check that ten sessions change nothing."""
    reach(site, wanted)
    site.assert_still(scheduler)
