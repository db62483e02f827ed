"""A large gang waits while small ones run, and starts at the predicted time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from optsched.units import parse_time_ms
from tests.support.api import until

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: reserving
meaning: For tests.
actions: [enqueue, allocate, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: predicates}, {name: nodeorder}]
levels: [admission]
solver: {engine: ENGINE}
starvationAfter: 1ms
reservations: 4
"""
TOLD = re.compile(r"capacity is reserved for it from (\S+) on$")


def told_start_ms(site: Site, group: str) -> int:
    """Return the predicted start that a PodGroup's condition states, or 0."""
    found = TOLD.search(site.condition(group, "Unschedulable").get("message", ""))
    return parse_time_ms(found[1]) if found else 0


def bound_ms(site: Site, pod: str) -> int:
    """Return the time in milliseconds at which a pod was bound."""
    found = site.api.get(f"/api/v1/namespaces/{site.name}/pods/{pod}")["status"]["conditions"]
    bound = next(each for each in found if each["type"] == "PodScheduled")
    return parse_time_ms(bound["lastTransitionTime"])


@pytest.mark.parametrize("engine", ["cpsat", "none"])
def test_short_jobs_use_the_hole_and_long_ones_wait(site: Site, engine: str) -> None:
    site.nodes(2)
    scheduler = site.scheduler("--config", str(site.file("m", MODEL.replace("ENGINE", engine))))
    if engine == "cpsat":
        scheduler.begun()
    site.gang("old", 1, cpus=3, activeDeadlineSeconds=120)
    site.await_bound("old", 1)
    site.gang("big", 2, cpus=4)
    start_ms = until(lambda: told_start_ms(site, "big"), "big is told when it starts")
    assert start_ms == bound_ms(site, "old-0") + 120_000

    site.gang("long", 1)
    site.gang("short", 1, activeDeadlineSeconds=15)
    site.await_bound("short", 1)
    told = f"could delay the start of {site.name}/big"
    site.await_waits("long", "ReservedForOthers", told)
    assert site.story.num_bound("long") == 0
    assert told_start_ms(site, "big") == start_ms

    site.complete("short", "old")
    site.await_bound("big", 2)
    assert bound_ms(site, "big-1") <= start_ms
    assert site.story.num_bound("long") == 0
    site.complete("big")
    site.await_bound("long", 1)
    site.story.assert_within(site.cpus)
