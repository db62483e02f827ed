"""Preemption and reclaim on a real cluster; the freed capacity stays nominated to the gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.api.kinds import POD_GROUP, collection_path
from optsched.api.wellknown import GROUP_SCHEDULER
from optsched.local.kubectl import node_manifest
from tests.support.api import until
from tests.support.live import QUEUES, SITE_LABEL
from tests.support.proxy import is_eviction
from tests.support.webhooks import denying_webhook, make_namespace, silent_webhook

if TYPE_CHECKING:
    from tests.support.live import Scheduler, Site
    from tests.support.proxy import Proxy

pytestmark = pytest.mark.e2e

SHARES = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: capacity}, {name: nodeorder}]
"""


@pytest.fixture
def classes(site: Site) -> tuple[str, str]:
    """Create two priority classes and return their names, the lower priority first."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    names = (f"{site.name}-low", f"{site.name}-high")
    for name, value in zip(names, (100, 1000), strict=True):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        site.create(path, {**kind, "metadata": {"name": name}, "value": value})
    return names


def gang(site: Site, name: str, size: int, importance: str, **more: object) -> str:
    site.group(name, size, more.pop("queue", "default"), priorityClassName=importance)
    site.members(name, range(size), priorityClassName=importance, **more)
    return name


def begin_behind_proxy(site: Site) -> tuple[Proxy, Scheduler]:
    """Start a scheduler whose requests go through a proxy."""
    proxy = site.proxy()
    return proxy, site.scheduler("--config", "volcano-default", kubeconfig=proxy.kubeconfig)


def test_a_webhook_that_never_answers_in_another_namespace_holds_up_no_preemption(
    site: Site, classes: tuple[str, str]
) -> None:
    """PodGroups of the broken namespace cannot be written, but evictions of other gangs proceed."""
    low, high = classes
    site.nodes(1)
    broken = f"{site.name}-broken"
    make_namespace(site.api, broken)
    groups = collection_path(POD_GROUP, broken)
    rule = (POD_GROUP.group, "*", POD_GROUP.plural, "UPDATE")
    with silent_webhook(site.api, broken, *rule):
        scheduler = site.scheduler("--config", "volcano-default")
        gang(site, "dev", 1, low, cpus=4)
        site.await_bound("dev", 1)
        for i in range(20):
            head = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
            meta = {"name": f"g-{i}", "annotations": {GROUP_SCHEDULER: site.name}}
            spec = {"minMember": 1, "queue": "default"}
            site.api.post(groups, {**head, "metadata": meta, "spec": spec})
        gang(site, "urgent", 1, high, cpus=4)
        site.await_bound("urgent", 1)
        scheduler.await_metric(1, "optsched_evictions_total", action="preempt")
        assert not any(group.get("status") for group in site.api.items(groups))
        scheduler.kill()
    for path in (groups, f"/api/v1/namespaces/{broken}"):
        site.api.delete(path)


def test_a_phase_that_a_webhook_denies_reserves_no_quota(site: Site) -> None:
    """Controllers create no pods for a PodGroup whose phase is never written."""
    site.nodes(1)
    queue = site.queue("narrow", capability={"cpu": "4"})
    broken = f"{site.name}-broken"
    make_namespace(site.api, broken)
    groups = collection_path(POD_GROUP, broken)
    head = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
    for i in range(3):
        meta = {"name": f"g-{i}", "annotations": {GROUP_SCHEDULER: site.name}}
        spec = {"minMember": 1, "queue": queue, "minResources": {"cpu": "4"}}
        site.api.post(groups, {**head, "metadata": meta, "spec": spec})
    policy = site.file("quota.conf", SHARES)

    def phases() -> list[str]:
        return [(each.get("status") or {}).get("phase", "") for each in site.api.items(groups)]

    def probe() -> object:
        return site.api.patch(f"{groups}/g-0?dryRun=All", {"spec": {"minMember": 2}})

    with denying_webhook(site.api, broken, "never.optsched.io", "never", POD_GROUP, probe):
        scheduler = site.scheduler("--config", str(policy))
        refused = "optsched_writes_refused_total"
        until(lambda: scheduler.metric(refused, kind="PodGroup") >= 3, "statuses are refused")
        site.group("works", 1, queue, minResources={"cpu": "4"})
        until(lambda: site.group_status("works").get("phase") == "Inqueue", "it is let in")
        assert phases() == [""] * 3
        said = [line for line in scheduler.log.splitlines() if f"PodGroup {broken}/" in line]
        assert sum("not written" in line for line in said) == 1, said
        assert any("EnqueueFailed: the phase of PodGroup" in line for line in said), said
    site.api.delete(collection_path(POD_GROUP, site.name))
    until(lambda: "Inqueue" in phases(), "one of the others is let in")
    scheduler.kill()
    for path in (groups, f"/api/v1/namespaces/{broken}"):
        site.api.delete(path)


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_an_urgent_gang_gets_the_room_of_a_less_important_one(
    site: Site, classes: tuple[str, str], solver: str
) -> None:
    low, high = classes
    site.nodes(2)
    scheduler = site.scheduler("--solver", solver, "--config", "volcano-default")
    for i in range(4):
        gang(site, f"dev-{i}", 1, low, cpus=2)
    for i in range(4):
        site.await_bound(f"dev-{i}", 1)
    gang(site, "urgent", 2, high, cpus=2)
    site.await_bound("urgent", 2)
    left = sum(site.story.num_bound(f"dev-{i}") for i in range(4))
    assert left == 2
    scheduler.await_metric(2, "optsched_evictions_total", action="preempt")
    victims = lambda: [i for i in range(4) if site.events(f"dev-{i}-0", "Evict")]  # noqa: E731
    until(lambda: len(victims()) == 2, "both are told")
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)


def test_a_gang_is_evicted_as_a_whole_or_not_at_all(site: Site, classes: tuple[str, str]) -> None:
    low, high = classes
    site.nodes(2)
    scheduler = site.scheduler("--config", "volcano-default")
    scheduler.begun()
    gang(site, "whole", 4, low, cpus=1)
    gang(site, "other", 4, low, cpus=1)
    site.await_bound("whole", 4)
    site.await_bound("other", 4)
    gang(site, "urgent", 1, high, cpus=2)
    site.await_bound("urgent", 1)
    # Two victims of a gang suffice; its other pods may take longer to terminate.
    left = lambda story: sorted(story.num_bound(name) for name in ("whole", "other"))  # noqa: E731
    site.story.until(lambda story: left(story) == [0, 4], "one gang goes as a whole")


def test_what_is_due_comes_back_and_no_more(site: Site) -> None:
    site.nodes(2)
    conf = site.file("shares.conf", SHARES)
    lender = site.queue("lender", deserved={"cpu": "5"})
    claimer = site.queue("claimer", deserved={"cpu": "3"})
    site.scheduler("--config", str(conf))
    for i in range(8):
        site.gang(f"job-{i}", 1, queue=lender)
    for i in range(8):
        site.await_bound(f"job-{i}", 1)
    site.gang("claim", 3, queue=claimer)
    site.await_bound("claim", 3)
    assert sum(site.story.num_bound(f"job-{i}") for i in range(8)) == 5
    site.gang("more", 1, queue=claimer)
    site.await_waits("more", "NotEnoughResources")
    assert sum(site.story.num_bound(f"job-{i}") for i in range(8)) == 5


def test_room_stays_with_whom_it_was_made_for_over_a_restart(
    site: Site, classes: tuple[str, str]
) -> None:
    low, high = classes
    site.nodes(1)
    first = site.scheduler("--config", "volcano-default")
    # The victim terminates slowly, so that another pod could take its capacity.
    site.gang("slow", 1, cpus=4, priorityClassName=low, finalizer="optsched.io/test")
    site.await_bound("slow", 1)
    gang(site, "urgent", 1, high, cpus=4)
    until(lambda: site.nominated("urgent-0"), "urgent is nominated")
    first.kill()
    site.scheduler("--config", "volcano-default")
    gang(site, "thief", 1, high, cpus=4)
    site.change_pod("slow-0", {"metadata": {"finalizers": None}})
    site.await_bound("urgent", 1)
    assert site.story.num_bound("thief") == 0


def test_a_disruption_budget_is_kept(site: Site, classes: tuple[str, str]) -> None:
    low, high = classes
    site.nodes(1)
    site.budget("keep", {"app": "kept"}, min_available=1)
    site.scheduler("--config", "volcano-default")
    gang(site, "kept", 1, low, cpus=4, labels={"app": "kept"})
    site.await_bound("kept", 1)
    gang(site, "urgent", 1, high, cpus=4)
    site.await_waits("urgent", "NotEnoughResources")
    assert site.story.num_bound("kept") == 1


BROKEN = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "InternalError",
    "message": 'failed calling webhook "broken.example.com"',
    "code": 500,
}


def test_a_pod_that_ends_before_its_eviction_keeps_its_logs(
    site: Site, classes: tuple[str, str]
) -> None:
    """A webhook refuses the writes of a PodGroup, which does not block preemption either."""
    low, high = classes
    site.nodes(1)
    proxy, scheduler = begin_behind_proxy(site)
    with proxy.answering(lambda method, path: method == "PATCH" and "/broken" in path, BROKEN):
        gang(site, "broken", 1, low, cpus=9)
        gang(site, "ends", 1, low, cpus=4)
        site.await_bound("ends", 1)
        site.await_running("ends", 1)
        gate = proxy.hold(is_eviction)
        gang(site, "urgent", 1, high, cpus=4)
        gate.await_held(1)
        site.complete("ends")
        proxy.open(gate)
        site.await_bound("urgent", 1)
        (pod,) = site.story.pods("ends")
        assert pod.phase == "Succeeded"
        scheduler.await_metric(1, "optsched_evictions_spared_total", reason="ended")
        assert scheduler.metric("optsched_evictions_total") == 0
        gang(site, "more", 1, site.priority("most", 2000), cpus=4)
        site.await_bound("more", 1)
        scheduler.await_metric(1, "optsched_evictions_total", action="preempt")
    site.story.assert_bound_once()


def test_an_eviction_waits_for_its_nomination_until_a_deadline(
    site: Site, classes: tuple[str, str]
) -> None:
    """The write of the nomination gets no response, so the eviction is sent after ten seconds."""
    low, high = classes
    site.nodes(1)
    proxy, scheduler = begin_behind_proxy(site)
    gang(site, "dev", 1, low, cpus=4)
    site.await_bound("dev", 1)
    site.await_running("dev", 1)
    gate = proxy.hold(lambda method, path: method == "PATCH" and "/pods/urgent-0/status" in path)
    gang(site, "urgent", 1, high, cpus=4)
    gate.await_held(1)
    assert scheduler.metric("optsched_evictions_total") == 0
    scheduler.await_log(f"eviction of {site.name}/dev-0 is sent before its nominations are written")
    scheduler.await_metric(1, "optsched_evictions_total", action="preempt")
    assert gate.held
    proxy.open(gate)
    site.await_bound("urgent", 1)


def test_a_deleted_pod_counts_against_the_capability_until_it_has_ended(site: Site) -> None:
    site.nodes(2)
    queue = site.queue("limited", capability={"cpu": "4"})
    site.scheduler("--config", "volcano-default")
    # The finalizer acts like a very long grace period: the pod keeps running after a deletion.
    site.gang("held", 1, cpus=4, queue=queue, finalizer="optsched.io/test")
    site.await_bound("held", 1)
    site.api.delete(f"/api/v1/namespaces/{site.name}/pods/held-0")
    site.gang("next", 1, cpus=4, queue=queue)
    site.await_waits("next", "QueueCapabilityExceeded")
    site.change_pod("held-0", {"metadata": {"finalizers": None}})
    site.await_bound("next", 1)


@pytest.mark.parametrize(
    ("flags", "granted_s"),
    [((), 600), (("--eviction-max-grace-period", "90s"), 90)],
    ids=["default", "set"],
)
def test_a_victim_does_not_hold_a_guarantee_by_taking_long_to_end(
    site: Site, flags: tuple[str, ...], granted_s: int
) -> None:
    """No kubelet runs for this node, so its pods stay until a forced deletion."""
    node = node_manifest(f"{site.name}-real", cpu="2", labels={SITE_LABEL: site.name})
    node["metadata"]["annotations"] = {}
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    site.create("/api/v1/nodes", node)
    lends, owns = site.queue("lends"), site.queue("owns")
    site.scheduler("--config", str(site.file("shares.yaml", SHARES)), *flags)
    periods = {"endless": 10**9, "brief": 5}
    for name, own_s in periods.items():
        site.group(name, 1, lends)
        site.members(name, range(1), terminationGracePeriodSeconds=own_s)
        site.await_bound(name, 1)
    site.api.patch(f"{QUEUES}/{owns}", {"spec": {"guarantee": {"resource": {"cpu": "2"}}}})
    site.group("owner", 2, owns)
    site.members("owner", range(2))
    pods = {name: f"/api/v1/namespaces/{site.name}/pods/{name}-0" for name in periods}

    def granted(name: str) -> int | None:
        found = site.api.get(pods[name])["metadata"].get("deletionGracePeriodSeconds")
        return None if found is None else int(found)

    for name, expected_s in (("endless", granted_s), ("brief", 5)):
        assert until(lambda name=name: granted(name), f"{name} is evicted") == expected_s  # type: ignore[misc]
        assert not site.story.num_bound("owner")
    for path in pods.values():
        site.api.delete(path)
    site.await_bound("owner", 2)
