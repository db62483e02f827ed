"""Tests of the documented eviction rules on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.live import QUEUES
from tests.support.users import begin, conf, reach, seed, settle

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

URGENT = "urgent-training-6f1c"


@pytest.mark.parametrize(("min_member", "left"), [(8, 0), (1, 6)], ids=["whole", "elastic"])
def test_urgent_training_takes_the_room_of_experiments(
    site: Site, min_member: int, left: int
) -> None:
    """E1, E5, G-5: on 4 nodes with 8 GPUs, a victim gang ends or shrinks to its minimum."""
    site.nodes(4, cpus=16, gpus=8)
    site.apply(seed("s002-L046"), "training-queue")
    site.apply(seed("s002-L162"), "production-training", "dev-experiment")
    scheduler = begin(site, conf("seed-full"))
    dev = {"gpus": 4, "priorityClassName": "dev-experiment"}
    site.gang("dev", 8, min_member=min_member, queue="training-queue", **dev)
    reach(site, {"dev": 8})
    site.apply(seed("s002-L162"), "urgent-training")
    reach(site, {URGENT: 2, "dev": left})
    there = {pod.name for pod in site.story.pods("dev")}
    for i in (i for i in range(8) if f"dev-{i}" not in there):
        site.members("dev", range(i, i + 1), **dev)
    site.story.until(lambda story: len(story.pods("dev")) == 8, "its pods are made again")
    settle(site, scheduler, {URGENT: 2, "dev": left})
    assert scheduler.metric("optsched_evictions_total", action="preempt") == 8 - left
    assert scheduler.metric("optsched_wasted_gpus") == 0


def test_importance_counts_within_a_queue_and_shares_between_queues(site: Site) -> None:
    """E2, E3, S1: reclaim may evict pods of higher priority, but only up to the entitlement."""
    site.nodes(1)
    mine, yours = site.queue("mine"), site.queue("yours")
    dev, urgent = site.priority("dev", 100), site.priority("urgent", 1000)
    scheduler = begin(site, conf("seed-full"))
    site.gang("dev", 4, min_member=1, queue=yours, priorityClassName=dev)
    reach(site, {"dev": 4})
    site.gang("plain", 2, queue=mine)
    reach(site, {"dev": 2, "plain": 2})
    site.gang("first", 2, queue=mine, priorityClassName=urgent)
    reach(site, {"dev": 2, "plain": 0, "first": 2})
    site.gang("second", 1, queue=mine, priorityClassName=urgent)
    site.await_waits("second", "QueueDeservedExceeded", mine)
    settle(site, scheduler, {"dev": 2, "plain": 0, "first": 2, "second": 0})
    for action in ("allocate", "preempt", "reclaim"):
        name = "volcano_action_scheduling_latency_milliseconds_count"
        assert scheduler.metric(name, action=action) >= 10


def test_a_queue_without_tolerance_returns_first(site: Site) -> None:
    """E6: the queue `guests` has the annotation volcano.sh/overuse-tolerance=0."""
    site.nodes(1)
    guests, others = site.queue("guests"), site.queue("others")
    owner = site.queue("owner", deserved={"cpu": "2"})
    note = {"metadata": {"annotations": {"volcano.sh/overuse-tolerance": "0"}}}
    site.api.patch(f"{QUEUES}/{guests}", note)
    scheduler = begin(site, conf("crater"))
    for name, queue in (("guests", guests), ("others", others)):
        site.gang(name, 2, queue=queue)
    reach(site, {"guests": 2, "others": 2})
    site.gang("due", 2, queue=owner)
    settle(site, scheduler, {"guests": 0, "others": 2, "due": 2})
    until(lambda: site.events(guests, "OveruseReclaimed", "default"), "the queue is told")


def test_some_are_never_evicted_and_some_evict_nobody(site: Site) -> None:
    """E7: the pods have volcano.sh/preemptable: "false", or preemptionPolicy: Never."""
    site.nodes(1)
    urgent = site.priority("urgent", 1000)
    polite = site.priority("polite", 1000, preemptionPolicy="Never")
    scheduler = begin(site, conf("seed-full"))
    site.gang("kept", 2, labels={"volcano.sh/preemptable": "false"})
    site.gang("plain", 2)
    reach(site, {"kept": 2, "plain": 2})
    site.gang("polite", 2, priorityClassName=polite)
    site.await_waits("polite", "NotEnoughResources")
    site.gang("greedy", 4, priorityClassName=urgent)
    site.await_waits("greedy", "NotEnoughResources")
    settle(site, scheduler, {"kept": 2, "plain": 2, "polite": 0, "greedy": 0})
