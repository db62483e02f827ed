"""Tests of two engines in sequence: the second one may prove what the first one cannot."""

from __future__ import annotations

import numpy as np
import pytest

from bench.verify_instances import snapshot_of
from optsched.cluster.decisions import LevelStatus, Sense
from optsched.policy.load import load_policy
from optsched.problem.linear import Expression, Rows
from optsched.solver import portfolio
from optsched.solver.cpsat.level_model import LevelModel, Limits, Objective
from optsched.solver.cpsat.level_search import solve_levels
from optsched.solver.cpsat.process import InProcess
from optsched.solver.portfolio import LevelProgress, SolveRequest, evaluate_greedy, improve
from optsched.study.instances.instance_families import Recipe
from tests.support.engines import Bench

VOLCANO = load_policy("volcano-default", lambda _: "").rules


def array(values):
    return np.array(values, np.int64)


def bench(rules, *levels):
    recipe = Recipe("gangs-homogeneous", "x", 1, {"nodes": 6, "percent": 150})
    return Bench.of(snapshot_of(recipe), rules, levels)


def solved(found, num_engines, watch=None):
    limits = Limits(None, 2.0, num_workers=1, num_engines=num_engines)
    goal = (found.tiers, found.levels)
    search = SolveRequest(InProcess(), limits, watch)
    start = evaluate_greedy(found.problem, found.greedy(), found.levels, "")
    return improve(found.problem, found.rules, goal, start, search)


def test_scores_of_nodes_are_proved_after_configurations(monkeypatch):
    monkeypatch.setattr(portfolio, "BEST_DIRECT", 0)
    found = bench(VOLCANO, "admission", "node-score")
    once, twice = solved(found, 1), solved(found, 2)
    assert once.results[-1].status is not LevelStatus.OPTIMAL
    assert {r.status for r in twice.results} == {LevelStatus.OPTIMAL}
    assert [r.value for r in twice.results[:-1]] == [r.value for r in once.results[:-1]]


def test_a_first_engine_that_proves_everything_is_the_only_one():
    found = bench(VOLCANO, "admission", "node-score")
    solution = solved(found, 2)
    assert {r.status for r in solution.results} == {LevelStatus.OPTIMAL}
    assert portfolio.CONFIGURATIONS not in solution.engine


def test_what_is_told_goes_on_in_time(monkeypatch):
    monkeypatch.setattr(portfolio, "BEST_DIRECT", 0)
    told: list[LevelProgress] = []
    solved(bench(VOLCANO, "admission", "node-score"), 2, told.append)
    times = [news.at_s for news in told]
    assert times == sorted(times)
    assert told[-1].value == told[-1].bound


def test_what_is_only_as_good_on_a_level_is_not_taken_for_the_next():
    """The first level is already optimal, and the search finds no solution for the second level."""
    both = Expression(array([0, 1]), array([1, 1]), 0)
    second = Expression(array([1]), array([1]), 0)
    rows = Rows(array([0, 0]), array([0, 1]), array([1, 1]), array([-(2**62)]), array([3]))
    objectives = (Objective(both, Sense.MAX, 3), Objective(second, Sense.MAX, 3))
    nobody = array([-1, -1])
    model = LevelModel(array([0, 0]), array([3, 3]), rows, objectives, array([3, 0]), nobody)
    first, last = solve_levels(model, Limits(None, num_workers=1), lambda: pytest.fail("a clock"))
    assert (first.value, first.solution) == (3, None)
    assert last.value == 3
