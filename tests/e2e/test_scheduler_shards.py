"""Sharded nodes on a real cluster: schedulers use nodes, hand them over, and report them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

GROUP = "shard.volcano.sh/v1alpha1"
SHARDS = f"/apis/{GROUP}/nodeshards"


def shard(site: Site, name: str, *nodes: str) -> str:
    full = f"{site.name}-{name}"
    body = {"apiVersion": GROUP, "kind": "NodeShard", "metadata": {"name": full}}
    site.create(SHARDS, {**body, "spec": {"nodesDesired": list(nodes)}})
    return full


def status(site: Site, name: str) -> dict[str, Any]:
    found = site.api.get(f"{SHARDS}/{name}").get("status", {})
    return {key: value for key, value in found.items() if key != "lastUpdateTime" and value}


def nodes_of(site: Site, gang: str) -> set[str]:
    return {pod.node for pod in site.story.pods(gang) if pod.node}


def test_a_hard_shard_is_kept_and_passes_on_when_it_is_free(site: Site) -> None:
    a, b, c = site.nodes(3)
    theirs = shard(site, "theirs", b)
    site.api.patch(f"{SHARDS}/{theirs}/status", {"status": {"nodesInUse": [b]}})
    mine = shard(site, "mine", a, b)
    site.scheduler("--scheduler-sharding-mode=hard", f"--scheduler-sharding-name={mine}")
    site.gang("first", 8, min_member=1)
    site.await_bound("first", 4)
    until(lambda: status(site, mine) == {"nodesInUse": [a], "nodesToAdd": [b]}, "it is told")
    assert nodes_of(site, "first") == {a}
    site.gang("large", 5)
    site.await_waits("large", "Impossible", "2 nodes did not belong to shard")

    site.api.patch(f"{SHARDS}/{theirs}/status", {"status": {"nodesInUse": []}})
    site.await_bound("first", 8)
    assert nodes_of(site, "first") == {a, b}
    until(lambda: status(site, mine) == {"nodesInUse": [a, b]}, "both are in use")
    site.api.patch(f"{SHARDS}/{mine}", {"spec": {"nodesDesired": [c]}})
    until(lambda: status(site, mine) == {"nodesInUse": [c]}, "they are given away")


def test_a_soft_shard_is_taken_first(site: Site) -> None:
    _, b, _ = site.nodes(3)
    mine = shard(site, "mine", b)
    site.scheduler("--scheduler-sharding-mode=soft", f"--scheduler-sharding-name={mine}")
    site.gang("first", 3)
    site.await_bound("first", 3)
    assert nodes_of(site, "first") == {b}
    site.gang("second", 4)
    site.await_bound("second", 4)
    assert len(nodes_of(site, "second") | {b}) >= 2


def test_without_its_shard_all_nodes_are_used_and_that_is_told(site: Site) -> None:
    site.nodes(2)
    scheduler = site.scheduler(
        "--scheduler-sharding-mode=hard", f"--scheduler-sharding-name={site.name}-gone"
    )
    site.gang("first", 8)
    site.await_bound("first", 8)
    scheduler.await_log(f"there is no NodeShard {site.name}-gone: all nodes are used")
