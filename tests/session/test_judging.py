"""Tests of the values of actions, calculated without the code that chose the actions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.decisions import Allocate, Evict, LevelStatus
from optsched.cluster.snapshot import GangPhase
from optsched.formats.files.yaml_text import read_yaml
from optsched.formats.snapshots.assembly import assemble
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, judge_actions, run_session
from optsched.study.instances.instance_families import Recipe
from tests.support.small import cluster, gang, node, running, shape

POLICY = load_policy("volcano-default", lambda _: "")


def decided(family, **parameters):
    (document,) = read_yaml(Recipe(family, "x", 3, parameters).text())
    snapshot = assemble(document.value["items"]).snapshot
    return snapshot, run_session(snapshot, POLICY, SessionContext()).plan


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("gangs-fragmented", {"nodes": 4}),
        ("victims", {"nodes": 4, "waiting": 3}),
        ("heterogeneous", {"gpu_nodes": 2, "cpu_nodes": 2, "gangs": 4}),
    ],
)
def test_a_plan_is_worth_what_its_certificate_says(family, parameters):
    snapshot, plan = decided(family, **parameters)
    judged = judge_actions(snapshot, POLICY, plan.actions)
    told = [(level.name, level.value) for level in plan.certificate.levels]
    assert [(level.name, level.value) for level in judged.levels] == told
    assert not judged.violations
    assert {k: r.code for k, r in judged.explain_pending().items()} == {
        k: r.code for k, r in plan.pending.items()
    }


def test_victims_of_the_pipeline_count_and_are_not_proved_the_fewest():
    """One victim of three CPUs suffices for the three gangs; the pipeline may evict two."""
    low = [runs("low", 3, "n0"), runs("other", 2, "n1")]
    high = [replace(gang(f"h{i}", ("w", 1, shape(1))), priority=10) for i in range(3)]
    snapshot = cluster([node("n0", 3), node("n1", 2)], [*low, *high])
    policy = without_solver(POLICY)
    plan = run_session(snapshot, policy, SessionContext()).plan
    number = len([a for a in plan.actions if isinstance(a, Evict)])
    [victims] = [r for r in plan.certificate.levels if r.name == "victims"]
    assert (victims.value, victims.status) == (number, LevelStatus.FEASIBLE)
    assert number > 0
    assert not plan.certificate.is_proved
    judged = judge_actions(snapshot, policy, plan.actions)
    assert judged.levels == plan.certificate.levels


def test_victims_of_an_action_that_the_policy_lacks_break_its_rule():
    high = replace(gang("high", ("w", 1, shape(3))), priority=10)
    snapshot = cluster([node("n0", 3)], [runs("low", 3, "n0"), high])
    plan = run_session(snapshot, POLICY, SessionContext()).plan
    assert [a.action for a in plan.actions if isinstance(a, Evict)] == ["preempt"]
    assert judge_actions(snapshot, POLICY, plan.actions).violations == ()
    actions = tuple(action for action in POLICY.actions if action != "preempt")
    judged = judge_actions(snapshot, replace(POLICY, actions=actions), plan.actions)
    assert [violation.rule for violation in judged.violations] == ["entitled"]
    assert "does not enable the action preempt and its plugin" in str(judged.violations[0])


def runs(name, cpu, where):
    made = gang(name, ("w", 1, shape(cpu)))
    return replace(made, tasks=(running(made.tasks[0], where),), phase=GangPhase.RUNNING)


def test_a_gang_cut_short_breaks_its_rule():
    snapshot, plan = decided("gangs-homogeneous", nodes=3)
    binds = [a for a in plan.actions if isinstance(a, Allocate)]
    last = next(a for a in reversed(binds) if sum(b.gang == a.gang for b in binds) > 1)
    judged = judge_actions(snapshot, POLICY, [a for a in plan.actions if a is not last])
    assert [v.rule for v in judged.violations] == ["gang"]


def test_what_is_not_there_can_not_be_judged():
    snapshot, plan = decided("gangs-homogeneous", nodes=3)
    first = next(a for a in plan.actions if isinstance(a, Allocate))
    with pytest.raises(ValueError, match="nowhere: no pending task, node"):
        judge_actions(snapshot, POLICY, [replace(first, node="nowhere")])
    move = Evict("jobs/g000-0", "n000", "shuffle", "", to="n001")
    with pytest.raises(ValueError, match="move a pod to another node"):
        judge_actions(snapshot, POLICY, [move])
