"""Victims are found for a gang that a custom rule blocks, although no model contains the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate, Evict, LevelStatus, Nominate
from optsched.cluster.relocation import with_terminating
from optsched.cluster.snapshot import GangPhase
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

LOUD = {"noise": "loud"}


class OneLoud(Rule):
    """A rule of at most one loud pod per node, without knowledge of victims."""

    name = "one-loud"
    hard_switch = Switch.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        for name, placed in world.placed_on.items():
            there = world.snapshot.node_by_name[name].residents
            loud = [t for t in placed if t.labels.get("noise")]
            if loud and sum(bool(t.labels.get("noise")) for t in (*there, *placed)) > 1:
                yield Violation(self.name, f"node {name}", "is too loud")

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        return True

    def constrain_nodes(self, nodes: NodeModel) -> None:
        if nodes.form is None:
            return
        form, supplied = nodes.form, nodes.supplied
        loud = _Loud(form.problem)
        for c in loud.classes:
            for n in np.flatnonzero(supplied[c] >= 0).tolist():
                room = 1 if loud.fits(-1, c, later=False)[n] else 0
                form.model.add_row([int(supplied[c, n])], [1], upper=room)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        return _Loud(problem)


class _Loud(Greedy):
    """A greedy mask that counts all pods, including victims."""

    def __init__(self, problem: Problem) -> None:
        nodes = problem.snapshot.nodes
        self._loud = np.array([sum(bool(t.labels) for t in n.residents) for n in nodes])
        self.classes = {int(problem.task_class[i]) for i, t in enumerate(problem.tasks) if t.labels}

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool:
        return (self._loud < 1) | (task_class not in self.classes)

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        if task_class in self.classes:
            np.add.at(self._loud, nodes, counts)


def decide(snapshot: Snapshot) -> Plan:
    policy = load_policy("volcano-default", lambda path: "")
    mine = ActiveRule(OneLoud(), "loud", 0, origin="loud.py:1")
    policy = replace(policy, rules=RuleSet((mine, *policy.rules.active)))
    around = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
    report = run_session(snapshot, policy, around)
    assert report.trace.violations == ()
    assert report.trace.faults == ()
    return report.plan


def loud(name: str, number: int, *where: str, priority: int = 1, **more: object) -> Gang:
    made = gang(name, ("w", number, shape(1)), priority=priority, labels=LOUD, **more)  # type: ignore[arg-type]
    if not where:
        return made
    tasks = tuple(running(t, n) for t, n in zip(made.tasks, where, strict=True))
    return replace(made, tasks=tasks, phase=GangPhase.RUNNING)


def evicted(plan: Plan) -> list[str]:
    return sorted(a.task.removeprefix("ns/") for a in plan.actions if isinstance(a, Evict))


def nominations(plan: Plan) -> list[str]:
    return sorted(a.node for a in plan.actions if isinstance(a, Nominate))


def test_who_is_in_the_way_of_an_own_rule_leaves_and_no_more() -> None:
    lows = [loud(f"low{i}", 1, f"n{i}", priority=1 + i) for i in range(3)]
    quiet = gang("quiet", ("w", 1, shape(1)), priority=1)
    quiet = replace(quiet, tasks=(running(quiet.tasks[0], "n0"),), phase=GangPhase.RUNNING)
    high = loud("high", 2, priority=9)
    before = cluster([node(f"n{i}", cpu=8) for i in range(3)], [*lows, quiet, high])
    plan = decide(before)
    assert len(evicted(plan)) == 2
    assert not any("quiet" in task for task in evicted(plan))
    assert nominations(plan) == sorted(a.node for a in plan.actions if isinstance(a, Evict))
    (level,) = [r for r in plan.certificate.levels if r.name == "victims"]
    assert (level.value, level.bound, level.status) == (2, 1, LevelStatus.FEASIBLE)


def test_the_room_is_kept_until_it_is_used() -> None:
    low, high = loud("low", 1, "n0"), loud("high", 1, priority=9)
    before = cluster([node("n0", cpu=8)], [low, high])
    plan = decide(before)
    assert (evicted(plan), nominations(plan)) == (["low-w-0"], ["n0"])
    named = tuple(replace(t, nominated_node="n0") for t in high.tasks)
    waiting = with_terminating(before, {"ns/low-w-0"})
    gangs = tuple(replace(g, tasks=named) if g.key == high.key else g for g in waiting.gangs)
    again = decide(replace(waiting, gangs=gangs))
    assert (evicted(again), nominations(again)) == ([], ["n0"])
    gone = decide(cluster([node("n0", cpu=8)], [replace(high, tasks=named)]))
    assert [a.node for a in gone.actions if isinstance(a, Allocate)] == ["n0"]


def test_a_gang_leaves_whole_or_keeps_its_minimum() -> None:
    pair = loud("pair", 2, "n0", "n1")
    high = loud("high", 1, priority=9)
    nodes = [node(f"n{i}", cpu=8) for i in range(2)]
    assert evicted(decide(cluster(nodes, [pair, high]))) == ["pair-w-0", "pair-w-1"]
    elastic = loud("pair", 2, "n0", "n1", least=1)
    assert len(evicted(decide(cluster(nodes, [elastic, high])))) == 1


@pytest.mark.parametrize(
    "low", [loud("low", 1, "n0", priority=9), loud("low", 1, "n0", queue="other")]
)
def test_nobody_leaves_who_may_not(low: Gang) -> None:
    high = loud("high", 1, priority=5)
    assert evicted(decide(cluster([node("n0", cpu=8)], [low, high]))) == []


def test_both_a_rule_and_room_are_in_the_way() -> None:
    low = loud("low", 1, "n0")
    large = gang("large", ("w", 1, shape(3)), priority=1)
    large = replace(large, tasks=(running(large.tasks[0], "n0"),), phase=GangPhase.RUNNING)
    high = gang("high", ("w", 1, shape(3)), priority=9, labels=LOUD)
    plan = decide(cluster([node("n0", cpu=4)], [low, large, high]))
    assert evicted(plan) == ["large-w-0", "low-w-0"]
