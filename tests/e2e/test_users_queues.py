"""Tests of the documented behaviour of queues, on a real cluster with manifests of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.api.kinds import POD_GROUP, collection_path
from tests.support.api import until
from tests.support.live import QUEUES
from tests.support.shared import shared
from tests.support.story import BINDS_S, GPU
from tests.support.users import begin, conf, reach, seed, settle

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

TENANTS = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: capacity}, {name: nodeorder}]
"""
TREE = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins:
  - {name: drf, enableHierarchy: true}
  - {name: predicates}
  - {name: capacity}
"""

# --- ceilings, floors and shares -----------------------------------------------------------------


def test_a_capability_is_a_ceiling_that_a_waiting_job_is_told(site: Site) -> None:
    """Q2, Q11: the limit is 8 GPUs; a gang of 9 waits forever, and one of 8 runs."""
    site.nodes(2, cpus=16, gpus=8, memory="64Gi")
    site.apply(seed("s001-L050"))
    scheduler = begin(site, conf("seed-full"))
    site.gang("nine", 9, queue="ml-training", gpus=1)
    site.await_waits("nine", "QueueCapabilityExceeded", "ml-training", GPU)
    site.gang("eight", 8, queue="ml-training", gpus=1)
    site.await_running("eight", 8)
    settle(site, scheduler, {"nine": 0, "eight": 8})


def test_pods_count_for_their_queue_after_their_podgroup_is_deleted(site: Site) -> None:
    """A scheduler that starts after the deletion of the PodGroup counts the pods as well."""
    site.nodes(2)
    queue = site.queue("small", capability={"cpu": "4"})
    path = collection_path(POD_GROUP, site.name)
    config = site.file("tenants.conf", TENANTS)
    scheduler = begin(site, config, "none")
    site.gang("first", 4, queue=queue)
    reach(site, {"first": 4})
    site.api.delete(f"{path}/first")
    site.gang("second", 4, queue=queue)
    site.await_waits("second", "QueueCapabilityExceeded")
    scheduler.stop()
    begin(site, config, "none")
    site.gang("third", 4, queue=queue)
    site.await_waits("third", "QueueCapabilityExceeded")
    assert site.story.bound() == {"first": 4, "second": 0, "third": 0}
    site.complete("first")
    reach(site, {"second": 4, "third": 0})


def test_a_guarantee_is_kept_free_and_used_at_once(site: Site) -> None:
    """Q3, Q4: one queue has a guarantee of 30 of 100 CPUs, and another one gets 70 but not 71."""
    site.nodes(10, cpus=10)
    kept = site.queue("kept", guarantee={"resource": {"cpu": "30"}})
    rest = site.queue("rest")
    scheduler = begin(site, conf("seed-full"))
    site.gang("many", 100, min_member=1, queue=rest)
    reach(site, {"many": 70})
    site.gang("due", 30, queue=kept)
    settle(site, scheduler, {"many": 70, "due": 30})


def test_a_guarantee_without_deserved_counts(site: Site) -> None:
    """Q5: Crater creates queues with a guarantee but without `deserved`.

    Newer versions of Volcano refuse these queues.
    """
    site.nodes(1, cpus=16, gpus=8, memory="64Gi")
    site.apply(shared("manifests", "crater", "queue-guarantee-without-deserved.yaml"))
    scheduler = begin(site, conf("crater"))
    site.gang("others", 8, min_member=1, gpus=1)
    reach(site, {"others": 6})
    site.gang("due", 2, queue="q-a3", gpus=1)
    settle(site, scheduler, {"others": 6, "due": 2})


def test_a_guarantee_above_deserved_closes_the_queue_to_new_work(site: Site) -> None:
    """Q5: a webhook would refuse this queue; the test shows its effect without a webhook."""
    site.nodes(1)
    above = {"guarantee": {"resource": {"cpu": "16"}}, "deserved": {"cpu": "8"}}
    queue = site.queue("odd", **above)
    scheduler = begin(site, conf("crater"))
    site.gang("gang", 1, queue=queue)
    site.await_waits("gang", "InvalidQueue", "guarantee")
    settle(site, scheduler, {"gang": 0})


def test_weights_share_what_is_saturated(site: Site) -> None:
    """Q6, Q20, S10: three teams with weights 4:2:1 share 28 GPUs as 16/8/4."""
    site.nodes(4, cpus=8, gpus=7)
    site.apply(seed("s002-L046"))
    scheduler = begin(site, conf("seed-full"))
    for team in ("training", "inference", "dev"):
        site.gang(team, 28, min_member=1, queue=f"{team}-queue", gpus=1)
    settle(site, scheduler, {"training": 16, "inference": 8, "dev": 4})


def test_a_capability_limits_only_what_it_lists(site: Site) -> None:
    """Q19: data-pipeline lists no GPUs, so it may use all GPUs without a guarantee."""
    site.nodes(2, cpus=32, gpus=4, memory="128Gi")
    site.apply(seed("s001-L442"))
    scheduler = begin(site, conf("crater"))
    site.gang("etl", 8, min_member=1, queue="data-pipeline", gpus=1)
    reach(site, {"etl": 4})
    site.gang("research", 4, queue="ml-research", gpus=1)
    settle(site, scheduler, {"etl": 4, "research": 4})


# --- order ---------------------------------------------------------------------------------------


def test_a_strict_queue_lets_nobody_pass_its_head(site: Site) -> None:
    """Q1: a strict queue starts its jobs in order."""
    site.nodes(1)
    queue = site.queue("line", dequeueStrategy="fifo")
    scheduler = begin(site, conf("seed-full"))
    site.gang("now", 2, queue=queue)
    site.await_bound("now", 2)
    site.gang("head", 4, queue=queue)
    site.await_waits("head", "NotEnoughResources")
    site.gang("small", 1, queue=queue)
    site.await_waits("small", "WaitsForItsTurn")
    reach(site, {"now": 2, "head": 0, "small": 0})
    site.complete("now")
    settle(site, scheduler, {"head": 4, "small": 0})


def test_queues_that_matter_more_go_first_and_give_back_last(site: Site) -> None:
    """Q9: the queues have the priorities 100 and 50."""
    site.nodes(1)
    less, more = site.queue("less", priority=50), site.queue("more", priority=100)
    owner = site.queue("owner", deserved={"cpu": "2"})
    scheduler = begin(site, conf("crater"))
    site.gang("now", 4)
    site.await_bound("now", 4)
    site.gang("less", 4, queue=less)
    site.gang("more", 2, queue=more)
    site.await_waits("more", "NotEnoughResources")
    site.complete("now")
    reach(site, {"more": 2, "less": 0})
    site.gang("late", 2, queue=less)
    reach(site, {"more": 2, "less": 0, "late": 2})
    site.gang("due", 2, queue=owner)
    settle(site, scheduler, {"due": 2, "more": 2, "less": 0, "late": 0})


def test_only_an_open_queue_takes_new_work(site: Site) -> None:
    """Q12, Q13, Q14: running pods of a closed queue continue."""
    site.nodes(1)
    states = {queue: site.queue(queue.lower()) for queue in ("Closing", "Closed", "Unknown")}
    scheduler = begin(site, conf("seed-full"), "none")
    for state, queue in states.items():
        site.gang(f"before-{state.lower()}", 1, queue=queue)
        site.await_bound(f"before-{state.lower()}", 1)
    for state, queue in states.items():
        path = f"{QUEUES}/{queue}"
        site.api.patch(f"{path}/status", {"status": {"state": state}})
        until(lambda path=path, state=state: _state(site, path) == state, state)
        after = f"after-{state.lower()}"
        # The scheduler may receive pods before it receives their queue.
        site.group(after, 1, queue)
        site.await_waits(after, "QueueNotOpen", queue)
        site.members(after, range(1))
        until(lambda name=f"{after}-0": site.reasons(name)["QueueNotOpen"], "the pod is told")
    settle(site, scheduler, {f"before-{state.lower()}": 1 for state in states})


def _state(site: Site, path: str) -> str:
    state: str = site.api.get(path)["status"]["state"]
    return state


# --- trees ---------------------------------------------------------------------------------------


def test_the_queues_of_an_account_share_its_gpus(site: Site) -> None:
    """Q10, Q23: an account in Crater has 8 GPUs, and each of its two users requests all 8."""
    site.nodes(2, cpus=16, gpus=8, memory="64Gi")
    site.apply(shared("manifests", "crater", "queues.yaml"))
    scheduler = begin(site, conf("crater"))
    site.gang("u7", 5, queue="q-a2-u7", gpus=1)
    reach(site, {"u7": 5})
    site.gang("u8", 8, min_member=1, queue="q-a2-u8", gpus=1)
    settle(site, scheduler, {"u7": 5, "u8": 3})
    site.gang("more", 1, queue="q-a2-u7", gpus=1)
    site.await_waits("more", "QueueCapabilityExceeded", "queue q-a2, an ancestor")


def test_departments_share_by_weight_and_then_their_teams(site: Site) -> None:
    """Q22: on 60 GPUs, the parent queues have weights 3 and 2, and their teams 2, 1 and 1."""
    site.nodes(10, cpus=8, gpus=6)
    teams = {"a1": ("a", "1/3/2"), "a2": ("a", "1/3/1"), "b1": ("b", "1/2/1")}
    for name, (department, weights) in teams.items():
        queue, path = site.queue(name), f"root/{department}/{name}"
        marks = {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}
        site.api.patch(f"{QUEUES}/{queue}", {"metadata": {"annotations": marks}})
        site.gang(name, 60, min_member=1, queue=queue, gpus=1)
    scheduler = begin(site, site.file("tree.conf", TREE))
    settle(site, scheduler, {"a1": 24, "a2": 12, "b1": 24})


def test_tenants_have_floors_ceilings_shares_and_priorities(site: Site) -> None:
    """Q18: two labs share 8 GPUs."""
    site.nodes(2, cpus=8, gpus=4)
    a, b = (
        site.queue(
            name, capability={"nvidia.com/gpu": "6"}, deserved={"nvidia.com/gpu": "4"}, **more
        )
        for name, more in (("a", {"guarantee": {"resource": {"nvidia.com/gpu": "2"}}}), ("b", {}))
    )
    urgent = site.priority("urgent", 1000)
    scheduler = begin(site, site.file("tenants.conf", TENANTS))
    site.gang("b", 8, min_member=1, queue=b, gpus=1)
    reach(site, {"b": 6})
    site.gang("a", 8, min_member=1, queue=a, gpus=1)
    reach(site, {"a": 4, "b": 4})
    site.gang("urgent", 2, queue=b, gpus=1, priorityClassName=urgent)
    reach(site, {"a": 4, "b": 2, "urgent": 2})
    site.complete("urgent")
    site.complete("b")
    settle(site, scheduler, {"a": 6})


def test_gangs_of_three_queues_start_as_gangs(site: Site) -> None:
    """Q25: queue A has two gangs, B and C have one each; no gang ever runs in part."""
    site.nodes(4)
    a, b, c = (site.queue(n, weight=w) for n, w in (("a", 3), ("b", 1), ("c", 1)))
    scheduler = begin(site, conf("seed-full"))
    sizes = {"pg1": 4, "pg2": 3, "pg3": 3, "pg5": 3}
    for (gang, size), queue in zip(sizes.items(), (a, a, b, c), strict=True):
        site.gang(gang, size, queue=queue)
    settle(site, scheduler, sizes)
    assert all(site.story.partial_s(gang, size) < BINDS_S for gang, size in sizes.items())

    def held() -> dict[str, str]:
        queues = {q: site.api.get(f"{QUEUES}/{q}")["status"] for q in (a, b, c)}
        return {q: status["allocated"]["cpu"] for q, status in queues.items()}

    until(lambda: held() == {a: "7", b: "3", c: "3"}, "queues say what they hold")
