"""Several schedulers on one cluster: other names on equal nodes, and replicas with a leader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from optsched.kube.scheduler.status import QUEUE_EVERY_MS
from tests.support.api import until
from tests.support.live import QUEUES
from tests.support.proxy import after, is_binding

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

BOUND = "volcano_schedule_attempts_total"
TIMES = (
    *("--leader-elect-lease-duration", "8s"),
    *("--leader-elect-renew-deadline", "7s"),
    *("--leader-elect-retry-period", "300ms"),
)


# --- other schedulers ----------------------------------------------------------------------------


def test_pods_of_other_schedulers_take_room_and_are_left_alone(site: Site) -> None:
    full, _ = site.nodes(2)
    scheduler = site.scheduler()
    site.pod("bound", cpus=3, scheduler="somebody")
    site.api.bind(site.name, "bound", full)
    site.members("theirs", range(2), scheduler="somebody")
    site.gang("fits", 2, cpus=2)
    site.await_bound("fits", 2)
    assert {pod.node for pod in site.story.pods("fits")} == set(site.cpus) - {full}
    site.group("theirs", 2)
    site.gang("waits", 1, cpus=3)
    site.await_waits("waits", "NotEnoughResources")

    site.delete_pod("bound")
    site.await_bound("waits", 1)
    scheduler.await_metric(3, BOUND, result="scheduled")
    assert site.story.num_bound("theirs") == 0
    assert site.group_status("theirs") == {}
    assert site.events("theirs") == site.events("theirs-0") == []


def test_two_of_us_side_by_side_leave_alone_what_is_the_others(site: Site) -> None:
    site.nodes(2)
    names = (site.name, f"{site.name}-b")
    schedulers = {name: site.spawn("--scheduler-name", name) for name in names}
    for scheduler in schedulers.values():
        scheduler.begin()
    for number, name in enumerate(names, start=2):
        site.gang(f"runs-{number}", number, scheduler=name)
        site.await_phase(f"runs-{number}", "Running")
        site.await_running(f"runs-{number}", number)
        site.gang(f"waits-{number}", 8, scheduler=name)
        site.await_waits(f"waits-{number}", "NotEnoughResources")
    before = _versions(site)
    elsewhere = site.queue("elsewhere")
    for name in names:
        site.gang(f"more-{name}", 1, scheduler=name, queue=elsewhere)
        site.await_running(f"more-{name}", 1)
    assert _versions(site) == before
    _await_unwritten_queue(site)
    for number, scheduler in enumerate(schedulers.values(), start=3):
        scheduler.await_metric(number, BOUND, result="scheduled")
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)


def _versions(site: Site) -> dict[str, str]:
    """Return the resource versions of the two running PodGroups by name."""
    found = site.groups()
    version_of = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in found}
    return {name: version_of[name] for name in ("runs-2", "runs-3")}


def _await_unwritten_queue(site: Site) -> None:
    """Wait until the shared queue stays unwritten for longer than the interval of writes.

    Both schedulers may still report their own changes. Schedulers that correct each other never
    stop.
    """
    last, since_s = "", 0.0

    def is_still() -> bool:
        nonlocal last, since_s
        version = str(site.api.get(f"{QUEUES}/default")["metadata"]["resourceVersion"])
        if version != last:
            last, since_s = version, time.monotonic()
        return time.monotonic() - since_s >= 1.5 * QUEUE_EVERY_MS / 1_000

    until(is_still, "the queue that both share is left alone")


# --- replicas ------------------------------------------------------------------------------------


def test_one_of_two_replicas_schedules_and_the_other_takes_over(site: Site) -> None:
    site.nodes(2)
    flags = ("--leader-elect", "--lock-namespace", site.name, *TIMES)
    first = site.scheduler(*flags)
    first.await_metric(1, "optsched_leading")
    second = site.scheduler(*flags)
    site.gang("one", 2)
    site.await_bound("one", 2)
    assert second.metric("optsched_leading") == 0
    lease = site.lease(site.name)
    assert lease["leaseDurationSeconds"] == 8
    assert lease["leaseTransitions"] == 0
    assert lease["acquireTime"] <= lease["renewTime"]

    first.kill()
    site.gang("two", 2)
    site.await_bound("two", 2)
    second.await_metric(1, "optsched_leading")
    taken = site.lease(site.name)
    assert taken["leaseTransitions"] == 1
    assert taken["holderIdentity"] != lease["holderIdentity"]

    third = site.scheduler(*flags)
    second.stop()
    assert site.lease(site.name)["holderIdentity"] != taken["holderIdentity"]
    site.gang("three", 2)
    site.await_bound("three", 2)
    third.await_metric(2, BOUND, result="scheduled")
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)


def test_a_leader_that_is_killed_between_binds_leaves_no_gang_in_part(site: Site) -> None:
    site.nodes(3)
    proxy = site.proxy()
    flags = ("--leader-elect", "--lock-namespace", site.name, *TIMES)
    first = site.scheduler(*flags, kubeconfig=proxy.kubeconfig)
    first.await_metric(1, "optsched_leading")
    second = site.scheduler(*flags)
    gate = proxy.hold(after(2, is_binding))
    site.gang("half", 6)
    gate.await_held(4)
    site.await_bound("half", 2)
    first.kill()
    site.gang("rival", 8)

    site.await_bound("half", 6)
    second.await_metric(4, BOUND, result="scheduled")
    site.await_waits("rival", "NotEnoughResources")
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)
