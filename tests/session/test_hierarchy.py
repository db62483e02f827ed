"""Tests of shares of a tree of queues by weight: parent queues first, then their teams."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict
from optsched.cluster.snapshot import Gang, GangPhase, Queue
from optsched.policy.load import parse_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot

CONF = """
actions: allocate
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - {name: drf, enableHierarchy: true}
  - {name: predicates}
  - {name: capacity}
"""
TEAMS = {"a1": ("root/a/a1", "1/3/2"), "a2": ("root/a/a2", "1/3/1"), "b1": ("root/b/b1", "1/2/1")}


def team(name: str) -> Queue:
    path, weights = TEAMS[name]
    marks = {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}
    return Queue(name, annotations=marks)


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
@pytest.mark.parametrize(
    "wanted",
    [{"a1": 24, "a2": 12, "b1": 24}, {"a1": 36, "b1": 24}],
    ids=["all want more", "a team is idle"],
)
def test_departments_share_by_weight_and_then_their_teams(
    wanted: dict[str, int], solver: bool
) -> None:
    gangs = [gang(name, ("w", 60, shape(1, 1)), least=1, queue=name) for name in wanted]
    nodes = [node(f"n{i}", 6, gpu=6) for i in range(10)]
    snapshot = cluster(nodes, gangs, [team(name) for name in TEAMS])
    policy = parse_policy(CONF, "tree.conf")
    limits = Limits(budget_ms=None, num_workers=1)
    around = SessionContext(solver=InProcess() if solver else None, limits=limits)
    report = run_session(snapshot, policy if solver else without_solver(policy), around)
    gang_of = {task.key: each.name for each in gangs for task in each.tasks}
    assert Counter(gang_of[task] for task in report.plan.binds) == wanted


BORROWED = """
actions: "allocate, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf, enableHierarchy: true}, {name: predicates}, {name: capacity}]
"""


def held(name: str, number: int, where: str) -> Gang:
    made = gang(name, ("w", number, shape(1, 1)), least=1, queue=name)
    tasks = tuple(running(task, where) for task in made.tasks)
    return replace(made, tasks=tasks, phase=GangPhase.RUNNING)


def session(snapshot: Snapshot, text: str, *, solver: bool) -> Plan:
    policy = parse_policy(text, "tree.conf")
    limits = Limits(budget_ms=None, num_workers=1)
    around = SessionContext(solver=InProcess() if solver else None, limits=limits)
    return run_session(snapshot, policy if solver else without_solver(policy), around).plan


def evicted(plan: Plan) -> Counter[str]:
    gone = [a for a in plan.actions if isinstance(a, Evict)]
    assert {a.action for a in gone} <= {"reclaim"}
    return Counter(a.task.split("/")[1].split("-")[0] for a in gone)


def test_teams_claim_back_what_the_tree_gives_them() -> None:
    """Parents have weights 3 and 2, teams 2 and 1: of 10 GPUs, a1 gets 4, a2 2 and b1 4."""
    nodes = [node("n0", 10, gpu=10)]
    gangs = [held("a1", 4, "n0"), held("b1", 6, "n0")]
    gangs.append(gang("a2", ("w", 10, shape(1, 1)), least=1, queue="a2"))
    plan = session(cluster(nodes, gangs, [team(n) for n in TEAMS]), BORROWED, solver=True)
    assert evicted(plan) == {"b1": 2}


def test_nobody_claims_back_beyond_the_tree() -> None:
    nodes = [node("n0", 10, gpu=10)]
    gangs = [held("a1", 4, "n0"), held("a2", 2, "n0"), held("b1", 4, "n0")]
    more = [gang(f"more-{n}", ("w", 9, shape(1, 1)), least=1, queue=n) for n in TEAMS]
    snapshot = cluster(nodes, [*gangs, *more], [team(n) for n in TEAMS])
    for solver in (True, False):
        assert evicted(session(snapshot, BORROWED, solver=solver)) == {}


def test_what_drf_may_not_claim_back_capacity_says() -> None:
    switches = "enableHierarchy: true, enableReclaimable: false"
    text = BORROWED.replace("enableHierarchy: true", switches)
    gangs = [held("b1", 10, "n0"), gang("a2", ("w", 10, shape(1, 1)), least=1, queue="a2")]
    queues = [team("a1"), replace(team("a2"), deserved=((GPU, 7),)), team("b1")]
    snapshot = cluster([node("n0", 10, gpu=10)], gangs, queues)
    assert evicted(session(snapshot, text, solver=True)) == {"b1": 7}


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
def test_who_is_blocked_neither_starves_nor_holds_up_its_department(solver: bool) -> None:
    """This is the blocking-nodes case of Volcano's TestHDRF."""
    queues = [
        Queue(name, annotations={"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": w})
        for name, path, w in (
            ("q1", "root/q1", "100/25"),
            ("q2", "root/q2", "100/25"),
            ("q31", "root/q3/q31", "100/25/50"),
            ("q4", "root/q4", "100/25"),
        )
    ]
    wanted = {"g1": ("q1", 1, 0), "g2": ("q2", 1, 0), "g31": ("q31", 1, 0)}
    wanted |= {"g32": ("q31", 0, 1), "g4": ("q4", 0, 1)}
    gangs = [
        gang(name, ("w", 30, shape(cpu, gpu)), least=1, queue=where)
        for name, (where, cpu, gpu) in wanted.items()
    ]
    nodes = [node(f"n{i}", 3, gpu=3) for i in range(10)]
    plan = session(cluster(nodes, gangs, queues), CONF, solver=solver)
    gang_of = {task.key: each.name for each in gangs for task in each.tasks}
    placed = Counter(gang_of[task] for task in plan.binds)
    assert placed == {"g1": 10, "g2": 10, "g31": 10, "g32": 15, "g4": 15}
    ideals = {s.queue: s.ideal for s in plan.certificate.shares}
    assert ideals == {"q1": 333_333, "q2": 333_333, "q31": 500_000, "q4": 500_000}


def test_of_gangs_that_come_whole_each_department_gets_one() -> None:
    queues = [team("a1"), team("a2"), team("b1")]
    gangs = [
        gang("a1", ("w", 3, shape(2, 0)), queue="a1"),
        gang("a2", ("w", 3, shape(2, 0)), queue="a2"),
        gang("b1", ("w", 3, shape(2, 0)), queue="b1"),
    ]
    nodes = [node(f"n{i}", 4) for i in range(3)]
    plan = session(cluster(nodes, gangs, queues), CONF, solver=True)
    gang_of = {task.key: each.name for each in gangs for task in each.tasks}
    assert Counter(gang_of[task] for task in plan.binds) == {"a1": 3, "b1": 3}
    names = [level.name for level in plan.certificate.levels]
    assert [n for n in names if "share" in n] == ["fair share at depth 1", "fair share at depth 2"]
