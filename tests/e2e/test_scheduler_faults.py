"""Conflicting objects on a real cluster: each gets a message, and all valid pods are bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path
from tests.support.api import until
from tests.support.live import QUEUES

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

HYPERNODES = collection_path(kinds.HYPER_NODE)


def messages(site: Site, kind: str, name: str, namespace: str = "default") -> dict[str, str]:
    """Return the event messages of an object by reason, found as `kubectl describe` finds them."""
    where = {"PodDisruptionBudget": f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"}
    paths = {"Queue": QUEUES, "HyperNode": HYPERNODES, **where}
    uid = site.api.get(f"{paths[kind]}/{name}")["metadata"]["uid"]
    chosen = f"involvedObject.kind={kind},involvedObject.name={name},involvedObject.uid={uid}"
    events = site.api.items(f"/api/v1/namespaces/{namespace}/events", fieldSelector=chosen)
    ours = [event for event in events if event["source"].get("component") == "optsched"]
    assert all(event["type"] == "Warning" for event in ours)
    return {event["reason"]: event["message"] for event in ours}


def await_told(site: Site, kind: str, name: str, reason: str, **more: str) -> str:
    found = until(lambda: messages(site, kind, name, **more).get(reason), f"{name}: {reason}")
    return str(found)


def hypernode(site: Site, name: str, tier: int, *members: dict[str, Any]) -> str:
    full = f"{site.name}-{name}"
    kind = {"apiVersion": kinds.HYPER_NODE.api_version, "kind": "HyperNode"}
    spec = {"tier": tier, "members": list(members)}
    site.create(HYPERNODES, {**kind, "metadata": {"name": full}, "spec": spec})
    return full


def member(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "selector": {"exactMatch": {"name": name}}}


def test_queues_that_contradict_are_told_and_the_rest_is_bound(site: Site) -> None:
    site.nodes(2)
    orphan = site.queue("orphan", parent=f"{site.name}-gone")
    ring, other = (f"{site.name}-{name}" for name in ("ring", "other"))
    site.queue("ring", parent=other)
    site.queue("other", parent=ring)
    small = site.queue("small", capability={"cpu": "2"}, deserved={"cpu": "2"})
    wide = site.queue("wide", parent=small, capability={"cpu": "3"})
    # Older queues come first, and queues of the same second are sorted by name.
    two = {"deserved": {"cpu": "2"}, "guarantee": {"resource": {"cpu": "2"}}}
    _, second = (site.queue(name, parent=small, **two) for name in ("one", "two"))
    vast = site.queue("vast", guarantee={"resource": {"cpu": "100"}})
    scheduler = site.scheduler()
    site.gang("innocent", 2)
    site.gang("below", 2, queue=wide)
    site.gang("lost", 1, queue=orphan)
    site.gang("round", 1, queue=ring)
    site.await_bound("innocent", 2)
    site.await_bound("below", 2)

    assert await_told(site, "Queue", orphan, "InvalidQueue") == (
        f"queue {orphan}: its parent {site.name}-gone does not exist; it takes no new work"
    )
    site.await_waits("lost", "QueueNotFound")
    for name in (ring, other):
        assert await_told(site, "Queue", name, "InvalidQueue") == (
            f"queue {name} is its own ancestor: its parents form a cycle; it takes no new work"
        )
    site.await_waits("round", "InvalidQueue")
    assert await_told(site, "Queue", vast, "GuaranteeNotHeld") == (
        "100 cpu are guaranteed, but all nodes together have 8 cpu, of which older queues are "
        "guaranteed 2 cpu; none of it is reserved"
    )
    assert await_told(site, "Queue", second, "GuaranteeNotHeld") == (
        f"2 cpu are guaranteed, but its ancestor {small} may have 2 cpu, of which older queues "
        "are guaranteed 2 cpu; none of it is reserved"
    )
    assert await_told(site, "Queue", wide, "CapabilityContradicts") == (
        f"its capability of 3 cpu exceeds the 2 cpu of its ancestor {small}; the smaller applies"
    )
    assert await_told(site, "Queue", small, "GuaranteesContradict") == (
        "its child queues are guaranteed 4 cpu together, more than the 2 cpu that it may have"
    )
    assert await_told(site, "Queue", small, "DeservedContradict") == (
        "its child queues deserve 4 cpu together, more than the 2 cpu that it deserves"
    )
    assert f"Queue {vast}: GuaranteeNotHeld: 100 cpu are guaranteed" in scheduler.log

    site.api.patch(f"{QUEUES}/{orphan}", {"spec": {"parent": "root"}})
    site.await_bound("lost", 1)
    scheduler.await_log(f"resolved: Queue {orphan}: InvalidQueue")


def test_a_network_that_can_not_be_is_told_and_the_rest_is_bound(site: Site) -> None:
    a, b = site.nodes(2)
    rack = hypernode(site, "rack", 1, member("Node", a), member("Node", b))
    loop = hypernode(site, "loop", 2, member("HyperNode", f"{site.name}-pool"))
    pool = hypernode(site, "pool", 3, member("HyperNode", loop))
    site.scheduler("--config", "topology-first")
    hard = {"mode": "hard"}
    for name, tier in (("high", 7), ("none", 0), ("near", 1)):
        site.group(name, 2, networkTopology={**hard, "highestTierAllowed": tier})
        site.members(name, range(2))
    site.gang("innocent", 1)
    for name, number in (("innocent", 1), ("high", 2), ("near", 2)):
        site.await_bound(name, number)

    assert "is or contains this HyperNode: members must not form a cycle" in await_told(
        site, "HyperNode", loop, "InvalidHyperNode"
    )
    assert "InvalidHyperNode" not in messages(site, "HyperNode", rack)
    (event,) = until(lambda: site.events("high", "TierNotFound"), "the gang is told of its tier")
    assert event["involvedObject"]["kind"] == "PodGroup"
    assert "highestTierAllowed is 7, but no HyperNode has that tier" in event["message"]
    site.await_waits("none", "TopologyNotFound", "no HyperNode has tier 0 or below")
    assert pool


def test_a_budget_that_forbids_everything_is_told_and_the_rest_is_bound(site: Site) -> None:
    site.nodes(1)
    site.budget("keep", {"app": "kept"}, min_available=1)
    high = f"{site.name}-high"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    site.create(path, {**kind, "metadata": {"name": high}, "value": 1000})
    site.scheduler("--config", "volcano-default")
    site.gang("kept", 1, cpus=3, labels={"app": "kept"})
    site.await_running("kept", 1)
    site.group("urgent", 1, priorityClassName=high)
    site.members("urgent", range(1), cpus=3, priorityClassName=high)
    site.gang("innocent", 1)
    site.await_bound("innocent", 1)
    told = await_told(site, "PodDisruptionBudget", "keep", "BudgetForbidsAll", namespace=site.name)
    assert told == "it allows no disruption now, and gangs wait for resources of pods it protects"
    budget = f"; 1 pod that could make room stays because of the disruption budget {site.name}/keep"
    condition = site.await_waits("urgent", "NotEnoughResources", budget)
    assert condition["message"].endswith(budget)
    assert site.story.num_bound("kept") == 1


@pytest.mark.parametrize("actions", ["enqueue, allocate", "enqueue, allocate, reclaim"])
def test_queues_that_lend_without_reclaim_are_told_of_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, actions: str
) -> None:
    """G10: the warning appears once in the log and as an event on the policy's ConfigMap."""
    monkeypatch.setenv("POLICY_CONFIG_MAP", f"{site.name}/policy")
    tiers = "tiers: [{plugins: [{name: gang}, {name: predicates}, {name: proportion}]}]"
    conf = site.file("policy.conf", f'actions: "{actions}"\n{tiers}\n')
    queue = site.queue("lends", reclaimable=True)
    scheduler = site.scheduler("--config", str(conf))
    site.nodes(1)
    site.gang("innocent", 1, queue=queue)
    site.await_bound("innocent", 1)
    if "reclaim" in actions:
        assert "lack `reclaim`" not in scheduler.log
        return
    (event,) = until(lambda: site.events("policy", "ReclaimMissing"), "the ConfigMap is told")
    assert event["involvedObject"]["kind"] == "ConfigMap"
    assert event["message"].startswith("queues such as ")
    assert scheduler.log.count(event["message"]) == 1
