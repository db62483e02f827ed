"""Devices of claims: who gets which, in every engine and the verifier, and why others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.domain.decisions import Allocate
from optsched.domain.reasons import ReasonCode
from optsched.domain.task import TaskStatus
from optsched.formats.snapshot import assemble
from optsched.policy import parse_policy
from optsched.rules.device_claims import Want, deal
from optsched.session.session import Surroundings, run_session
from tests.conformance.play import solving
from tests.formats.objects import (
    DRIVER,
    allocated,
    claiming,
    device_claim,
    device_class,
    device_slice,
    group,
    node,
    pod,
    queue,
)

if TYPE_CHECKING:
    from optsched.domain.decisions import Plan
    from optsched.session.session import Report

POLICY = parse_policy(
    """actions: enqueue, allocate, preempt, backfill
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: capacity
""",
    "devices.conf",
)
CLASS = device_class()
GROUP = "scheduling.k8s.io/group-name"


def sessions(*objects: dict[str, Any]) -> list[Report]:
    """The pipeline alone, and with a solver."""
    snapshot = assemble(objects).snapshot
    return [run_session(snapshot, POLICY, s) for s in (Surroundings(), solving())]


def plans(*objects: dict[str, Any]) -> list[Plan]:
    found = sessions(*objects)
    assert [r.trace.violations for r in found] == [(), ()]
    return [r.plan for r in found]


def waits(plan: Plan) -> str:
    """Why the one gang that waits does."""
    (reason,) = plan.pending.values()
    return str(reason)


def granted(plan: Plan) -> dict[str, list[str]]:
    """Names of devices by claim."""
    actions = (a for a in plan.actions if isinstance(a, Allocate))
    grants = [g for a in actions for g in a.devices if g.devices]
    return {g.claim: [d.device for _, d in g.devices] for g in grants}


def own(name: str, **more: Any) -> dict[str, Any]:
    """A claim made for one pod."""
    marks = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    return device_claim(name, annotations=marks, **more)


# --- claims without devices ----------------------------------------------------------------------


def test_each_claim_gets_devices_of_its_own() -> None:
    there = [CLASS, node("n1"), node("n2"), device_slice("n2", "d0", "d1", "d2")]
    asking = [device_claim("two", 2), device_claim("one"), device_claim("more")]
    pods = [pod(f"p-{c}", claiming(c)) for c in ("two", "one", "more")]
    for plan in plans(*there, *asking, *pods):
        got = granted(plan)
        assert set(plan.binds.values()) == {"n2"}
        assert len(plan.binds) == 2 or {"one", "more"} == {k[3:] for k in got}
        devices = [d for each in got.values() for d in each]
        assert len(devices) == len(set(devices)) <= 3
        assert "had too few devices free" in waits(plan)


def test_a_gang_of_pods_with_claims_of_a_template_starts_whole_or_not_at_all() -> None:
    marked = [pod(f"g-{i}", claiming(f"c{i}"), annotations={GROUP: "g"}) for i in range(3)]
    gang = [group("g", {"minMember": 3}), *marked, *(own(f"c{i}") for i in range(3))]
    slices = [device_slice("n1", "d0", "d1"), device_slice("n2", "d0")]
    nodes = [CLASS, node("n1"), node("n2")]
    for plan in plans(*gang, *slices, *nodes):
        assert sorted(plan.binds.values()) == ["n1", "n1", "n2"]
    for plan in plans(*gang, slices[0], *nodes):
        assert not plan.binds
        assert "gang" in waits(plan) or "room for" in waits(plan)


def test_pods_that_share_a_claim_go_to_one_node() -> None:
    small = node("n1")
    small["status"]["allocatable"]["pods"] = "1"
    marked = [pod(f"g-{i}", claiming("c"), annotations={GROUP: "g"}) for i in range(2)]
    gang = [group("g", {"minMember": 2}), *marked, device_claim("c", 2)]
    slices = [device_slice(name, "d0", "d1") for name in ("n1", "n2")]
    # The pipeline puts the first of them where the second has no place.
    _, plan = plans(CLASS, small, node("n2"), *slices, *gang)
    assert set(plan.binds.values()) == {"n2"}
    assert granted(plan) == {"ns/c": ["d0", "d1"]}
    for plan in plans(CLASS, node("n1"), node("n2"), *slices, *gang):
        assert len(plan.binds) == 2
        assert len(set(plan.binds.values())) == 1


def test_a_claim_gives_up_a_device_for_one_that_can_take_no_other() -> None:
    a, b = ({"name": n, "attributes": {"model": {"string": n}}} for n in "ab")
    only_a = f"device.attributes['{DRIVER}'].model == 'a'"
    picky = device_claim("picky", exactly={"selectors": [{"cel": {"expression": only_a}}]})
    pods = [pod("p1", claiming("any")), pod("p2", claiming("picky"))]
    here = [CLASS, node("n1"), device_slice("n1", a, b)]
    for plan in plans(*here, device_claim("any"), picky, *pods):
        assert granted(plan) == {"ns/any": ["b"], "ns/picky": ["a"]}


# --- claims that have their devices --------------------------------------------------------------


def test_a_pod_goes_where_its_claim_has_devices() -> None:
    given = device_claim("c", status=allocated("d0", node_name="n2"))
    other = device_claim("other")
    slices = [device_slice("n2", "d0")]
    pods = [pod("p", claiming("c")), pod("q", claiming("other"))]
    for plan in plans(CLASS, node("n1"), node("n2"), *slices, given, other, *pods):
        assert plan.binds == {"ns/p": "n2"}
        assert granted(plan) == {}


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (None, "resource claim ns/c does not exist"),
        (device_claim("c", deletionTimestamp="2026-01-01T00:00:00Z"), "is being deleted"),
        (device_claim("c", exactly={"allocationMode": "All"}), "asks for all devices"),
        (device_claim("c", exactly={"adminAccess": True}), "access of administrators"),
        (device_claim("c", exactly={"capacity": {"requests": {"m": "1"}}}), "parts of devices"),
        (device_claim("c", exactly={"deviceClassName": "gone"}), "class gone does not exist"),
        (
            device_claim("c", exactly={"selectors": [{"cel": {"expression": "device.x"}}]}),
            "its selector 'device.x' uses device.x, which is not evaluated here",
        ),
        (device_claim("c", exactly={"count": "two"}), "has no reading"),
    ],
)
def test_what_can_not_be_allocated_is_named(claim: dict[str, Any] | None, why: str) -> None:
    here = [CLASS, node("n1"), device_slice("n1", "d0"), pod("p", claiming("c"))]
    for plan in plans(*here, *([claim] if claim else [])):
        assert not plan.binds
        assert ReasonCode.DEVICES in waits(plan)
        assert why in waits(plan)


def test_a_claim_that_is_still_to_be_made_is_waited_for() -> None:
    template = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}
    for plan in plans(CLASS, node("n1"), pod("p", template)):
        assert "resource claim ns/p-gpu (of template t) does not exist" in waits(plan)


# --- queues --------------------------------------------------------------------------------------


def test_queues_count_devices_by_class_and_shared_claims_once() -> None:
    limit = queue("q", capability={f"deviceclass/{DRIVER}": "2"})
    here = [CLASS, limit, node("n1"), device_slice("n1", "d0", "d1", "d2", "d3")]
    marked = [pod(f"g-{i}", claiming("c"), annotations={GROUP: "g"}) for i in range(2)]
    shared = [group("g", {"minMember": 2, "queue": "q"}), *marked, device_claim("c", 2)]
    more = [
        group("h", {"minMember": 1, "queue": "q"}),
        pod("h-0", claiming("d"), annotations={GROUP: "h"}),
        device_claim("d"),
    ]
    for plan in plans(*here, *shared, *more):
        assert set(plan.binds) == {"ns/g-0", "ns/g-1"}
        assert f"queue q has capability 2 deviceclass/{DRIVER}" in waits(plan)


# --- devices that others hold --------------------------------------------------------------------


def test_the_pipeline_evicts_for_devices_and_promises_them() -> None:
    runs = pod(
        "old-0",
        {**claiming("held"), "nodeName": "n1", "priority": 0},
        {"phase": "Running"},
        uid="u",
        annotations={GROUP: "old"},
    )
    held = own("held", status=allocated("d0", node_name="n1", uids=("u",)))
    new = pod("new-0", {**claiming("c"), "priority": 9}, annotations={GROUP: "new"})
    high = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 9,
    }
    groups = [
        group("old", {"minMember": 0}),
        group("new", {"minMember": 1, "priorityClassName": "high"}),
    ]
    full = node("n1")
    full["status"]["allocatable"]["cpu"] = "1"
    objects = [CLASS, full, device_slice("n1", "d0"), high, runs, held, *groups, new, own("c")]
    for report in sessions(*objects):
        names = [(type(a).__name__, a.task) for a in report.plan.actions if hasattr(a, "task")]
        assert ("Evict", "ns/old-0") in names
        assert ("Nominate", "ns/new-0") in names
        assert report.trace.violations == ()


def test_what_leaves_is_not_free_yet() -> None:
    leaves = pod(
        "old",
        {**claiming("held"), "nodeName": "n1"},
        {"phase": "Running"},
        uid="u",
        deletionTimestamp="2026-01-01T00:00:00Z",
    )
    held = own("held", status=allocated("d0", node_name="n1", uids=("u",)))
    here = [CLASS, node("n1"), device_slice("n1", "d0"), held, leaves]
    task = assemble(here).snapshot.nodes[0].residents[0]
    assert task.status is TaskStatus.RELEASING
    assert task.device_claims == ("ns/held",)
    for plan in plans(*here, pod("new", claiming("c")), device_claim("c")):
        assert not plan.binds


# --- dealing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "free", "fits"),
    [
        ([], set(), True),
        ([Want((0,), 1)], {0}, True),
        ([Want((0,), 1)], {1}, False),
        ([Want((0, 1), 1), Want((0,), 1)], {0, 1}, True),
        ([Want((0, 1), 2), Want((0,), 1)], {0, 1}, False),
        ([Want((0, 1), 1), Want((0, 2), 1), Want((0,), 1)], {0, 1, 2}, True),
    ],
)
def test_wants_are_dealt_out(wants: list[Want], free: set[int], fits: bool) -> None:
    dealt = deal(wants, free)
    assert (dealt is not None) is fits
    if dealt is not None:
        given = [place for places in dealt for place in places]
        assert len(given) == len(set(given))
        assert all(len(p) == w.number for p, w in zip(dealt, wants, strict=True))
