"""Valid plans with a planted mistake: the verifier names the rule and the object."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from optsched.api.wellknown import NUMA_TOPOLOGY_POLICY
from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.node_resources import Alignment, Numa, NumaCell, NumaNeed
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.snapshot import Claim, GangPhase, Queue, QueueState
from optsched.cluster.task import DeviceRequest, HostPort, PodTerm, SpreadTerm, Task, TaskStatus
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.verification.verify import verify_actions
from tests.support.checker import CHECKS, Checker
from tests.support.contests import CONSTRAINTS, contests
from tests.support.effort import num_examples
from tests.support.engines import Bench, allocations
from tests.support.small import CPU, ZONE, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import DataObject, DrawFn

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Gang, Node, Snapshot
    from optsched.cluster.task import TaskShape

OF_PLUGINS = {rule.name: rule for plugin in PLUGINS.values() for rule in plugin.build({})}
RULES = RuleSet.of(*(OF_PLUGINS[name] for name in CHECKS if name in OF_PLUGINS))


def told(snapshot: Snapshot, actions: Sequence[Action]) -> set[tuple[str, str]]:
    """Return the rule and the object of every violation."""
    return {(v.rule, v.where) for v in verify_actions(snapshot, actions, RULES)}


def binding(snapshot: Snapshot, wanted: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the violations of binding tasks of the namespace `ns` to nodes."""
    return told(snapshot, allocations(snapshot, {f"ns/{t}": n for t, n in wanted.items()}))


def many(name: str, number: int, what: TaskShape | None = None, **fields: object) -> Gang:
    """Return a gang that may start with one task."""
    return gang(name, ("w", number, what or shape(1)), **{"least": 1, **fields})


# --- a plan that is right, and small changes to it -----------------------------------------------

NODES = [node("n0", 4), node("n1", 4), node("down", 4, ready=False)]
STRANGER = Task("kube-system/agent", shape(1), TaskStatus.RUNNING, node="n1")
WITH_STRANGER = [NODES[0], replace(NODES[1], residents=(STRANGER,)), NODES[2]]
OLD = many("old", 5)
STATES = (
    running(OLD.tasks[0], "n0"),
    replace(OLD.tasks[1], status=TaskStatus.GATED),
    replace(OLD.tasks[2], status=TaskStatus.SUCCEEDED),
    replace(OLD.tasks[3], status=TaskStatus.FAILED),
    replace(OLD.tasks[4], problem=Reason(ReasonCode.INVALID_POD, "spec.priority: no number")),
)
HERE = cluster(
    WITH_STRANGER,
    [replace(OLD, tasks=STATES, phase=GangPhase.RUNNING), gang("g", ("w", 3, shape(1)))],
)
RIGHT = {"g-w-0": "n0", "g-w-1": "n0", "g-w-2": "n1"}


def test_the_plan_is_right() -> None:
    assert binding(HERE, RIGHT) == set()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"g-w-2": "down"}, {("well-formed", "task ns/g-w-2")}),
        ({"g-w-2": "nowhere"}, {("well-formed", "task ns/g-w-2"), ("gang", "gang ns/g")}),
        ({"old-w-0": "n1"}, {("well-formed", "task ns/old-w-0")}),
        ({"old-w-1": "n1"}, {("well-formed", "task ns/old-w-1")}),
        ({"old-w-2": "n1"}, {("well-formed", "task ns/old-w-2")}),
        ({"old-w-3": "n1"}, {("well-formed", "task ns/old-w-3")}),
        ({"old-w-4": "n1"}, {("well-formed", "task ns/old-w-4")}),
    ],
    ids=["node not ready", "no node", "running", "gated", "succeeded", "failed", "unreadable"],
)
def test_tasks_and_nodes_that_can_not_be_used(
    change: Mapping[str, str], expected: set[tuple[str, str]]
) -> None:
    found = {(r, w) for r, w in binding(HERE, {**RIGHT, **change}) if r != "proportion"}
    assert found == expected


@pytest.mark.parametrize(
    ("action", "detail"),
    [
        (Allocate("ns/g-w-9", "n0", "ns/g"), "it is not a member of gang ns/g"),
        (Allocate("ns/old-w-0", "n0", "ns/g"), "it is not a member of gang ns/g"),
        (Allocate("kube-system/agent", "n0", "ns/g"), "it is not a member of gang ns/g"),
        (Allocate("kube-system/agent", "n0", ""), "it names no gang"),
        (Allocate("ns/g-w-0", "n0", "ns/h"), "its gang ns/h does not exist"),
        (Nominate("ns/g-w-9", "n0", "ns/g"), "it is not a member of gang ns/g"),
        (Allocate("ns/g-w-0", "n1", "ns/g"), "placed more than once"),
        (Nominate("ns/g-w-0", "n1", "ns/g"), "placed more than once"),
    ],
)
def test_actions_about_nothing(action: Allocate | Nominate, detail: str) -> None:
    right = allocations(HERE, {f"ns/{task}": where for task, where in RIGHT.items()})
    found = verify_actions(HERE, [*right, action], RULES)
    assert ("well-formed", f"task {action.task}", detail) in {
        (v.rule, v.where, v.detail) for v in found
    }


def test_a_task_moved_to_a_full_node() -> None:
    snapshot = cluster([node("n0", 2), node("n1", 4)], [gang("g", ("w", 3, shape(1)))])
    assert binding(snapshot, {"g-w-0": "n0", "g-w-1": "n0", "g-w-2": "n1"}) == set()
    assert binding(snapshot, {f"g-w-{i}": "n0" for i in range(3)}) == {("fits", "node n0")}


def test_a_gang_whose_object_is_wrong() -> None:
    odd = many("g", 1, problem=Reason(ReasonCode.INVALID_POD_GROUP, "spec.minMember: no number"))
    found = binding(cluster(NODES, [odd]), {"g-w-0": "n0"})
    assert found == {("well-formed", "task ns/g-w-0"), ("proportion", "queue default")}


# --- gangs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", RIGHT)
def test_a_member_dropped_below_the_minimum(dropped: str) -> None:
    rest = {task: where for task, where in RIGHT.items() if task != dropped}
    assert binding(HERE, rest) == {("gang", "gang ns/g")}


def test_a_role_below_its_minimum() -> None:
    made = gang("g", ("ps", 1, shape(1)), ("w", 2, shape(1)), least=2, min_role=(("ps", 1),))
    snapshot = cluster([node("n0", 4)], [made])
    assert binding(snapshot, {"g-ps-0": "n0", "g-w-0": "n0"}) == set()
    assert binding(snapshot, {"g-w-0": "n0", "g-w-1": "n0"}) == {("gang", "gang ns/g")}


def test_a_start_without_min_resources() -> None:
    def needing(cpu: int) -> Snapshot:
        return cluster([node("n0", 4)], [many("g", 1, min_resources=((CPU, cpu * 1000),))])

    assert binding(needing(4), {"g-w-0": "n0"}) == set()
    assert binding(needing(5), {"g-w-0": "n0"}) == {("gang", "gang ns/g"), ("gang", "minResources")}


def test_min_resources_taken_by_others() -> None:
    gangs = [many("g", 1, min_resources=((CPU, 3000),)), many("h", 2)]
    snapshot = cluster([node("n0", 4)], gangs)
    assert binding(snapshot, {"g-w-0": "n0", "h-w-0": "n0"}) == set()
    both = {"g-w-0": "n0", "h-w-0": "n0", "h-w-1": "n0"}
    assert binding(snapshot, both) == {("gang", "minResources")}


# --- queues --------------------------------------------------------------------------------------


def cpus(number: int) -> tuple[tuple[str, int], ...]:
    return ((CPU, number * 1000),)


def placing(number: int, queues: Sequence[Queue], queue: str) -> set[tuple[str, str]]:
    """Return the violations of placing one-CPU tasks of a queue; others request no resources."""
    snapshot = cluster([node("n0", 9)], [many("g", number, queue=queue)], queues)
    return binding(snapshot, {f"g-w-{i}": "n0" for i in range(number)})


def test_more_than_the_capability() -> None:
    queues = [Queue("q", capability=cpus(2))]
    assert placing(2, queues, "q") == set()
    assert ("capability", "queue q") in placing(3, queues, "q")


def test_more_than_an_ancestors_capability() -> None:
    queues = [
        Queue("org", capability=cpus(2)),
        Queue("team", parent="org"),
        Queue("user", parent="team"),
    ]
    assert placing(2, queues, "user") == set()
    assert placing(3, queues, "user") == {
        ("capability", "queue org"),
        ("proportion", "queue user"),
    }


def test_the_guarantee_of_another_queue() -> None:
    queues = [Queue("floor", guarantee=cpus(4)), Queue("q")]
    assert placing(5, queues, "q") == set()
    assert ("guarantee", "all queues") in placing(6, queues, "q")
    assert placing(6, queues, "floor") == set()


def test_more_than_the_share_by_weight() -> None:
    gangs = [many("a", 8, queue="a"), many("b", 8, queue="b")]
    queues = [Queue("a", weight=1), Queue("b", weight=3)]
    snapshot = cluster([node("n0", 8)], gangs, queues)
    assert binding(snapshot, {f"a-w-{i}": "n0" for i in range(2)}) == set()
    assert binding(snapshot, {f"a-w-{i}": "n0" for i in range(3)}) == {("proportion", "queue a")}


@pytest.mark.parametrize(
    ("queues", "detail"),
    [
        ([Queue("q", state=QueueState.CLOSED)], "queue q accepts no tasks: its state is Closed"),
        ([Queue("q", state=QueueState.CLOSING)], "queue q accepts no tasks: its state is Closing"),
        (
            [Queue("q", problem=Reason(ReasonCode.INVALID_QUEUE, "spec.weight: no number"))],
            "queue q accepts no tasks: spec.weight: no number",
        ),
        (
            [Queue("q", parent="org"), Queue("org", state=QueueState.CLOSED)],
            "queue org accepts no tasks: its state is Closed",
        ),
        ([Queue("q", parent="org")], "queue org does not exist"),
        ([], "queue q does not exist"),
        ([Queue("q", parent="r"), Queue("r", parent="q")], "queue q is its own ancestor"),
    ],
    ids=["closed", "closing", "unreadable", "closed above", "no parent", "missing", "cycle"],
)
def test_a_queue_that_takes_no_work(queues: Sequence[Queue], detail: str) -> None:
    snapshot = cluster([node("n0", 9)], [many("g", 1, queue="q")], queues)
    actions = allocations(snapshot, {"ns/g-w-0": "n0"})
    found = {(v.rule, v.where, v.detail) for v in verify_actions(snapshot, actions, RULES)}
    assert ("well-formed", "task ns/g-w-0", detail) in found
    assert {rule for rule, _, _ in found} <= {"well-formed", "proportion"}


# --- nodes ---------------------------------------------------------------------------------------

IN_A = Requirement(ZONE, Operator.IN, ("a",))
SPOT = Taint("spot", "", TaintEffect.NO_EXECUTE)
WEB = (HostPort("TCP", "0.0.0.0", 80),)
CLAIMS = {"ns/local": Claim("ns/local", nodes=NodeSelector((NodeTerm((IN_A,)),)))}


@pytest.mark.parametrize(
    ("what", "bad", "rule"),
    [
        (shape(1, node_selector=((ZONE, "a"),)), node("bad", labels={ZONE: "b"}), "node-affinity"),
        (
            shape(1, node_affinity=NodeSelector((NodeTerm((IN_A,)),))),
            node("bad", labels={ZONE: "b"}),
            "node-affinity",
        ),
        (shape(1), node("bad", taints=(SPOT,)), "taints"),
        (shape(1), node("bad", unschedulable=True), "taints"),
        (
            shape(1, tolerations=(Toleration("other", exists=True),)),
            node("bad", taints=(SPOT,)),
            "taints",
        ),
        (shape(1, claims=("ns/local",)), node("bad", labels={ZONE: "b"}), "volumes"),
    ],
    ids=["selector", "affinity", "taint", "cordoned", "other toleration", "volume"],
)
def test_a_node_that_is_not_for_the_task(what: TaskShape, bad: object, rule: str) -> None:
    nodes = [node("good", labels={ZONE: "a"}), bad]
    snapshot = replace(cluster(nodes, [many("g", 1, what)]), claims=CLAIMS)  # type: ignore[list-item]
    assert binding(snapshot, {"g-w-0": "good"}) == set()
    assert binding(snapshot, {"g-w-0": "bad"}) == {(rule, "task ns/g-w-0")}


@pytest.mark.parametrize("key", ["ns/gone", "ns/lost"])
def test_a_claim_that_can_not_be_used(key: str) -> None:
    snapshot = cluster([node("n0")], [many("g", 1, shape(1, claims=(key,)))])
    snapshot = replace(snapshot, claims={"ns/lost": Claim("ns/lost", problem="is lost")})
    (violation,) = verify_actions(snapshot, allocations(snapshot, {"ns/g-w-0": "n0"}), RULES)
    assert (violation.rule, violation.where) == ("volumes", "task ns/g-w-0")
    assert violation.detail.startswith(f"claim {key}")


TOPOLOGY = "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("label", "labels", "fits"),
    [
        (TOPOLOGY, {TOPOLOGY: "a"}, True),
        (TOPOLOGY, {TOPOLOGY: "b"}, True),
        (TOPOLOGY, {TOPOLOGY: "c"}, False),
        (TOPOLOGY, {"topology.kubernetes.io/region": "a"}, False),
        (TOPOLOGY, {}, True),
        ("failure-domain.beta.kubernetes.io/zone", {TOPOLOGY: "a"}, True),
        (TOPOLOGY, {"failure-domain.beta.kubernetes.io/zone": "a"}, False),
    ],
)
def test_a_volume_in_another_zone(label: str, labels: Mapping[str, str], fits: bool) -> None:
    made = cluster([node("n0", labels=labels)], [many("g", 1, shape(1, claims=("ns/c",)))])
    snapshot = replace(made, claims={"ns/c": Claim("ns/c", zones=((label, ("a", "b")),))})
    expected = set() if fits else {("volume-zone", "task ns/g-w-0")}
    assert binding(snapshot, {"g-w-0": "n0"}) == expected


def with_disks(most: int, *claims: str, resident: tuple[str, ...] = ()) -> Snapshot:
    """Return a node that attaches some disks, and one task per claim, named by its disk."""
    held = Task("ns/r", shape(1, claims=resident), TaskStatus.RUNNING, node="n0")
    there = node("n0", attach_limits=(("d", most),), residents=(held,))
    gangs = [many(f"g{i}", 1, shape(1, claims=(key,))) for i, key in enumerate(claims)]
    keys = {*claims, *resident}
    known = {key: Claim(key, driver="d", handle=key[-1]) for key in keys}
    return replace(cluster([there], gangs), claims=known)


@pytest.mark.parametrize(
    ("most", "resident", "claims", "fits"),
    [
        (2, (), ("ns/a", "ns/b"), True),
        (1, (), ("ns/a", "ns/b"), False),
        (1, (), ("ns/a", "ns/other-a"), True),
        (2, ("ns/a",), ("ns/b", "ns/c"), False),
        (2, ("ns/a",), ("ns/a", "ns/c"), True),
        (0, ("ns/a",), ("ns/a",), True),
        (0, ("ns/a",), ("ns/b",), False),
    ],
)
def test_more_volumes_than_a_node_attaches(
    most: int, resident: tuple[str, ...], claims: tuple[str, ...], fits: bool
) -> None:
    snapshot = with_disks(most, *claims, resident=resident)
    plan = {f"g{i}-w-0": "n0" for i in range(len(claims))}
    assert binding(snapshot, plan) == (set() if fits else {("volume-limits", "node n0")})
    judge(snapshot, allocations(snapshot, {f"ns/{t}": n for t, n in plan.items()}))


def test_a_port_bound_twice() -> None:
    snapshot = cluster([node("n0"), node("n1")], [many("g", 2, shape(1, host_ports=WEB))])
    assert binding(snapshot, {"g-w-0": "n0", "g-w-1": "n1"}) == set()
    assert binding(snapshot, {"g-w-0": "n0", "g-w-1": "n0"}) == {("host-ports", "task ns/g-w-1")}


def test_a_port_of_a_pod_that_runs() -> None:
    web = Task("ns/web", shape(1, host_ports=WEB), TaskStatus.RUNNING, node="n0")
    nodes = [replace(node("n0"), residents=(web,)), node("n1")]
    snapshot = cluster(nodes, [many("g", 1, shape(1, host_ports=WEB))])
    assert binding(snapshot, {"g-w-0": "n1"}) == set()
    assert binding(snapshot, {"g-w-0": "n0"}) == {("host-ports", "task ns/g-w-0")}


def test_parts_of_gpus_that_do_not_fit_a_device() -> None:
    part = shape(0, device=DeviceRequest(1, 600))
    snapshot = cluster([node("n0", gpu=1), node("n1", gpu=1)], [many("g", 2, part)])
    assert binding(snapshot, {"g-w-0": "n0", "g-w-1": "n1"}) == set()
    assert binding(snapshot, {"g-w-0": "n0", "g-w-1": "n0"}) == {("gpu-shares", "node n0")}


def inside(policy: Alignment, *free: int) -> Node:
    """Return a node of four-CPU cells with the given numbers of idle CPUs."""
    cells = tuple(NumaCell(i, 4, free_cpus=number) for i, number in enumerate(free))
    return node("n0", 4 * len(free), numa=Numa(policy, cells))


def alone(cpus: int, policy: str = "") -> TaskShape:
    notes = ((NUMA_TOPOLOGY_POLICY, policy),) if policy else ()
    return shape(cpus, numa=(NumaNeed(cpus),), notes=notes)


@pytest.mark.parametrize(
    ("policy", "free", "what", "expected"),
    [
        (Alignment.SINGLE, (2, 4), alone(3), set()),
        (Alignment.SINGLE, (2, 2), alone(3), {("numa-aware", "node n0")}),
        (Alignment.RESTRICTED, (2, 2), alone(3), {("numa-aware", "node n0")}),
        (Alignment.RESTRICTED, (4, 2), alone(5), set()),
        (Alignment.RESTRICTED, (4, 0), alone(5), {("numa-aware", "node n0")}),
        (Alignment.BEST_EFFORT, (2, 2), alone(3), set()),
        (Alignment.SINGLE, (4, 4), alone(3, "restricted"), {("numa-policy", "task ns/g-w-0")}),
        (Alignment.NONE, (4, 4), alone(3, "restricted"), {("numa-policy", "task ns/g-w-0")}),
    ],
)
def test_cpus_that_no_numa_node_has(
    policy: Alignment, free: tuple[int, ...], what: TaskShape, expected: set[tuple[str, str]]
) -> None:
    snapshot = cluster([inside(policy, *free)], [many("g", 1, what)])
    assert binding(snapshot, {"g-w-0": "n0"}) == expected


def test_tasks_that_fit_numa_nodes_one_by_one_only() -> None:
    snapshot = cluster([inside(Alignment.SINGLE, 4, 3)], [many("g", 3, alone(2))])
    assert binding(snapshot, {"g-w-0": "n0", "g-w-1": "n0", "g-w-2": "n0"}) == set()
    more = cluster([inside(Alignment.SINGLE, 3, 3)], [many("g", 3, alone(2))])
    found = binding(more, {"g-w-0": "n0", "g-w-1": "n0", "g-w-2": "n0"})
    assert found == {("numa-aware", "node n0")}


def test_a_whole_gpu_of_which_parts_are_taken() -> None:
    made = [many("part", 1, shape(0, device=DeviceRequest(1, 300))), many("g", 1, shape(0, gpu=1))]
    snapshot = cluster([node("n0", gpu=1), node("n1", gpu=1)], made)
    assert binding(snapshot, {"part-w-0": "n0", "g-w-0": "n1"}) == set()
    assert binding(snapshot, {"part-w-0": "n0", "g-w-0": "n0"}) == {("gpu-shares", "node n0")}


# --- other pods ----------------------------------------------------------------------------------

ZONES = [
    node("a0", labels={ZONE: "a"}),
    node("a1", labels={ZONE: "a"}),
    node("b0", labels={ZONE: "b"}),
]
APP = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
TERM = PodTerm(APP, ("ns",), None, ZONE)


def test_pods_that_keep_apart() -> None:
    made = many("g", 2, shape(1, pod_anti_affinity=(TERM,)), labels={"app": "x"})
    snapshot = cluster(ZONES, [made])
    assert binding(snapshot, {"g-w-0": "a0", "g-w-1": "b0"}) == set()
    assert binding(snapshot, {"g-w-0": "a0", "g-w-1": "a1"}) == {
        ("pod-affinity", "task ns/g-w-0"),
        ("pod-affinity", "task ns/g-w-1"),
    }


def test_pods_that_one_that_runs_keeps_away() -> None:
    shy = Task("ns/shy", shape(1, pod_anti_affinity=(TERM,)), TaskStatus.RUNNING, node="a0")
    nodes = [replace(ZONES[0], residents=(shy,)), *ZONES[1:]]
    snapshot = cluster(nodes, [many("g", 1, labels={"app": "x"})])
    assert binding(snapshot, {"g-w-0": "b0"}) == set()
    assert binding(snapshot, {"g-w-0": "a1"}) == {("pod-affinity", "task ns/g-w-0")}


def test_pods_that_want_to_be_near_others() -> None:
    made = [many("g", 1, shape(1, pod_affinity=(TERM,))), many("x", 1, labels={"app": "x"})]
    snapshot = cluster([*ZONES, node("bare")], made)
    assert binding(snapshot, {"g-w-0": "a0", "x-w-0": "a1"}) == set()
    for wrong in ({"g-w-0": "a0", "x-w-0": "b0"}, {"g-w-0": "a0"}, {"g-w-0": "bare"}):
        assert binding(snapshot, wrong) == {("pod-affinity", "task ns/g-w-0")}


def test_pods_that_want_their_own_kind_start_in_one_place() -> None:
    made = many("g", 2, shape(1, pod_affinity=(TERM,)), labels={"app": "x"})
    snapshot = cluster(ZONES, [made])
    assert binding(snapshot, {"g-w-0": "a0", "g-w-1": "a1"}) == set()
    assert binding(snapshot, {"g-w-0": "a0", "g-w-1": "b0"}) == {("pod-affinity", "all tasks")}


def test_pods_that_spread() -> None:
    made = many("g", 3, shape(1, spread=(SpreadTerm(1, ZONE, APP, "ns"),)), labels={"app": "x"})
    snapshot = cluster([*ZONES, node("bare")], [made])
    assert binding(snapshot, {"g-w-0": "a0", "g-w-1": "b0", "g-w-2": "a1"}) == set()
    assert binding(snapshot, {"g-w-0": "a0", "g-w-1": "a1"}) == {
        ("topology-spread", f"label {ZONE}")
    }
    assert binding(snapshot, {"g-w-0": "bare"}) == {("topology-spread", "task ns/g-w-0")}


# --- promises and evictions ----------------------------------------------------------------------


def test_more_promised_than_will_be_free() -> None:
    going = many("old", 1, shape(2))
    leaves = replace(going.tasks[0], status=TaskStatus.RELEASING, node="n0")
    old = replace(going, tasks=(leaves,), phase=GangPhase.RUNNING)
    snapshot = cluster([node("n0", 3)], [old, many("g", 4)])

    def promising(number: int) -> set[tuple[str, str]]:
        return told(snapshot, [Nominate(f"ns/g-w-{i}", "n0", "ns/g") for i in range(number)])

    assert promising(3) == set()
    assert promising(4) - {("proportion", "queue default")} == {("fits", "node n0")}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({}, None),
        ({"priority": 2_000_000_000}, "conformance"),
        ({"preemptable": False}, "victims"),
    ],
)
def test_evictions(change: Mapping[str, object], rule: str | None) -> None:
    made = many("old", 1, shape(4))
    runs = replace(running(made.tasks[0], "n0"), **change)  # type: ignore[arg-type]
    old = replace(made, tasks=(runs,), phase=GangPhase.RUNNING)
    snapshot = cluster([node("n0", 4)], [old, many("g", 1, priority=1)])
    actions = [Evict(runs.key, "n0", "preempt", "ns/g"), Nominate("ns/g-w-0", "n0", "ns/g")]
    rules = RuleSet.of(OF_PLUGINS["gang"], OF_PLUGINS["conformance"])
    found = {(v.rule, v.where) for v in verify_actions(snapshot, actions, rules)}
    assert found == ({(rule, f"task {runs.key}")} if rule else set())


# --- any single change to any plan ---------------------------------------------------------------

THEMES = (
    CONSTRAINTS,
    frozenset(),
    frozenset({"pod_affinity"}),
    frozenset({"pod_anti_affinity"}),
    frozenset({"spread", "node_affinity"}),
    frozenset({"device"}),
    frozenset({"host_ports"}),
    frozenset({"claims", "node_selector", "tolerations"}),
    frozenset({"numa"}),
)


@st.composite
def spoiled(draw: DrawFn, snapshot: Snapshot, plan: tuple[Allocate, ...]) -> list[Allocate]:
    """Draw a plan with one change: a task moved, omitted, added, exchanged or placed twice."""
    placed = {a.task for a in plan}
    more = [a for a in additions(snapshot, pending=True) if a.task not in placed]
    kinds = ["add"] * 4 * bool(more) + ["move", "move", "move", "swap", "drop"] * bool(plan)
    kind = draw(st.sampled_from([*kinds, "odd"]), "change")
    if kind in ("add", "odd"):
        return [*plan, draw(st.sampled_from(more if kind == "add" else oddities(snapshot, plan)))]
    at, other = draw(st.sampled_from(plan)), draw(st.sampled_from(plan))
    others = [a for a in plan if a is not at]
    if kind == "drop":
        return others
    if kind == "move":
        return [*others, replace(at, node=draw(st.sampled_from([n.name for n in snapshot.nodes])))]
    moved = {at: other.node, other: at.node}
    return [replace(a, node=moved.get(a, a.node)) for a in plan]


def additions(snapshot: Snapshot, *, pending: bool) -> list[Allocate]:
    """Return allocations of the pending or of the other tasks to every node."""
    return [
        Allocate(task.key, node.name, gang.key)
        for gang in snapshot.gangs
        for task in gang.tasks
        for node in snapshot.nodes
        if (task.status is TaskStatus.PENDING) is pending
    ]


def oddities(snapshot: Snapshot, plan: tuple[Allocate, ...]) -> list[Allocate]:
    """Return invalid allocations: of unknown tasks, to unknown nodes, and of placed tasks."""
    gang = snapshot.gangs[0]
    unknown = [Allocate("b/stranger", "n0", gang.key), Allocate("ns/none", "n0", gang.key)]
    nowhere = [Allocate(task.key, "nowhere", gang.key) for task in gang.tasks]
    return [*unknown, *nowhere, *plan, *additions(snapshot, pending=False)]


@st.composite
def any_plans(draw: DrawFn, snapshot: Snapshot) -> list[Allocate]:
    """Draw a random plan, which may violate rules."""
    places: dict[str, list[Allocate | None]] = {}
    for action in additions(snapshot, pending=True):
        places.setdefault(action.task, [None]).append(action)
    chosen = [draw(st.sampled_from(found)) for found in places.values()]
    return [a for a in chosen if a is not None]


def examples(number: int) -> settings:
    return settings(
        max_examples=num_examples(number),
        deadline=None,
        phases=set(Phase) - {Phase.explain},
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


every_theme = pytest.mark.parametrize("theme", THEMES, ids=lambda t: ",".join(sorted(t)) or "none")


@every_theme
@examples(35)
@given(st.data())
def test_a_plan_is_refused_for_just_what_is_wrong_with_it(
    theme: frozenset[str], data: DataObject
) -> None:
    snapshot = data.draw(contests(theme))
    bench = Bench.of(snapshot, RULES, ())
    plan = tuple(a for a in bench.actions(bench.greedy()) if isinstance(a, Allocate))
    assert Checker(snapshot, plan).broken(*CHECKS) == set()
    judge(snapshot, data.draw(spoiled(snapshot, plan)))


@every_theme
@examples(45)
@given(st.data())
def test_any_plan_is_judged_as_mathematics_says(theme: frozenset[str], data: DataObject) -> None:
    snapshot = data.draw(contests(theme))
    judge(snapshot, data.draw(any_plans(snapshot)))


def judge(snapshot: Snapshot, plan: Sequence[Allocate]) -> None:
    """Check that the verifier and the independent checker name the same rules."""
    wrong = Checker(snapshot, tuple(plan)).broken(*CHECKS)
    found = {rule for rule, _ in told(snapshot, plan)}
    assert found == wrong or ("well-formed" in found and wrong == {"well-formed"})
