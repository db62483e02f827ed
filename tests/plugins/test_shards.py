"""Tests of node shards: allowed nodes and their order, in both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Allocate, Evict
from optsched.cluster.node_resources import Shard, Sharding, ShardMode
from optsched.cluster.snapshot import Queue
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.engines import reason
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang as DomainGang
    from optsched.cluster.snapshot import Snapshot

POLICY = """
actions: "{actions}"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}, {{name: conformance}}]
- plugins: [{{name: predicates}}, {{name: capacity}}, {{name: nodeorder}}]
solver: {solver}
"""
SOLVING = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
EVERYTHING = "enqueue, allocate, preempt, reclaim, backfill"

both_engines = pytest.mark.parametrize("solver", ["none", "cpsat"])


def sharded(snapshot: Snapshot, mode: str, *wanted: str) -> Snapshot:
    shard = Shard("mine", wanted)
    return replace(snapshot, sharding=Sharding(ShardMode(mode), "mine", (shard,)))


def decide(snapshot: Snapshot, solver: str, actions: str = EVERYTHING) -> Plan:
    policy = parse_policy(POLICY.format(actions=actions, solver=solver), "test.conf")
    report = run_session(snapshot, policy, SOLVING)
    assert report.trace.violations == ()
    return report.plan


def evicted(plan: Plan) -> set[str]:
    return {action.node for action in plan.actions if isinstance(action, Evict)}


# --- placing -------------------------------------------------------------------------------------


@both_engines
@pytest.mark.parametrize("cpu", [1, 0], ids=["allocate", "backfill"])
def test_a_hard_shard_is_all_that_there_is(solver: str, cpu: int) -> None:
    nodes = [node("a", 8), node("b", 2), node("c", 8)]
    work = gang("g", ("w", 3, shape(cpu)), least=1)
    plan = decide(sharded(cluster(nodes, [work]), "hard", "b"), solver)
    assert set(plan.binds.values()) == {"b"}
    assert len(plan.binds) == (2 if cpu else 3)


@both_engines
def test_a_soft_shard_is_taken_first_whatever_scores_say(solver: str) -> None:
    nodes = [node("a", 8), node("b", 2), node("c", 8)]
    work = gang("g", ("w", 3, shape(1)), least=1)
    plan = decide(sharded(cluster(nodes, [work]), "soft", "b"), solver)
    assert list(plan.binds.values()).count("b") == 2
    (level,) = [r for r in plan.certificate.levels if r.name == "outside the shard"]
    assert (level.value, level.unit) == (1, "tasks")


@both_engines
@pytest.mark.parametrize("mode", ["none", "soft", "hard"])
def test_without_a_shard_of_our_name_all_nodes_are_used(solver: str, mode: str) -> None:
    work = gang("g", ("w", 8, shape(1)))
    snapshot = cluster([node("a"), node("b")], [work])
    other = Sharding(ShardMode(mode), "mine", (Shard("theirs", ("a",), ("a",)),))
    assert len(decide(replace(snapshot, sharding=other), solver).binds) == 8


@pytest.mark.parametrize(("solver", "outside"), [("none", 3), ("cpsat", 1)])
def test_the_solver_brings_more_into_a_soft_shard(solver: str, outside: int) -> None:
    # The large task comes first and leaves no capacity for the small ones.
    nodes = [node("a", 4), node("b", 4)]
    large = gang("g", ("w", 1, shape(3)), created_ms=0)
    small = gang("h", ("w", 4, shape(1)), created_ms=1)
    waits = gang("i", ("w", 9, shape(1)), created_ms=2)
    plan = decide(sharded(cluster(nodes, [large, small, waits]), "soft", "a"), solver)
    assert len(plan.binds) == 5
    assert list(plan.binds.values()).count("b") == outside


def test_who_waits_is_told_of_the_shard() -> None:
    snapshot = cluster([node("a"), node("b")], [gang("g", ("w", 8, shape(1)))])
    assert reason(sharded(snapshot, "hard", "b"), RuleSet.of(Gang()), "g") == (
        "Impossible: 8 pods of w with 1 cpu: even an empty cluster has room for 4 only: "
        "too little cpu; 1 node did not belong to shard mine"
    )


# --- evicting ------------------------------------------------------------------------------------


def lent(kind: str) -> Snapshot:
    """Return two full nodes, and the gangs and queues that may get either of them."""
    low = [gang(f"low-{n}", ("w", 1, shape(4)), least=0, queue="q") for n in ("a", "b")]
    full: Sequence[DomainGang] = [replace(g, tasks=(running(g.tasks[0], g.name[-1]),)) for g in low]
    asks = gang("asks", ("w", 1, shape(4)), queue="q", priority=9)
    queues = [Queue("q", deserved=(("cpu", 4000),)), Queue("p", deserved=(("cpu", 4000),))]
    if kind == "reclaim":
        asks = replace(asks, queue="p", priority=0)
    return cluster([node("a"), node("b")], [*full, asks], queues)


@both_engines
@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("action", ["preempt", "reclaim"])
@pytest.mark.parametrize("own", ["a", "b"])
def test_victims_are_on_nodes_of_the_shard(solver: str, mode: str, action: str, own: str) -> None:
    plan = decide(sharded(lent(action), mode, own), solver, f"enqueue, allocate, {action}")
    assert evicted(plan) == {own}


@both_engines
@pytest.mark.parametrize("action", ["preempt", "reclaim"])
@pytest.mark.parametrize(("mode", "num_victims"), [("soft", 1), ("hard", 0)])
def test_a_soft_shard_does_not_spare_others(
    solver: str, action: str, mode: str, num_victims: int
) -> None:
    plan = decide(sharded(lent(action), mode), solver, f"enqueue, allocate, {action}")
    assert len(evicted(plan)) == num_victims


@pytest.mark.parametrize(("mode", "broken"), [("none", False), ("soft", False), ("hard", True)])
def test_the_verifier_knows_what_a_hard_shard_forbids(mode: str, broken: bool) -> None:
    snapshot = sharded(lent("preempt"), mode, "b")
    actions = (
        Evict("ns/low-a-w-0", "a", "preempt", "ns/asks"),
        Allocate("ns/asks-w-0", "a", "ns/asks"),
    )
    found = [str(v) for v in verify_actions(snapshot, actions, RuleSet.of()) if v.rule == "shards"]
    expected = [
        "shards: task ns/asks-w-0: node a is not in shard mine",
        "shards: task ns/low-a-w-0: evicted from a, which is not in shard mine",
    ]
    assert found == (expected if broken else [])
