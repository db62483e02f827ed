"""With a hierarchy, only leaf queues run gangs."""

from __future__ import annotations

import pytest

from optsched.cluster.snapshot import Gang as GangObject
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.queue_limits import LeafQueues
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import parse_policy
from optsched.session.decompile import pending_of
from optsched.session.session import SessionContext, run_session
from tests.support.engines import Bench, allocations, binds, placed_by_gang, reason
from tests.support.small import CPU, cluster, gang, node, running, shape

RULES = RuleSet.of(Gang(), LeafQueues())
TREE = [Queue("dept"), *(Queue(f"lab{i}", parent="dept") for i in range(4))]
NODES = [node("n0", 8)]


def asks(name: str, queue: str, **fields: object) -> GangObject:
    return gang(name, ("w", 2, shape(1)), queue=queue, **fields)


def test_only_gangs_in_leaves_get_anything() -> None:
    gangs = [asks("a", "dept"), asks("b", "lab0"), asks("c", "root"), asks("d", "default")]
    found = placed_by_gang(cluster(NODES, gangs, TREE), RULES)
    assert found == {"a": 0, "b": 2, "c": 0, "d": 2}


def test_the_reason_names_queues_to_use_instead() -> None:
    snapshot = cluster(NODES, [asks("a", "dept")], TREE)
    assert reason(snapshot, RULES, "a") == (
        "QueueHasQueuesBelow: queue dept has child queues (lab0, lab1, lab2 and more) and accepts "
        "no jobs itself; use one of them"
    )


def test_nobody_is_let_in_there() -> None:
    waits = asks("a", "dept", phase=GangPhase.PENDING, min_resources=((CPU, 1000),))
    bench = Bench.of(cluster(NODES, [waits], TREE), RULES)
    decisions = bench.greedy(gated=True)
    assert not decisions.enqueued.any()
    assert pending_of(bench.problem, decisions, RULES)["ns/a"].code == "QueueHasQueuesBelow"


def test_a_plan_that_places_there_is_told() -> None:
    snapshot = cluster(NODES, [asks("a", "dept")], TREE)
    plan = allocations(snapshot, {"ns/a-w-0": "n0", "ns/a-w-1": "n0"})
    assert [str(v) for v in verify_actions(snapshot, plan, RULES)] == [
        "leaf-queues: gang ns/a: its queue dept has child queues"
    ]


CONF = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: capacity, enableHierarchy: ON}]
"""


@pytest.mark.parametrize(("switch", "placed"), [("true", set()), ("false", {"n0"})])
def test_the_switch_of_capacity_decides(switch: str, placed: set[str]) -> None:
    policy = parse_policy(CONF.replace("ON", switch), "x.conf")
    snapshot = cluster(NODES, [asks("a", "dept")], TREE)
    plan = run_session(snapshot, policy, SessionContext()).plan
    assert set(binds(plan.actions).values()) == placed


def test_nobody_is_evicted_for_it() -> None:
    full = gang("full", ("w", 8, shape(1)), least=1, queue="dept")
    tasks = tuple(running(t, "n0") for t in full.tasks)
    runs = GangObject(full.key, "dept", min_member=1, tasks=tasks, phase=GangPhase.RUNNING)
    snapshot = cluster(NODES, [runs, asks("a", "dept", priority=9)], TREE)
    report = run_session(
        snapshot, parse_policy(CONF.replace("ON", "true"), "x.conf"), SessionContext()
    )
    assert (report.plan.actions, report.trace.violations) == ((), ())
