"""Tests of the exact diagnostics of objects that conflict with each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.node_resources import SharedGpu
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import LabelSelector
from optsched.cluster.snapshot import Budget, Queue, Snapshot
from optsched.cluster.topology import HyperNode, SubGroupRule, Topology, TopologyMode
from optsched.cluster.topology import TopologyRequest as Request
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import CPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.session.session import Report

POLICY = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}, {{name: conformance}}]
- plugins: [{{name: predicates}}, {{name: {shares}}}, {{name: network-topology-aware}}]
solver: {solver}
"""
SOLVING = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
NODES = [node("n0"), node("n1")]
INNOCENT = gang("innocent", ("w", 2, shape(1)))

both_engines = pytest.mark.parametrize("solver", ["none", "cpsat"])


def decide(snapshot: Snapshot, solver: str = "none", shares: str = "capacity") -> Report:
    policy = parse_policy(POLICY.format(solver=solver, shares=shares), "test.conf")
    report = run_session(snapshot, policy, SOLVING)
    assert report.trace.violations == ()
    return report


def flaws(report: Report) -> list[str]:
    return [str(flaw) for flaw in report.flaws]


def amounts(**cpus: int) -> dict[str, object]:
    return {name: ((CPU, number * 1000),) for name, number in cpus.items()}


# --- shared devices ------------------------------------------------------------------------------


@both_engines
def test_nodes_whose_device_plugins_say_what_nobody_understands(solver: str) -> None:
    strange = node("n0", shared_gpus=(SharedGpu("npu-0", 1, npu="Ascend999X"),))
    bad = replace(node("n1"), card_problem="is no list of devices")
    report = decide(cluster([strange, bad], [INNOCENT]), solver)
    assert flaws(report) == [
        "Node n0: InvalidDeviceReport: no ConfigMap defines partitions for NPUs of the chip "
        "Ascend999X: no pod gets one",
        "Node n1: InvalidDeviceReport: is no list of devices",
    ]
    assert len(report.plan.actions) == 2


# --- queues --------------------------------------------------------------------------------------


@both_engines
@pytest.mark.parametrize("shares", ["capacity", "proportion"])
@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        (
            [Queue("q", parent="gone")],
            ["InvalidQueue: queue q: its parent gone does not exist; it takes no new work"],
        ),
        (
            [Queue("q", parent="r"), Queue("r", parent="q")],
            [
                "InvalidQueue: queue q is its own ancestor: its parents form a cycle; "
                "it takes no new work",
                "InvalidQueue: queue r is its own ancestor: its parents form a cycle; "
                "it takes no new work",
            ],
        ),
        (
            [Queue("q", problem=Reason(ReasonCode.INVALID_QUEUE, 'spec.weight: "x" is odd'))],
            ['InvalidQueue: queue q: spec.weight: "x" is odd; it takes no new work'],
        ),
        (
            [Queue("q", **amounts(guarantee=100))],
            [
                "GuaranteeNotHeld: 100 cpu are guaranteed, but all nodes together have 8 cpu; "
                "none of it is reserved"
            ],
        ),
        (
            [
                Queue("p", created_ms=0, **amounts(guarantee=5)),
                Queue("q", created_ms=1, **amounts(guarantee=4)),
            ],
            [
                "GuaranteeNotHeld: 4 cpu are guaranteed, but all nodes together have 8 cpu, of "
                "which older queues are guaranteed 5 cpu; none of it is reserved"
            ],
        ),
        (
            [
                Queue("q", **amounts(guarantee=1)),
                Queue("r", parent="q", **amounts(guarantee=1)),
                Queue("s", parent="q", **amounts(guarantee=2)),
            ],
            [
                "GuaranteesContradict: its child queues are guaranteed 3 cpu together, more "
                "than the 1 cpu that it is guaranteed"
            ],
        ),
        (
            [
                Queue("q", **amounts(capability=2)),
                Queue("r", parent="q", **amounts(guarantee=3)),
            ],
            [
                "GuaranteeNotHeld: 3 cpu are guaranteed, but its ancestor q may have 2 cpu; "
                "none of it is reserved",
                "GuaranteesContradict: its child queues are guaranteed 3 cpu together, more "
                "than the 2 cpu that it may have",
            ],
        ),
        (
            [
                Queue("q", **amounts(deserved=1)),
                Queue("r", parent="q", **amounts(deserved=2)),
            ],
            [
                "DeservedContradict: its child queues deserve 2 cpu together, more than the "
                "1 cpu that it deserves"
            ],
        ),
        (
            [
                Queue("p", **amounts(capability=2)),
                Queue("o", parent="p"),
                Queue("q", parent="o", **amounts(capability=3)),
            ],
            [
                "CapabilityContradicts: its capability of 3 cpu exceeds the 2 cpu of its ancestor "
                "p; the smaller applies"
            ],
        ),
    ],
    ids=[
        *("no parent", "circle", "unreadable", "more than there is", "more than is left"),
        *("guarantees below", "guarantees above a ceiling", "deserved", "capability"),
    ],
)
def test_queues_that_contradict(
    queues: Sequence[Queue], expected: list[str], solver: str, shares: str
) -> None:
    report = decide(cluster(NODES, [INNOCENT], queues), solver, shares)
    told = flaws(report)
    assert [text.partition(": ")[2] for text in told] == expected
    assert {text.partition(": ")[0] for text in told} <= {"Queue q", "Queue r"}
    assert len(report.plan.binds) == 2
    assert report.plan.pending == {}


@both_engines
def test_what_an_older_queue_is_guaranteed_stays_reserved(solver: str) -> None:
    queues = [
        Queue("old", created_ms=0, **amounts(guarantee=7)),
        Queue("new", created_ms=1, **amounts(guarantee=2)),
    ]
    report = decide(cluster(NODES, [INNOCENT], queues), solver)
    assert report.plan.pending["ns/innocent"].code is ReasonCode.GUARANTEE


def test_queues_without_a_fault_are_told_nothing() -> None:
    queues = [
        Queue("p", **amounts(guarantee=2, deserved=4, capability=6)),
        Queue("q", parent="p", **amounts(guarantee=1, deserved=2, capability=6)),
        Queue("r", parent="p", **amounts(guarantee=1, deserved=2)),
        Queue("s", **amounts(deserved=99)),
    ]
    assert decide(cluster(NODES, [INNOCENT], queues)).flaws == ()


# --- the network ---------------------------------------------------------------------------------

RACKS = Topology(
    (
        HyperNode("r0", 1, parent="s", nodes=("n0",)),
        HyperNode("r1", 1, parent="s", nodes=("n1",)),
        HyperNode("s", 3),
    ),
    {"r1": ("spec.members[0]: s is or contains this HyperNode: members must not form a cycle",)},
)
CIRCLE = (
    "HyperNode r1: InvalidHyperNode: spec.members[0]: "
    "s is or contains this HyperNode: members must not form a cycle: "
    "these entries are ignored"
)


def asking(request: Request | None, **more: object) -> Gang:
    return gang("asks", ("w", 2, shape(1)), uid="u", topology=request, **more)


@both_engines
@pytest.mark.parametrize(
    ("tier", "meaning"),
    [
        (2, "it counts as tier 1"),
        (4, "every node is allowed"),
        (9, "every node is allowed"),
    ],
)
def test_tiers_that_no_hypernode_has(solver: str, tier: int, meaning: str) -> None:
    snapshot = cluster(NODES, [asking(Request(highest_tier=tier)), INNOCENT])
    report = decide(replace(snapshot, topology=RACKS), solver)
    assert flaws(report) == [
        CIRCLE,
        f"PodGroup ns/asks: TierNotFound: highestTierAllowed is {tier}, but no HyperNode has that "
        f"tier: known tiers are 1, 3; {meaning}",
    ]
    assert len(report.plan.binds) == 4


@both_engines
def test_a_tier_below_all_others_keeps_the_gang_waiting(solver: str) -> None:
    snapshot = cluster(NODES, [asking(Request(highest_tier=0)), INNOCENT])
    report = decide(replace(snapshot, topology=RACKS), solver)
    assert flaws(report) == [CIRCLE]
    assert {k: str(v) for k, v in report.plan.pending.items()} == {
        "ns/asks": "TopologyNotFound: no HyperNode has tier 0 or below; known tiers: 1, 3"
    }
    assert len(report.plan.binds) == 2


@pytest.mark.parametrize(
    "made",
    [
        asking(Request(highest_tier=1)),
        asking(Request(TopologyMode.SOFT, highest_tier=2)),
        asking(Request()),
        asking(Request(highest_tier_name="rack")),
        replace(asking(Request(highest_tier=2)), is_implicit=True),
    ],
    ids=["there is one", "a wish", "any", "by name", "no PodGroup"],
)
def test_gangs_without_a_fault_are_told_nothing(made: Gang) -> None:
    snapshot = replace(cluster(NODES, [made]), topology=replace(RACKS, problems={}))
    assert decide(snapshot).flaws == ()


def test_smaller_groups_may_name_tiers_as_well() -> None:
    rule = SubGroupRule("tp", keys=("rev",), topology=Request(highest_tier=2))
    snapshot = replace(cluster(NODES, [asking(None, sub_groups=(rule,))]), topology=RACKS)
    assert flaws(decide(snapshot))[1].startswith("PodGroup ns/asks: TierNotFound: ")


def test_nobody_is_told_of_tiers_that_no_plugin_looks_at() -> None:
    plain = POLICY.replace(", {{name: network-topology-aware}}", "")
    policy = parse_policy(plain.format(solver="none", shares="capacity"), "test.conf")
    snapshot = replace(cluster(NODES, [asking(Request(highest_tier=2))]), topology=RACKS)
    found = run_session(snapshot, policy, SOLVING).flaws
    assert [flaw.code.value for flaw in found] == ["InvalidHyperNode", "TopologyNotRead"]


@both_engines
def test_the_first_gang_is_told_where_no_plugin_looks_at_the_network(solver: str) -> None:
    plain = POLICY.replace(", {{name: network-topology-aware}}", "")
    policy = parse_policy(plain.format(solver=solver, shares="capacity"), "test.conf")
    rule = SubGroupRule("tp", keys=("rev",), topology=Request())
    wishes = gang("a", ("w", 1, shape(1)), uid="a", topology=Request(TopologyMode.SOFT))
    inner = gang("b", ("w", 1, shape(1)), uid="b", sub_groups=(rule,))
    report = run_session(cluster(NODES, [wishes, inner, asking(Request())]), policy, SOLVING)
    assert flaws(report) == [
        "PodGroup ns/asks: TopologyNotRead: it has a hard network topology, but the policy lacks "
        "the plugin network-topology-aware: this gang and all others with one may be placed "
        "anywhere"
    ]
    assert len(report.plan.binds) == 4


# --- budgets -------------------------------------------------------------------------------------

KEEP = Budget("ns/keep", LabelSelector(), 0)


def full(*, priority: int, queue: str = "default", **lender: object) -> Snapshot:
    """Return two nodes that a gang holds, and another gang that requests one of them."""
    holds = gang("holds", ("w", 2, shape(4)), least=0, queue="lender")
    holds = replace(holds, tasks=tuple(running(t, f"n{i}") for i, t in enumerate(holds.tasks)))
    wants = gang("wants", ("w", 1, shape(4)), queue=queue, priority=priority)
    queues = [
        Queue("lender", **{**amounts(deserved=4), **lender}),
        Queue("claimer", **amounts(deserved=4)),
    ]
    return cluster(NODES, [holds, wants], queues)


@both_engines
@pytest.mark.parametrize(
    ("queue", "priority"), [("lender", 5), ("claimer", 0)], ids=["preempt", "reclaim"]
)
def test_budgets_that_forbid_everything_are_named(solver: str, queue: str, priority: int) -> None:
    snapshot = full(priority=priority, queue=queue)
    report = decide(replace(snapshot, budgets=(KEEP,)), solver)
    assert flaws(report) == [
        "PodDisruptionBudget ns/keep: BudgetForbidsAll: it allows no disruption now, and gangs "
        "wait for resources of pods it protects"
    ]
    told = str(report.plan.pending["ns/wants"])
    assert told.startswith("NotEnoughResources: ")
    assert told.endswith(
        "; 2 pods that could make room stay because of the disruption budget ns/keep"
    )
    free = decide(replace(snapshot, budgets=(replace(KEEP, allowed=1),)), solver)
    assert free.flaws == ()
    assert free.plan.pending["ns/wants"].code is ReasonCode.WAITING


@both_engines
@pytest.mark.parametrize(
    "snapshot",
    [
        full(priority=0, queue="lender"),
        full(priority=0, queue="claimer", reclaimable=False),
    ],
    ids=["nobody less important", "not reclaimable"],
)
def test_budgets_of_pods_that_would_stay_anyway_are_not(snapshot: Snapshot, solver: str) -> None:
    report = decide(replace(snapshot, budgets=(KEEP,)), solver)
    assert report.flaws == ()
    assert "budget" not in str(report.plan.pending["ns/wants"])
