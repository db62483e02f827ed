"""A gang on a real cluster starts as a whole or not at all, whatever else runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.story import BINDS_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.live import Site
    from tests.support.story import Story

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_gangs_that_compete_start_as_a_whole_or_not_at_all(site: Site, solver: str) -> None:
    site.nodes(4)
    scheduler = site.scheduler("--solver", solver, "--config", "volcano-default")
    if solver == "cpsat":
        scheduler.begun()
    minimum = {site.gang(f"whole-{i}", 6): 6 for i in range(5)}
    minimum[site.gang("elastic", 6, min_member=3)] = 3
    story, waiting, num_rounds = site.story, set(minimum), 0
    while waiting:
        story.until(lambda story: _is_settled(story, minimum, 16), "all that fit run, and whole")
        waiting = {gang for gang in minimum if not story.num_bound(gang)}
        for gang in waiting:
            _assert_told_to_wait(site, gang, size=6)
        site.complete(*(minimum.keys() - waiting))
        num_rounds += 1
    assert num_rounds > 1
    for gang, least in minimum.items():
        assert story.partial_s(gang, least) < BINDS_S
    story.assert_bound_once()
    story.assert_within(site.cpus)
    scheduler.await_metric(6 * len(minimum), "volcano_schedule_attempts_total", result="scheduled")


def _is_settled(story: Story, minimum: Mapping[str, int], cpus: int) -> bool:
    """Return whether no gang is bound in part, and no waiting gang would fit.

    Each pod takes 1 CPU.
    """
    bound = story.bound()
    free = cpus - sum(pod.cpus for pod in story.pods() if pod.takes_room)
    return all(
        bound[gang] >= least or (not bound[gang] and least > free)
        for gang, least in minimum.items()
    )


def _assert_told_to_wait(site: Site, gang: str, size: int) -> None:
    condition = site.await_waits(gang, "NotEnoughResources")
    assert condition["message"].startswith("room for ")
    assert site.group_status(gang)["phase"] in ("Pending", "Inqueue")
    for name in (gang, *(f"{gang}-{i}" for i in range(size))):
        until(lambda name=name: site.reasons(name)["NotEnoughResources"], f"event on {name}")
        assert site.reasons(name)["NotEnoughResources"] == 1
