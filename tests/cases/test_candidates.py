"""Shared cases in which the optimising session was once worse than the pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict, LevelStatus, Sense
from optsched.formats.snapshots.instance_files import read_instance
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, judge_actions, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.shared import shared

if TYPE_CHECKING:
    from optsched.cluster.decisions import LevelResult
    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy
    from optsched.session.session import Report

WORK = 0.2
"""The budget of a session per level, in CP-SAT's deterministic seconds."""


def snapshot_of(name: str) -> Snapshot:
    return read_instance(shared("cases", "decisions", name)).snapshot


def policy_of(model: str) -> Policy:
    return load_policy(model, lambda path: path.read_text())


def decide(name: str, model: str, *, solver: bool = True, work: float = WORK) -> Report:
    if not solver:
        return run_session(snapshot_of(name), without_solver(policy_of(model)), SessionContext())
    limits = Limits(budget_ms=None, num_workers=1, deterministic=work)
    around = SessionContext(solver=InProcess(), limits=limits)
    return run_session(snapshot_of(name), policy_of(model), around)


def without_evictions(name: str, model: str) -> Report:
    policy = without_solver(policy_of(model))
    actions = tuple(a for a in policy.actions if a not in ("preempt", "reclaim"))
    return run_session(snapshot_of(name), replace(policy, actions=actions), SessionContext())


def values(levels: tuple[LevelResult, ...], prefix: str) -> list[int]:
    return [r.value if r.sense is Sense.MAX else -r.value for r in levels if prefix in r.name]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("urgent_100.json", "volcano-default"),
        ("random100_capacity_worse_than_greedy.json", "capacity-hierarchical"),
        ("random40_maxthroughput_worse_than_greedy.json", "max-throughput"),
    ],
)
def test_the_plan_is_not_worse_than_the_pipelines(name: str, model: str):
    """A pipeline plan that violates the policy by an eviction is not compared."""
    report = decide(name, model, work=0.05)
    assert report.trace.violations == ()
    mine = values(report.plan.certificate.levels, "admission")
    for greedy in (decide(name, model, solver=False), without_evictions(name, model)):
        judged = judge_actions(snapshot_of(name), policy_of(model), greedy.plan.actions)
        if judged.violations:
            assert any(isinstance(a, Evict) for a in greedy.plan.actions)
            continue
        assert mine >= values(judged.levels, "admission")


def test_all_urgent_gangs_start_with_one_victim_for_each_gpu():
    """Gangs of a queue above its share once came first, and evicted pods for other queues."""
    levels = decide("urgent_100.json", "volcano-default", work=0.02).plan.certificate.levels
    admission, victims = (next(r for r in levels if name in r.name) for name in ("adm", "victims"))
    assert (admission.value, admission.status) == (320, LevelStatus.OPTIMAL)
    assert victims.value == 320


def test_an_empty_cluster_does_not_stay_empty():
    report = decide("drf_lex_none2.yaml", "drf-lexicographic")
    assert report.plan.binds


@pytest.mark.parametrize("model", ["volcano-default", "crater"])
def test_admission_is_not_optimal_while_an_evicting_plan_reaches_more(model: str):
    report = decide(f"min_FALSEPROOF_norej_{model}.yaml", model)
    (level,) = [r for r in report.plan.certificate.levels if r.name.startswith("admission")]
    assert level.status is not LevelStatus.OPTIMAL or level.value > 1000


def test_one_bad_bid_does_not_stop_an_unrelated_preemption():
    report = decide("one_bad_bid_stops_all.yaml", "capacity-hierarchical")
    assert report.trace.violations == ()
    urgent = next(r for r in report.plan.certificate.levels if r.name == "admission, priority 1000")
    assert (urgent.value, urgent.status) == (8, LevelStatus.OPTIMAL)
