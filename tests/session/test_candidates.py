"""Tests of candidate plans: comparison by levels, repair after refusals, unproven parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import (
    Allocate,
    Evict,
    LevelResult,
    LevelStatus,
    Nominate,
    Sense,
)
from optsched.cluster.relocation import with_terminating
from optsched.cluster.snapshot import GangPhase
from optsched.plugins.extension_points import Violation
from optsched.plugins.objectives.levels import build_levels
from optsched.policy.load import load_policy, parse_policy
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.session import rounds
from optsched.session.attempt import Attempt
from optsched.session.bounds import EvictionScope
from optsched.session.candidates import Candidate, Round, rank_candidates
from optsched.session.decompile import decisions_of
from optsched.session.repair import drop_gangs
from optsched.session.session import NOTHING, SessionContext, run_session
from optsched.session.session_input import find_tiers
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from optsched.solver.portfolio import Solution, evaluate_greedy
from optsched.solver.preemption.sequential.stage import EvictionPlan, count_victims
from tests.support.small import cluster, gang, node, running, runs, shape

if TYPE_CHECKING:
    import pytest

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import AnyLevel
    from optsched.session.session import Report

POLICY = load_policy("volcano-default", lambda path: path.read_text())
LIMITS = Limits(budget_ms=None, num_workers=1)


def decide(snapshot: Snapshot, *, solver: bool = True) -> Report:
    around = SessionContext(solver=InProcess() if solver else None, limits=LIMITS)
    return run_session(snapshot, POLICY, around)


# --- ranking -------------------------------------------------------------------------------------


class Named:
    """A level over gangs with a given name."""

    def __init__(self, name: str) -> None:
        self.name = name


PROBLEM = compile_problem(cluster([node("n0")], []), None)


def candidate(*levels: tuple[str, int], victims: int = 0) -> Candidate:
    results = tuple(
        LevelResult(name, "tasks", Sense.MAX, value, None, LevelStatus.FEASIBLE)
        for name, value in levels
    )
    lost = (LevelResult("victims", "tasks", Sense.MIN, victims, 0, LevelStatus.FEASIBLE),)
    solution = Solution(Decisions.nothing(PROBLEM), results, "engine", "")
    clearing = EvictionPlan(results=lost if victims else ())
    each = Round(
        PROBLEM,
        find_tiers(PROBLEM, POLICY),
        [Named(name) for name, _ in levels],  # type: ignore[misc]
        (solution,),
        clearing,
    )
    return Candidate(each, solution)


def test_the_most_important_level_that_differs_decides():
    worse, better = candidate(("a", 1), ("b", 9)), candidate(("a", 2), ("b", 0), victims=5)
    assert rank_candidates([worse, better]) == [better, worse]


def test_fewer_victims_decide_between_equal_levels():
    many, few, none = (candidate(("a", 1), victims=n) for n in (3, 1, 0))
    assert rank_candidates([many, few, none]) == [none, few, many]


def test_equal_candidates_keep_their_order():
    one, two = candidate(("a", 1)), candidate(("a", 1))
    assert rank_candidates([one, two]) == [one, two]
    assert rank_candidates([two, one]) == [two, one]


def test_a_level_that_one_problem_does_not_have_counts_nothing_there():
    short, long = candidate(("a", 1), ("c", 1)), candidate(("a", 1), ("b", 1), ("c", 0))
    assert rank_candidates([short, long]) == [long, short]


# --- repair --------------------------------------------------------------------------------------


def crowded(honest, name: str):
    """Return a pipeline that moves one gang to a node that is already full."""

    def run(problem, rules, options):
        decisions = honest(problem, rules, options)
        node_of = decisions.node_of.copy()
        node_of[[t.gang == f"ns/{name}" for t in problem.tasks]] = 0
        return replace(decisions, node_of=node_of)

    return run


def test_only_the_gang_at_fault_is_dropped(monkeypatch: pytest.MonkeyPatch):
    gangs = [
        gang("good", ("w", 4, shape(1)), created_ms=1),
        gang("bad", ("w", 4, shape(1)), created_ms=2),
    ]
    monkeypatch.setattr(rounds, "run_greedy", crowded(rounds.run_greedy, "bad"))
    report = decide(cluster([node("n0", 4), node("n1", 4)], gangs), solver=False)
    assert {a.gang for a in report.plan.actions if isinstance(a, Allocate)} == {"ns/good"}
    (repair,) = report.trace.repairs
    assert repair.dropped == ("ns/bad",)
    assert repair.violation.rule == "fits"
    certificate = report.plan.certificate
    assert "gangs left out: ns/bad" in certificate.limitations
    assert "the verifier refused a plan" in certificate.limitations
    assert not certificate.is_proved


def test_a_healthy_session_repairs_nothing():
    gangs = [gang(f"g{i}", ("w", 2, shape(1))) for i in range(3)]
    report = decide(cluster([node("n0", 4), node("n1", 4)], gangs))
    assert report.trace.repairs == ()
    assert report.plan.certificate.limitations == ()


def test_dropped_gangs_take_their_evictions_along():
    low = runs(gang("low", ("w", 1, shape(4)), priority=1), "n0")
    high = gang("high", ("w", 1, shape(4)), priority=2)
    plan = decide(cluster([node("n0", 4)], [low, high])).plan
    assert len(plan.actions) > len(drop_gangs(plan.actions, {"ns/other"})) - 1
    assert drop_gangs(plan.actions, {"ns/other"}) == plan.actions
    assert drop_gangs(plan.actions, {"ns/high"}) == ()


# --- what stays unproved -------------------------------------------------------------------------


def test_a_level_short_of_its_ideal_is_not_optimal_where_pods_could_be_evicted():
    """Without evictions the small gang fits; with one, the big gang fits and counts twice."""
    low = runs(gang("low", ("w", 1, shape(4)), priority=1), "n0")
    big = gang("big", ("w", 2, shape(4)), priority=2)
    small = gang("small", ("w", 1, shape(4)), priority=2)
    report = decide(cluster([node("n0", 4), node("n1", 4)], [low, big, small]))
    (level,) = [r for r in report.plan.certificate.levels if r.name == "admission, priority 2"]
    assert level.bound is not None
    assert level.bound >= 8000
    assert (level.status is LevelStatus.OPTIMAL) is (level.bound == level.value)


def test_a_level_that_only_other_victims_leave_is_part_of_the_certificate():
    """The elastic gang is evicted as a whole, so no task beyond a minimum counts in this plan.

    Another gang could be evicted instead, so that the elastic gang could grow. A proof must not
    ignore this alternative.
    """
    elastic = gang("elastic", ("w", 2, shape(2)), priority=1, least=1)
    first, second = elastic.tasks
    elastic = replace(elastic, tasks=(running(first, "n0"), second), phase=GangPhase.RUNNING)
    other = runs(gang("other", ("w", 1, shape(4)), priority=1), "n0")
    urgent = gang("urgent", ("w", 1, shape(2)), priority=2)
    snapshot = cluster([node("n0", 6)], [elastic, other, urgent])
    levels = build_levels_of(snapshot)
    assert "tasks, priority 1" in [level.name for level in levels]
    evict = Evict("ns/elastic-w-0", "n0", "preempt", "ns/urgent")
    nominate = Nominate("ns/urgent-w-0", "n0", "ns/urgent")
    chosen = Candidate(*round_of(snapshot, (evict, nominate)))
    scope = EvictionScope(round_of(snapshot, ())[0], is_open=True)
    assert "tasks, priority 1" not in [r.name for r in chosen.sections[0]]
    [lost] = [r for r in scope.certify(chosen)[0] if r.name == "tasks, priority 1"]
    assert (lost.value, lost.bound, lost.status) == (0, 2000, LevelStatus.FEASIBLE)
    values = scope.values_of(chosen)
    assert values is not None
    assert values[[level.name for level in levels].index("tasks, priority 1")] == 0
    # The session finds the better plan with the other victim.
    plan = decide(snapshot).plan
    assert [a.task for a in plan.actions if isinstance(a, Evict)] == ["ns/other-w-0"]


def build_levels_of(snapshot: Snapshot) -> list[AnyLevel]:
    return round_of(snapshot, ())[0].levels


def round_of(snapshot: Snapshot, actions: tuple[Action, ...]) -> tuple[Round, Solution]:
    evictions = tuple(a for a in actions if isinstance(a, Evict))
    problem = compile_problem(with_terminating(snapshot, {e.task for e in evictions}), None)
    tiers = find_tiers(problem, POLICY)
    levels = build_levels(problem, POLICY.rules, tiers, POLICY.levels)
    solution = evaluate_greedy(problem, decisions_of(problem, actions), levels, "")
    clearing = EvictionPlan(evictions, results=count_victims(snapshot, evictions))
    return Round(problem, tiers, levels, (solution,), clearing), solution


def test_without_running_pods_the_engines_bound_stands():
    gangs = [gang("big", ("w", 1, shape(5)))]
    certificate = decide(cluster([node("n0", 4)], gangs)).plan.certificate
    assert certificate.is_proved


def test_a_certificate_without_levels_proves_nothing():
    certificate = decide(cluster([node("n0", 4)], [])).plan.certificate
    if not certificate.levels:
        assert not certificate.is_proved
        assert certificate.verdict == "nothing to prove: no level of the model applies"
    empty = replace(certificate, levels=())
    assert not empty.is_proved


NO_LEVELS = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [enqueue, allocate, backfill]
tiers:
- rules: [{name: priority}, {name: gang}]
levels: []
solver: {engine: cpsat, budget: 400ms}
"""


def test_a_model_without_levels_is_never_proved():
    policy = parse_policy(NO_LEVELS, "test.yaml")
    around = SessionContext(solver=InProcess(), limits=LIMITS)
    snapshot = cluster([node("n0", 4)], [gang("g", ("w", 1, shape(1)))])
    certificate = run_session(snapshot, policy, around).plan.certificate
    assert certificate.levels == ()
    assert not certificate.is_proved


def test_victims_of_several_gangs_are_not_proved_one_by_one():
    """Bounds for single gangs cannot prove that two gangs need two victims."""
    lows = [runs(gang(f"low{i}", ("w", 1, shape(4)), priority=1), f"n{i}") for i in range(2)]
    highs = [gang(f"high{i}", ("w", 1, shape(4)), priority=2) for i in range(2)]
    certificate = decide(cluster([node("n0", 4), node("n1", 4)], [*lows, *highs])).plan.certificate
    (victims,) = [r for r in certificate.levels if r.name == "victims"]
    assert victims.value == 2
    assert victims.bound is not None
    assert 1 <= victims.bound <= 2


def test_where_victims_are_needed_the_bound_is_at_least_one():
    low = runs(gang("low", ("w", 1, shape(4)), priority=1), "n0")
    high = gang("high", ("w", 1, shape(4)), priority=2)
    certificate = decide(cluster([node("n0", 4)], [low, high])).plan.certificate
    (victims,) = [r for r in certificate.levels if r.name == "victims"]
    assert (victims.value, victims.bound, victims.status) == (1, 1, LevelStatus.OPTIMAL)
    assert certificate.limitations == ()


def test_no_pod_is_evicted_where_every_plan_is_refused(monkeypatch: pytest.MonkeyPatch):
    refusal = Violation("gang", "gang ns/high", "refused in any case")
    monkeypatch.setattr(Attempt, "verify", lambda *_: [refusal])
    low = runs(gang("low", ("w", 1, shape(4)), priority=1), "n0")
    plan = decide(
        cluster([node("n0", 4)], [low, gang("high", ("w", 1, shape(4)), priority=2)])
    ).plan
    assert plan.actions == ()
    assert plan.certificate.engine == NOTHING


def test_positions_of_dropped_gangs_do_not_move_others():
    gangs = [gang(f"g{i}", ("w", 1, shape(1))) for i in range(4)]
    plan = decide(cluster([node("n0", 4)], gangs)).plan
    rest = drop_gangs(plan.actions, {"ns/g1"})
    assert [a for a in plan.actions if a in rest] == list(rest)
    assert len(np.unique([getattr(a, "gang", "") for a in rest])) == 3
