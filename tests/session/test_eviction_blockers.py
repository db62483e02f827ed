"""Reasons name the reservations and the disruption budgets that alone forbid evictions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.selectors import LabelSelector
from optsched.cluster.snapshot import Budget, GangPhase
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import cluster, gang, node, running, runs, shape
from tests.support.virtual import Virtual, lasting

if TYPE_CHECKING:
    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang
    from optsched.policy.policy import Policy

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [enqueue, allocate, preempt, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: predicates}, {name: nodeorder}]
levels: [admission, tasks]
solver: {engine: ENGINE}
starvationAfter: 60s
reservations: RESERVATIONS
"""
AROUND = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
SECOND = 1000
both_engines = pytest.mark.parametrize("engine", ["cpsat", "none"])


def policy(engine: str = "cpsat", reservations: int = 4) -> Policy:
    text = MODEL.replace("ENGINE", engine).replace("RESERVATIONS", str(reservations))
    return parse_policy(text, "test.yaml")


# --- reservations --------------------------------------------------------------------------------


def with_a_reservation(reservations: int, *, victim_ends_s: int = 500, seconds: int = 900) -> Plan:
    """Return the plan for `middle`, which could evict `low` from the node that `big` waits for."""
    machines = [node(f"n{i}", 64, 8) for i in range(2)]
    world = Virtual(machines, policy(reservations=reservations), AROUND)
    for name, where, priority in (("low", "n0", 1), ("high", "n1", 9)):
        old = lasting(gang(name, ("w", 1, shape(1, 8)), priority=priority), victim_ends_s)
        tasks = tuple(replace(running(t, where), started_ms=90 * SECOND) for t in old.tasks)
        world.gangs[old.key] = replace(old, tasks=tasks, phase=GangPhase.RUNNING)
    big = lasting(gang("big", ("w", 1, shape(1, 8)), priority=5), 600)
    patient = replace(big.tasks[0].shape, preempts=False)
    big = replace(big, tasks=tuple(replace(t, shape=patient) for t in big.tasks))
    world.arrive(big, 1 * SECOND)
    world.step(100 * SECOND)
    assert len(world.reservations) == min(reservations, 1)
    world.arrive(lasting(gang("middle", ("w", 1, shape(1, 8)), priority=3), seconds))
    return world.step(101 * SECOND)


def test_a_reservation_that_forbids_evictions_is_named() -> None:
    plan = with_a_reservation(4)
    assert plan.actions == ()
    assert str(plan.pending["ns/middle"]) == (
        "ReservedForOthers: pods could be evicted for it, but it would run until "
        "1970-01-01T00:16:41Z and delay the start of ns/big, expected at 1970-01-01T00:09:50Z"
    )


def test_without_the_reservation_the_gang_evicts() -> None:
    plan = with_a_reservation(0)
    assert [a.task for a in plan.actions if isinstance(a, Evict)] == ["ns/low-w-0"]
    assert plan.pending["ns/middle"].code is ReasonCode.WAITING


def test_a_gang_that_ends_before_the_reservation_starts_evicts() -> None:
    plan = with_a_reservation(4, seconds=100)
    assert [a.task for a in plan.actions if isinstance(a, Evict)] == ["ns/low-w-0"]


# --- disruption budgets --------------------------------------------------------------------------


def reason_under_a_budget(allowed: int, engine: str, *more: Gang, least: int = 0) -> str:
    """Return the reason of a gang that needs two nodes, each with a pod that a budget covers."""
    holds = runs(gang("holds", ("w", 2, shape(4)), least=least), "n0", "n1")
    wants = gang("wants", ("w", 2, shape(4)), priority=5)
    snapshot = cluster([node("n0"), node("n1")], [holds, wants, *more])
    budget = Budget("ns/keep", LabelSelector(), allowed)
    plan = run_session(replace(snapshot, budgets=(budget,)), policy(engine), AROUND).plan
    return str(plan.pending["ns/wants"])


LACKS = (
    "NotEnoughResources: room for 0 of 2 pods of w with 4 cpu: 0/2 nodes could take one; "
    "2 nodes had too little cpu"
)


@both_engines
def test_a_budget_that_allows_too_few_evictions_is_named(engine: str) -> None:
    assert reason_under_a_budget(1, engine) == (
        f"{LACKS}; the disruption budget ns/keep allows 1 more eviction, but 2 would free enough"
    )


@both_engines
def test_a_budget_that_allows_enough_evictions_is_not(engine: str) -> None:
    assert reason_under_a_budget(2, engine).startswith("WaitingForReleasedResources: ")


def test_a_budget_is_not_named_if_a_pod_stays_for_another_reason() -> None:
    holds = runs(gang("holds", ("w", 2, shape(4)), least=0), "n0", "n1")
    first, second = holds.tasks
    holds = replace(holds, tasks=(first, replace(second, preemptable=False)))
    wants = gang("wants", ("w", 2, shape(4)), priority=5)
    snapshot = cluster([node("n0"), node("n1")], [holds, wants])
    budget = Budget("ns/keep", LabelSelector(), 1)
    plan = run_session(replace(snapshot, budgets=(budget,)), policy(), AROUND).plan
    assert str(plan.pending["ns/wants"]) == LACKS


def test_evictions_of_the_plan_use_the_budget() -> None:
    """The more important gang takes the only eviction that the budget allows."""
    holds = runs(gang("holds", ("w", 2, shape(4)), least=0), "n0", "n1")
    gangs = [gang(f"wants{p}", ("w", 1, shape(4)), priority=p) for p in (5, 6)]
    snapshot = cluster([node("n0"), node("n1")], [holds, *gangs])
    budget = Budget("ns/keep", LabelSelector(), 1)
    plan = run_session(replace(snapshot, budgets=(budget,)), policy(), AROUND).plan
    assert plan.pending["ns/wants6"].code is ReasonCode.WAITING
    assert str(plan.pending["ns/wants5"]).endswith(
        "; the disruption budget ns/keep allows 0 more evictions, but 1 would free enough"
    )
