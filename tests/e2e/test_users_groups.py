"""Tests of the documented behaviour of PodGroups on a real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.live import SCHEDULING
from tests.support.story import BINDS_S
from tests.support.users import begin, conf, reach, seed, settle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.live import Site

pytestmark = pytest.mark.e2e


def test_the_podgroup_of_the_guide_gathers_bare_pods(site: Site) -> None:
    """G-1: the PodGroup training-job gathers four pods that name it."""
    site.nodes(2, cpus=16, memory="64Gi")
    site.apply(seed("prereqs"), "high-priority")
    site.apply(seed("s001-L050"))
    site.apply(seed("s001-L106"))
    scheduler = begin(site, conf("seed-full"))
    site.members("training-job", range(4), cpus=2, memory="8Gi")
    settle(site, scheduler, {"training-job": 4})
    running = "its four pods are counted"
    until(lambda: site.await_phase("training-job", "Running").get("running") == 4, running)


def test_a_podgroup_without_a_queue_is_in_the_default_one(site: Site) -> None:
    """G-1q: the PodGroup joins the default queue; the status tests cover unknown queues."""
    site.nodes(1)
    scheduler = begin(site, conf("seed-full"), "none")
    body = {"apiVersion": SCHEDULING, "kind": "PodGroup", "metadata": {"name": "plain"}}
    path = f"/apis/{SCHEDULING}/namespaces/{site.name}/podgroups"
    site.api.post(path, {**body, "spec": {"minMember": 2}})
    site.members("plain", range(2))
    settle(site, scheduler, {"plain": 2})
    held = "volcano_queue_allocated_milli_cpu"
    scheduler.await_metric(2000, held, queue_name="default")


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_fewer_than_the_minimum_are_none(site: Site, solver: str) -> None:
    """G-2, S7: three of four pods fit, so no pod is bound, and the status gives the reason."""
    site.nodes(1, cpus=3)
    scheduler = begin(site, conf("seed"), solver)
    site.gang("four", 4)
    site.await_waits("four", "Impossible")
    site.nodes(1, cpus=2)
    site.await_bound("four", 4)
    site.gang("two", 2)
    site.await_waits("two", "NotEnoughResources")
    settle(site, scheduler, {"four": 4, "two": 0})
    assert site.story.partial_s("four", 4) < BINDS_S


def test_min_resources_that_are_not_there_keep_a_gang_pending(site: Site) -> None:
    """G-3, S2: the gang requests 8 CPUs and stays Pending while only 7 are idle."""
    site.nodes(2)
    scheduler = begin(site, conf("seed-full"))
    site.group("one", 1, minResources={"cpu": "1"})
    site.members("one", range(1))
    site.await_bound("one", 1)
    site.group("large", 2, minResources={"cpu": "8"})
    site.await_phase("large", "Pending")
    site.members("large", range(2))
    site.await_waits("large", "MinResourcesUnavailable")
    reach(site, {"one": 1, "large": 0})
    site.complete("one")
    settle(site, scheduler, {"large": 2})


def test_a_configuration_without_enqueue_lets_gangs_in(site: Site, tmp_path: Path) -> None:
    """The pods of a gang exist only once its PodGroup is Inqueue, which `allocate` sets.

    Volcano's `allocate` does the same.
    """
    site.nodes(1)
    text = conf("seed").read_text()
    assert "enqueue, " in text
    config = tmp_path / "scheduler.conf"
    config.write_text(text.replace("enqueue, ", ""))
    flags = ("--solver", "none", "-v", "4", "--log-format", "json")
    scheduler = site.scheduler("--config", str(config), *flags)
    site.group("later", 1, minResources={"cpu": "1"})
    site.await_phase("later", "Inqueue")
    site.members("later", range(1))
    site.await_bound("later", 1)
    lines = [json.loads(line) for line in scheduler.log.splitlines()]
    steps = [line["message"] for line in lines if line["level"] == "DEBUG"]
    assert any("Allocate" in step and "later-0" in step for step in steps)
    assert any("greedy " in step and " ms" in step for step in steps)


def test_the_class_of_a_podgroup_decides_who_is_next(site: Site) -> None:
    """G-4, S8: of three waiting gangs, the newest one has the highest priority and starts first."""
    site.nodes(1, cpus=2)
    low, high = site.priority("low", 100), site.priority("high", 1000)
    scheduler = begin(site, conf("seed"))
    site.gang("now", 2)
    site.await_bound("now", 2)
    waiting = {"none": {}, "low": {"priorityClassName": low}, "high": {"priorityClassName": high}}
    for name, more in waiting.items():
        site.gang(name, 2, **more)
        site.await_waits(name, "NotEnoughResources")
    for name, left in (("now", "high"), ("high", "low"), ("low", "none")):
        site.complete(name)
        reach(site, {left: 2})
    site.assert_still(scheduler)


def test_a_podgroup_counts_at_most_as_its_pods(site: Site) -> None:
    """A priority class that only a PodGroup names has no effect, and an event reports this."""
    site.nodes(1, cpus=1)
    low, high = site.priority("low", 100), site.priority("high", 1000)
    begin(site, conf("seed"))
    site.gang("now", 1)
    site.await_bound("now", 1)
    site.group("claims", 1, priorityClassName=high)
    site.members("claims", range(1))
    site.gang("waits", 1, priorityClassName=low)
    for name in ("claims", "waits"):
        site.await_waits(name, "NotEnoughResources")
    (event,) = until(lambda: site.events("claims", "PriorityAbovePods"), "it is told")
    assert f"--tenant-priority-class={high}" in event["message"]
    site.complete("now")
    reach(site, {"waits": 1})


def test_a_full_queue_keeps_a_podgroup_pending(site: Site) -> None:
    """G-6a: no pods exist yet, and the controllers may create none."""
    site.nodes(1)
    queue = site.queue("small", capability={"cpu": "2"})
    scheduler = begin(site, conf("seed-full"))
    site.group("first", 2, queue, minResources={"cpu": "2"})
    site.members("first", range(2))
    site.await_bound("first", 2)
    site.group("next", 2, queue, minResources={"cpu": "2"})
    site.await_phase("next", "Pending")
    site.await_waits("next", "ClusterOvercommitted", queue)
    settle(site, scheduler, {"first": 2})
    assert site.group_status("next")["phase"] == "Pending"


def test_a_podgroup_that_no_node_suits_is_inqueue(site: Site) -> None:
    """G-6b, S11: the pods exist and wait; the message names the binding constraint."""
    (node,) = site.nodes(1)
    scheduler = begin(site, conf("seed-full"))
    site.gang("picky", 2, nodeSelector={"kubernetes.io/hostname": "nowhere"})
    site.await_waits("picky", "NoNodeMatches", "kubernetes.io/hostname=nowhere")
    taint = {"key": "keep", "value": "off", "effect": "NoSchedule"}
    site.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    site.gang("plain", 2)
    site.await_waits("plain", "NoNodeMatches", "keep=off:NoSchedule")
    site.assert_still(scheduler)
    assert {g["metadata"]["name"]: g["status"]["phase"] for g in site.groups()} == {
        "picky": "Inqueue",
        "plain": "Inqueue",
    }


def test_a_gang_that_loses_a_pod_is_unknown_and_wastes_gpus_until_it_is_whole(site: Site) -> None:
    """G-6d, T5: a pod ends while its node is cordoned, and the other three GPUs idle meanwhile."""
    (node,) = site.nodes(1, gpus=4)
    scheduler = begin(site, conf("seed-full"))
    site.gang("four", 4, gpus=1)
    site.await_phase("four", "Running")
    site.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    site.delete_pod("four-3")
    site.members("four", range(3, 4), gpus=1)
    site.await_phase("four", "Unknown")
    scheduler.await_metric(3, "optsched_wasted_gpus", queue="default")
    wasted = "optsched_wasted_gpu_seconds_total"
    until(lambda: scheduler.metric(wasted, queue="default") > 3, "seconds are counted")
    site.assert_still(scheduler)
    site.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": False}})
    site.await_phase("four", "Running")
    scheduler.await_metric(0, "optsched_wasted_gpus")
    before = scheduler.metric(wasted)
    settle(site, scheduler, {"four": 4})
    assert scheduler.metric(wasted) == before


def test_a_gang_is_running_until_a_member_that_terminates_is_gone(site: Site) -> None:
    """A terminating pod still holds its node, so the phase stays Running until the pod is gone."""
    site.nodes(1)
    scheduler = begin(site, conf("seed-full"), "none")
    site.gang("two", 2)
    site.await_running("two", 2)  # a pod that is deleted before it starts never runs
    pod = f"/api/v1/namespaces/{site.name}/pods/two-1"
    site.api.patch(pod, {"metadata": {"finalizers": ["example.com/held"]}})
    site.api.delete(pod)
    # A later pod is bound, so the sessions have seen the deletion of the earlier one.
    site.gang("next", 1)
    site.await_bound("next", 1)
    site.assert_still(scheduler)
    assert site.api.get(pod)["metadata"]["deletionTimestamp"]
    assert site.group_status("two")["phase"] == "Running"
    site.api.patch(pod, {"metadata": {"finalizers": None}})
    site.await_phase("two", "Unknown")


def test_operators_name_their_podgroup_in_either_way(site: Site) -> None:
    """G-8: tf-operator and Spark operator use different annotations."""
    site.nodes(2)
    scheduler = begin(site, conf("seed-full"), "none")
    keys = {name: f"scheduling.{name}/group-name" for name in ("k8s.io", "volcano.sh")}
    for name, key in keys.items():
        site.group(name, 3)
        for i in range(2):
            site.pod(f"{name}-{i}", annotations={key: name})
    for name, key in keys.items():
        site.await_waits(name, "NotEnoughTasks")
        site.pod(f"{name}-2", annotations={key: name})
        site.await_running(name, 3)
    site.assert_still(scheduler)
