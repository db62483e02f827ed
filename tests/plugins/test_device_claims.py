"""Tests of claimed devices: their allocation in every engine and the verifier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate
from optsched.cluster.dra_devices import (
    DeviceClaim,
    DeviceClaimRequest,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceNeed,
    Devices,
    PooledDevice,
)
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.task import TaskShape, TaskStatus
from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.devices.device_claims import DeviceClaims
from optsched.plugins.devices.device_matching import Demand, match_places
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.policy import parse_policy
from optsched.session.session import SessionContext, run_session
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
from tests.support.effort import num_examples
from tests.support.engines import assert_optimum, assert_rows_as_verified
from tests.support.small import cluster, gang
from tests.support.small import node as small_node

if TYPE_CHECKING:
    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot
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
MODEL = f"{DRIVER}/model"
CLASSES = {
    "any": DeviceClass("any", (f"device.driver == '{DRIVER}'",)),
    "a": DeviceClass("a", (f"device.attributes['{DRIVER}'].model == 'a'",)),
}


def sessions(*objects: dict[str, Any]) -> list[Report]:
    """Return the reports of a session without and with a solver."""
    snapshot = assemble(objects).snapshot
    return [run_session(snapshot, POLICY, s) for s in (SessionContext(), solving())]


def plans(*objects: dict[str, Any]) -> list[Plan]:
    found = sessions(*objects)
    assert [r.trace.violations for r in found] == [(), ()]
    return [r.plan for r in found]


def waits(plan: Plan) -> str:
    """Return the reason of the only waiting gang."""
    (reason,) = plan.pending.values()
    return str(reason)


def granted(plan: Plan) -> dict[str, list[str]]:
    """Return the allocated devices by claim."""
    actions = (a for a in plan.actions if isinstance(a, Allocate))
    grants = [g for a in actions for g in a.devices if g.devices]
    return {g.claim: [d.device for _, d in g.devices] for g in grants}


def own(name: str, **more: Any) -> dict[str, Any]:
    """Return a claim that was created for one pod."""
    marks = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    return device_claim(name, annotations=marks, **more)


def constrained(name: str, *constraints: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a claim with constraints between its devices."""
    claim = device_claim(name, **more)
    claim["spec"]["devices"]["constraints"] = list(constraints)
    return claim


def alternatives(name: str, *others: dict[str, Any]) -> dict[str, Any]:
    """Return a claim with one request that lists alternatives."""
    claim = device_claim(name)
    listed = [
        {"name": f"v{i}", "deviceClassName": DRIVER, **other} for i, other in enumerate(others)
    ]
    claim["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": listed}]
    return claim


def having(model: str) -> dict[str, Any]:
    """Return a selector of the devices of one model."""
    text = f"device.attributes['{DRIVER}'].model == '{model}'"
    return {"selectors": [{"cel": {"expression": text}}]}


def device(name: str, model: str, memory: str = "1Gi", **attributes: Any) -> dict[str, Any]:
    told = {"model": {"string": model}, **attributes}
    return {"name": name, "attributes": told, "capacity": {"memory": {"value": memory}}}


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
    # The pipeline would place the first gang where the second one does not fit.
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


# --- all devices, capacity, constraints, alternatives ---------------------------------------------


def test_all_devices_of_a_node_or_none() -> None:
    every = device_claim("every", exactly={"allocationMode": "All"})
    held = device_claim("held", status=allocated("d0", node_name="n2"))
    slices = [device_slice("n1", "d0", "d1", "d2"), device_slice("n2", "d0", "d1", "d2")]
    here = [CLASS, node("n1"), node("n2"), *slices, held, pod("p", claiming("every")), every]
    for plan in plans(*here):
        assert plan.binds == {"ns/p": "n1"}
        assert granted(plan) == {"ns/every": ["d0", "d1", "d2"]}
    tainted = {"name": "d3", "taints": [{"key": "k", "effect": "NoSchedule"}]}
    for plan in plans(CLASS, node("n1"), device_slice("n1", "d0", tainted), here[-2], every):
        assert not plan.binds
        why = f"had too few devices free: all of class {DRIVER}"
        assert f"{why} (unavailable: 1 device on all nodes is tainted: k)" in waits(plan)
    for plan in plans(CLASS, node("n1"), here[-2], every):
        assert not plan.binds


def test_tainted_devices_go_to_who_tolerates_them() -> None:
    bad = {"name": "d0", "taints": [{"key": "k", "effect": "NoSchedule"}]}
    here = [CLASS, node("n1"), device_slice("n1", bad), pod("p", claiming("c"))]
    brave = device_claim("c", exactly={"tolerations": [{"key": "k", "operator": "Exists"}]})
    for plan in plans(*here, brave):
        assert granted(plan) == {"ns/c": ["d0"]}
    for plan in plans(*here, device_claim("c")):
        assert "(unavailable: 1 device on all nodes is tainted: k)" in waits(plan)


def test_all_devices_are_not_known_while_a_pool_changes_or_spans_nodes() -> None:
    every = device_claim("every", exactly={"allocationMode": "All"})
    asking = [CLASS, node("n1"), device_slice("n1", "d0"), pod("p", claiming("every")), every]
    partial = device_slice("n1", "d1", pool={"name": "more", "resourceSliceCount": 2})
    partial["metadata"]["name"] = "more"
    for plan in plans(*asking, partial):
        assert not plan.binds
    network = device_slice("n1", "far", nodeName=None, allNodes=True, pool={"name": "net"})
    network["metadata"]["name"] = "net"
    for plan in plans(*asking, network):
        assert not plan.binds
        why = "request gpu is for all devices (allocationMode: All), some of which do not belong"
        assert f"resource claim ns/every: {why}" in waits(plan)


def test_devices_have_the_capacity_that_is_asked_for() -> None:
    large = device_claim("c", exactly={"capacity": {"requests": {"memory": "40Gi"}}})
    made = [device("s", "a", "24Gi"), device("m", "a", "40Gi"), device("l", "a", "80Gi")]
    here = [CLASS, node("n1"), device_slice("n1", *made), pod("p", claiming("c"))]
    for plan in plans(*here, large):
        assert granted(plan) == {"ns/c": ["l"]}
    elsewhere = device_claim("c", exactly={"capacity": {"requests": {"x.com/memory": "1"}}})
    for plan in plans(*here, elsewhere):
        assert not plan.binds


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ({"matchAttribute": f"{DRIVER}/model"}, {"n2"}),
        ({"distinctAttribute": f"{DRIVER}/model"}, {"n1"}),
        ({"matchAttribute": f"{DRIVER}/model", "requests": ["other"]}, {"n1", "n2"}),
        ({"matchAttribute": f"{DRIVER}/gone"}, set()),
    ],
)
def test_devices_of_a_claim_have_something_in_common_or_not(
    constraint: dict[str, Any], fits: set[str]
) -> None:
    mixed = device_slice("n1", device("d0", "a"), device("d1", "b"))
    pairs = device_slice("n2", device("d0", "a"), device("d1", "a"))
    asking = [CLASS, pod("p", claiming("c")), constrained("c", constraint, count=2)]
    for name, made in (("n1", mixed), ("n2", pairs)):
        for plan in plans(node(name), made, *asking):
            assert bool(plan.binds) is (name in fits)
            if not plan.binds:
                assert next(iter(constraint.values())) in waits(plan)


def test_values_of_other_types_are_other_values() -> None:
    odd = {"x": {"int": 1}}
    other = {"x": {"bool": True}}
    made = device_slice("n1", device("d0", "a", **odd), device("d1", "a", **other))
    asking = [CLASS, node("n1"), made, pod("p", claiming("c"))]
    for plan in plans(*asking, constrained("c", {"matchAttribute": f"{DRIVER}/x"}, count=2)):
        assert not plan.binds


def test_claims_of_a_template_each_keep_to_one_model() -> None:
    marks = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    match = {"matchAttribute": f"{DRIVER}/model"}
    made = [device("d0", "a"), device("d1", "b"), device("d2", "a"), device("d3", "b")]
    pods = [pod(f"p{i}", claiming(f"c{i}")) for i in range(3)]
    claims = [constrained(f"c{i}", match, count=2, annotations=marks) for i in range(3)]
    for plan in plans(CLASS, node("n1"), device_slice("n1", *made), *pods, *claims):
        assert sorted(granted(plan).values()) == [["d0", "d2"], ["d1", "d3"]]
        assert "the same" in waits(plan)


def test_the_first_alternative_that_there_is() -> None:
    claim = alternatives("c", {**having("b"), "count": 2}, having("a"), {"allocationMode": "All"})
    asking = [CLASS, node("n1"), pod("p", claiming("c")), claim]
    stocks = {
        ("b", "a", "b"): [("gpu/v0", "d0"), ("gpu/v0", "d2")],
        ("b", "a"): [("gpu/v1", "d1")],
        ("b",): [("gpu/v2", "d0")],
    }
    for models, expected in stocks.items():
        made = [device(f"d{i}", model) for i, model in enumerate(models)]
        for plan in plans(*asking, device_slice("n1", *made)):
            (action,) = (a for a in plan.actions if isinstance(a, Allocate))
            (grant,) = action.devices
            assert [(request, each.device) for request, each in grant.devices] == expected
    for plan in plans(*asking):
        assert f"one of class {DRIVER} for request gpu" in waits(plan)


def test_an_alternative_of_a_class_that_does_not_exist_is_named() -> None:
    claim = alternatives("c", {"deviceClassName": "gone"}, {})
    for plan in plans(CLASS, node("n1"), device_slice("n1", "d0"), pod("p", claiming("c")), claim):
        assert "resource claim ns/c: device class gone does not exist" in waits(plan)


def random_asks(rng: np.random.Generator) -> tuple[DeviceNeed, ...]:
    """Draw one or two requests: a count or all devices, with optional alternatives and memory."""

    def variant(name: str) -> DeviceNeed:
        kind, number = str(rng.choice(["any", "a"])), int(rng.integers(1, 3))
        memory = (("memory", "2"),) if rng.random() < 0.2 else ()
        every = bool(rng.random() < 0.15)
        return DeviceNeed(name, kind, 1 if every else number, is_all=every, capacity=memory)

    def need(name: str) -> DeviceNeed:
        if rng.random() < 0.3:
            return DeviceNeed(name, "", alternatives=tuple(variant(f"{name}/{i}") for i in "01"))
        return variant(name)

    return tuple(need(f"r{i}") for i in range(int(rng.integers(1, 3))))


def random_claims(rng: np.random.Generator) -> Snapshot:
    """Draw two nodes with devices, gangs with separate claims, and a claim that two may share."""
    on_node = {
        f"n{n}": tuple(
            PooledDevice(
                DeviceId(DRIVER, f"n{n}", f"d{i}"),
                ((MODEL, str(rng.choice(["a", "b"]))),),
                ((f"{DRIVER}/memory", str(rng.choice(["1", "2"]))),),
            )
            for i in range(int(rng.integers(0, 5)))
        )
        for n in range(2)
    }
    ties = [(), (), (DeviceConstraint((), MODEL),), (DeviceConstraint((), MODEL, True),)]
    claims, gangs = {}, []
    for g in range(3):
        asked = DeviceClaimRequest(random_asks(rng), ties[int(rng.integers(4))])
        is_per_pod = g < 2
        what = TaskShape((("cpu", 100),), devices=(asked,) if is_per_pod else ())
        if not is_per_pod:
            what = replace(what, device_claims=("ns/shared",))
        made = gang(f"g{g}", ("w", int(rng.integers(1, 3)), what), least=1)
        tasks = []
        for task in made.tasks:
            key = f"{task.key}-own" if is_per_pod else "ns/shared"
            needs, constraints = asked
            claims[key] = DeviceClaim(
                key, needs=needs, is_per_pod=is_per_pod, constraints=constraints
            )
            tasks.append(replace(task, device_claims=(key,)))
        gangs.append(replace(made, tasks=tuple(tasks)))
    snapshot = cluster([small_node(name, 64) for name in on_node], gangs)
    there = {name: here for name, here in on_node.items() if here}
    return replace(snapshot, devices=Devices(dict(sorted(claims.items())), CLASSES, there))


@pytest.mark.parametrize("seed", range(num_examples(40)))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    assert_optimum(random_claims(np.random.default_rng(seed)), RuleSet.of(Gang(), DeviceClaims()))


@pytest.mark.parametrize("seed", range(num_examples(80)))
def test_rows_allow_just_what_the_verifier_accepts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot = random_claims(rng)
    assert_rows_as_verified(rng, snapshot, RuleSet.of(DeviceClaims()), [None, "n0", "n1"])


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
        (
            device_claim("c", exactly={"adminAccess": True}),
            "resource claim ns/c: request gpu requests administrator access (adminAccess)",
        ),
        (
            constrained("c", {"requests": ["gpu"]}),
            "resource claim ns/c: request gpu has a constraint of a kind that is not supported",
        ),
        (device_claim("c", exactly={"deviceClassName": "gone"}), "class gone does not exist"),
        (
            device_claim("c", exactly={"selectors": [{"cel": {"expression": "device.x"}}]}),
            "its selector 'device.x' uses device.x, which is not supported",
        ),
        (device_claim("c", exactly={"count": "two"}), "has invalid fields"),
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
    ("demands", "free", "fits"),
    [
        ([], set(), True),
        ([Demand((0,), 1)], {0}, True),
        ([Demand((0,), 1)], {1}, False),
        ([Demand((0, 1), 1), Demand((0,), 1)], {0, 1}, True),
        ([Demand((0, 1), 2), Demand((0,), 1)], {0, 1}, False),
        ([Demand((0, 1), 1), Demand((0, 2), 1), Demand((0,), 1)], {0, 1, 2}, True),
    ],
)
def test_wants_are_dealt_out(demands: list[Demand], free: set[int], fits: bool) -> None:
    dealt = match_places(demands, free)
    assert (dealt is not None) is fits
    if dealt is not None:
        given = [place for places in dealt for place in places]
        assert len(given) == len(set(given))
        assert all(len(p) == w.number for p, w in zip(dealt, demands, strict=True))
