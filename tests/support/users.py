"""What scenarios of users have in common: their configurations, and shares that are reached."""

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
    """A configuration of Volcano that users have."""
    return shared("experiments", "conf", f"{name}.conf")


def seed(name: str) -> Path:
    """A manifest that users have, by the beginning of its name."""
    (path,) = shared(*SEEDS).glob(f"{name}*.yaml")
    return path


def begin(site: Site, config: Path | str, solver: str = "cpsat") -> Scheduler:
    """A scheduler of the site, with its solver if it has one."""
    scheduler = site.scheduler("--config", str(config), "--solver", solver)
    return scheduler.begun() if solver == "cpsat" else scheduler


def reach(site: Site, wanted: Mapping[str, int]) -> None:
    """Wait until gangs hold so many pods each."""

    def reached(story: Story) -> bool:
        return {gang: story.held(gang) for gang in wanted} == wanted

    site.story.until(reached, f"shares {wanted}")


def settle(site: Site, scheduler: Scheduler, wanted: Mapping[str, int]) -> None:
    """The same, and see that it stays so for ten further sessions."""
    reach(site, wanted)
    site.assert_still(scheduler)
