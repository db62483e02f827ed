"""What actions are worth, worked out without those who chose them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.decisions import Allocate, Evict
from optsched.formats.files.yaml_text import read_yaml
from optsched.formats.snapshots.assembly import assemble
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, judge_actions, run_session
from optsched.study.instances.instance_families import Recipe

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
    assert {k: r.code for k, r in judged.pending.items()} == {
        k: r.code for k, r in plan.pending.items()
    }


def test_a_gang_cut_short_breaks_its_rule():
    snapshot, plan = decided("gangs-homogeneous", nodes=3)
    binds = [a for a in plan.actions if isinstance(a, Allocate)]
    last = next(a for a in reversed(binds) if sum(b.gang == a.gang for b in binds) > 1)
    judged = judge_actions(snapshot, POLICY, [a for a in plan.actions if a is not last])
    assert [v.rule for v in judged.violations] == ["gang"]


def test_what_is_not_there_can_not_be_judged():
    snapshot, plan = decided("gangs-homogeneous", nodes=3)
    first = next(a for a in plan.actions if isinstance(a, Allocate))
    with pytest.raises(ValueError, match="nowhere: there is no such"):
        judge_actions(snapshot, POLICY, [replace(first, node="nowhere")])
    move = Evict("jobs/g000-0", "n000", "shuffle", "", to="n001")
    with pytest.raises(ValueError, match="moves to another node"):
        judge_actions(snapshot, POLICY, [move])
