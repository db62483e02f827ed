"""Tests of problems too large for one model, which the solver searches some nodes at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from optsched.cluster.decisions import Evict, Sense
from optsched.policy.load import load_policy
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from optsched.solver import portfolio
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.pricing import TOO_MANY_CAPACITIES, TooManyCapacities
from optsched.solver.cpsat.process import InProcess, Solved
from optsched.solver.model import neighbourhoods
from optsched.solver.portfolio import (
    CONFIGURATIONS,
    NEIGHBOURHOODS,
    SOME_NODES,
    SolveRequest,
    count_pairs,
    evaluate_greedy,
    improve,
)
from optsched.solver.preemption.joint import model as joint_model
from tests.support.effort import nightly_except
from tests.support.engines import Bench
from tests.support.synthetic_clusters import MixedCluster

WITH_EVICTIONS = load_policy("volcano-default", lambda _: "")
POLICY = replace(
    WITH_EVICTIONS,
    actions=tuple(a for a in WITH_EVICTIONS.actions if a not in ("preempt", "reclaim")),
)


@cache
def large_reports():
    """Return the reports of the pipeline and of the solver on a cluster above the limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio, "ROUNDS_OF_WORK", 1)
        return decide(large()), decide(large(), solver=InProcess(), work=0.03)


@cache
def large():
    return MixedCluster(num_nodes=800, num_pods=2000, num_shapes=120, fill=0.8, seed=4).snapshot()


@pytest.fixture
def some_nodes(monkeypatch):
    """Let the solver search small problems some nodes at a time, too."""
    monkeypatch.setattr(portfolio, "MOST_RELAXED", 0)
    monkeypatch.setattr(portfolio, "FEW_ROOMS", 0.0)
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 120)


def decide(snapshot, policy=POLICY, solver=None, work=0.4, seed=0):
    limits = Limits(None, work, num_workers=1, seed=seed)
    return run_session(snapshot, policy, SessionContext(solver=solver, limits=limits))


def compare(one, other):
    """Return 1 if the first report is better on the first different level, −1 if worse, else 0."""
    levels = (report.plan.certificate.levels for report in (one, other))
    for a, b in zip(*levels, strict=True):
        if a.name != "node score" and a.value != b.value:
            return 1 if (a.value > b.value) is (a.sense is Sense.MAX) else -1
    return 0


def test_a_cluster_above_the_limit_gets_a_better_plan_that_keeps_every_rule():
    problem = compile_problem(large(), None)
    assert count_pairs(problem, POLICY.rules) > portfolio.MOST_RELAXED
    greedy, found = large_reports()
    assert found.plan.certificate.engine == NEIGHBOURHOODS
    assert found.plan.certificate.stopped == SOME_NODES
    assert compare(found, greedy) == 1
    assert found.trace.violations == ()


def test_its_bounds_are_those_of_merged_nodes():
    """A search of some nodes proves no bound for all plans, but a model of merged nodes does."""
    greedy, found = large_reports()
    pairs = zip(found.plan.certificate.levels, greedy.plan.certificate.levels, strict=True)
    first, ideal = next(pairs)
    assert first.value < first.bound < ideal.bound
    assert not found.plan.certificate.is_proved


@pytest.mark.parametrize("seed", nightly_except(range(3), [1]))
def test_no_plan_beats_its_bounds(seed, monkeypatch):
    """A search of all nodes with more work is better on the first level, but within the bound."""
    drawn = MixedCluster(num_nodes=20, num_pods=80, num_shapes=20, fill=0.7, seed=seed).snapshot()
    whole = decide(drawn, solver=InProcess(), work=2.0).plan.certificate.levels[0]
    monkeypatch.setattr(portfolio, "MOST_RELAXED", 0)
    monkeypatch.setattr(portfolio, "FEW_ROOMS", 0.0)
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 120)
    monkeypatch.setattr(joint_model, "MOST_SINGLE", 0)
    monkeypatch.setattr(joint_model, "MOST_MERGED", 0)
    found = decide(drawn, solver=InProcess()).plan.certificate
    ideal = decide(drawn).plan.certificate.levels[0].bound
    assert found.stopped == SOME_NODES
    assert whole.value <= found.levels[0].bound <= ideal


@pytest.mark.parametrize("seed", nightly_except(range(5), [0, 3]))
def test_plans_are_never_worse_than_the_pipelines(some_nodes, seed):
    drawn = MixedCluster(
        num_nodes=20, num_pods=80, num_shapes=20, fill=0.6 + 0.06 * seed, seed=seed
    )
    greedy, found = (decide(drawn.snapshot(), solver=s) for s in (None, InProcess()))
    assert compare(found, greedy) >= 0
    assert found.trace.violations == ()
    for level in found.plan.certificate.levels:
        sign = 1 if level.sense is Sense.MAX else -1
        assert level.bound is None or sign * level.value <= sign * level.bound


def test_nodes_that_are_open_to_very_many_shapes_are_searched_with_few_gangs(
    some_nodes, monkeypatch
):
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 12)
    monkeypatch.setattr(neighbourhoods, "FEW_CLASSES", 8)
    drawn = MixedCluster(num_nodes=20, num_pods=80, num_shapes=60, fill=0.7, seed=2).snapshot()
    greedy, found = (decide(drawn, solver=s) for s in (None, InProcess()))
    assert found.plan.certificate.stopped == SOME_NODES
    assert compare(found, greedy) == 1
    assert found.trace.violations == ()


@pytest.mark.parametrize(("affordable", "ends"), [(1, TOO_MANY_CAPACITIES), (4, SOME_NODES)])
def test_a_budget_pays_for_the_tables_of_each_search(some_nodes, monkeypatch, affordable, ends):
    """A search has at most 60 classes and 20 nodes: 400 ms suffice for one search or none."""
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 12)
    monkeypatch.setattr(portfolio, "MOST_DIRECT", 0)
    monkeypatch.setattr(portfolio, "PAIRS_PER_MS", 1)
    monkeypatch.setattr(portfolio, "CROWDED_PAIRS_PER_MS", affordable)
    drawn = MixedCluster(num_nodes=20, num_pods=80, num_shapes=60, fill=0.7, seed=2).snapshot()
    around = SessionContext(solver=InProcess(), limits=Limits(400, num_workers=1))
    found = run_session(drawn, POLICY, around)
    assert found.plan.certificate.stopped == ends
    if ends == TOO_MANY_CAPACITIES:
        assert found.plan.actions == decide(drawn).plan.actions
    assert found.trace.violations == ()


def test_nominated_gangs_keep_what_their_victims_leave(some_nodes):
    drawn = MixedCluster(num_nodes=20, num_pods=80, num_shapes=20, fill=0.96, seed=5).snapshot()
    found = decide(drawn, WITH_EVICTIONS, InProcess(), work=0.1)
    assert any(isinstance(action, Evict) for action in found.plan.actions)
    assert found.trace.violations == ()


def test_some_of_them_are_better(some_nodes):
    drawn = (
        MixedCluster(num_nodes=20, num_pods=80, num_shapes=20, fill=0.7, seed=seed).snapshot()
        for seed in range(4)
    )
    assert any(compare(decide(s, solver=InProcess()), decide(s)) == 1 for s in drawn)


def test_the_same_problem_and_limits_give_the_same_plan(some_nodes):
    drawn = MixedCluster(num_nodes=20, num_pods=80, num_shapes=20, fill=0.7, seed=1).snapshot()
    one, other = (decide(drawn, solver=InProcess()) for _ in range(2))
    assert one.plan.actions == other.plan.actions


class Recorder:
    """A solver that finds no solution and records its limits."""

    def __init__(self):
        self.limits = []
        self.sizes = []

    def solve(self, model, limits, on_step=None):
        self.limits.append(limits)
        self.sizes.append(len(model.lower))
        return Solved((), "time limit reached")


def bench(**changes):
    given = {"num_nodes": 40, "num_pods": 150, "num_shapes": 40, "fill": 0.7, "seed": 1}
    snapshot = MixedCluster(**{**given, **changes}).snapshot()
    return Bench.of(snapshot, POLICY.rules, ("admission", "tasks"))


def search(found, limits):
    solver = Recorder()
    start = evaluate_greedy(found.problem, found.greedy(), found.levels, "")
    goal = (found.tiers, found.levels)
    request = SolveRequest(solver, limits)
    return improve(found.problem, found.rules, goal, start, request), solver


@pytest.mark.parametrize(("budget_ms", "rounds"), [(100, 1), (400, 1), (1600, 4), (8000, 20)])
def test_all_searches_together_take_no_more_than_the_budget(
    some_nodes, budget_ms, rounds, monkeypatch
):
    monkeypatch.setattr(portfolio, "PAIRS_PER_MS", 0)
    monkeypatch.setattr(portfolio, "MOST_DIRECT", 0)
    solution, solver = search(bench(), Limits(budget_ms=budget_ms))
    assert len(solver.limits) == rounds
    assert sum(each.budget_ms for each in solver.limits) <= budget_ms
    assert solution.stopped == SOME_NODES


def test_a_budget_that_is_too_short_for_all_nodes_is_spent_on_some(monkeypatch):
    found = bench(num_nodes=200, num_pods=600, num_shapes=80)
    pairs = count_pairs(found.problem, found.rules)
    assert portfolio.MOST_DIRECT < pairs < portfolio.MOST_RELAXED
    enough = 2 * pairs // portfolio.PAIRS_PER_MS
    whole, part = (search(found, Limits(budget_ms=b))[1] for b in (enough, enough // 8))
    assert max(part.sizes) < max(whole.sizes) / 2


def test_rooms_that_can_not_be_priced_are_searched_some_at_a_time(monkeypatch):
    """The search tries configurations first, but finds too many idle vectors for them."""

    def refuse(*_):
        raise TooManyCapacities

    monkeypatch.setattr(portfolio, "MOST_RELAXED", 0)
    monkeypatch.setattr(portfolio, "FEW_ROOMS", 1.0)
    monkeypatch.setattr(portfolio, "encode_configurations", refuse)
    solution, solver = search(bench(), Limits(None, 1.0, num_workers=1))
    assert solver.sizes
    assert solution.stopped == SOME_NODES
    assert CONFIGURATIONS not in solution.engine
