"""Relaxations bound the optimum, and searches near their solutions are never worse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from optsched.cluster.decisions import Sense
from optsched.policy.load import load_policy
from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Expression, Rows
from optsched.session.session import SessionContext, run_session
from optsched.solver import portfolio
from optsched.solver.cpsat import level_search as cpsat_levels
from optsched.solver.cpsat.integer_program import Effort, SolveOutcome, Task, maximize
from optsched.solver.cpsat.level_model import LevelModel, Limits, Objective, Placement
from optsched.solver.cpsat.level_search import solve_levels
from optsched.solver.cpsat.process import InProcess
from optsched.solver.cpsat.relaxation import Relaxation
from optsched.solver.greedy.pipeline import ALLOCATE, BACKFILL
from tests.support.synthetic_clusters import MixedCluster

EXACT = Effort(None, 5.0, 1, 0)


def array(values):
    return np.array(values, np.int64)


def random_task(seed):
    """Return a small packing model with an equality and coefficients as large as memory sizes."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(3, 9))
    unit = int(rng.choice([1, 1000, 2**30]))
    rows = 4
    dense = rng.integers(0, 9, (rows, number)) * unit
    dense[-1] = rng.integers(-1, 2, number)
    upper = np.append(rng.integers(5, 30, rows - 1) * unit, 0)
    lower = np.append(np.full(rows - 1, -UNLIMITED), 0)
    at, variable = np.nonzero(dense)
    given = Rows(at, variable, dense[at, variable], array(lower), array(upper))
    goal = Expression.of(np.arange(number), rng.integers(0, 10**6, number), 7)
    return Task(
        np.zeros(number, np.int64), rng.integers(1, 5, number), given, goal, array([0] * number)
    )


@pytest.mark.parametrize("seed", range(60))
def test_no_solution_is_beyond_the_bound(seed):
    task = random_task(seed)
    best = maximize(task, EXACT)
    vertex = Relaxation(task.lower, task.upper, task.rows).maximize(task.objective, None)
    assert best.outcome is SolveOutcome.OPTIMAL
    assert vertex is not None
    assert vertex.bound is not None
    assert vertex.bound >= best.value


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_lower_levels_hold_with_upper_ones_held(seed):
    task = random_task(seed)
    rng = np.random.default_rng(1000 + seed)
    second = Expression.of(np.arange(len(task.lower)), rng.integers(-5, 9, len(task.lower)))
    first = maximize(task, EXACT).value
    rows = task.rows.with_lower_bounds([(task.objective, first)])
    best = maximize(replace(task, rows=rows, objective=second), EXACT).value
    relaxation = Relaxation(task.lower, task.upper, task.rows)
    relaxation.maximize(task.objective, None)
    relaxation.hold_value(task.objective, first)
    vertex = relaxation.maximize(second, None)
    assert vertex is None or vertex.bound is None or vertex.bound >= best


def two_gangs(*, needs_first: bool):
    """Return a model of gang 0 on level 0 and gang 1 on level 1; one node holds two tasks.

    The variables are the start of each gang and its number of tasks on the node. With
    `needs_first`, gang 0 starts only together with gang 1.
    """
    supply, room, order = 0, 2, 3
    row = [0, 0, 1, 1, room, room, *([order, order] if needs_first else [])]
    variable = [0, 2, 1, 3, 2, 3, *([0, 1] if needs_first else [])]
    factor = [1, -1, 1, -1, 1, 1, *([1, -1] if needs_first else [])]
    lower = [0, 0, -UNLIMITED, *([-UNLIMITED] if needs_first else [])]
    upper = [0, 0, 2, *([0] if needs_first else [])]
    rows = Rows(array(row), array(variable), array(factor), array(lower), array(upper))
    linking = np.zeros(len(lower), np.bool_)
    linking[[supply, supply + 1]] = True
    placement = Placement(array([-1, -1, 0, 0]), array([0, 1, 0, 1]), linking, len(lower))
    goals = tuple(Objective(Expression(array([v]), array([1])), Sense.MAX, 0) for v in (0, 1))
    ones, none = array([1] * 4), array([0] * 4)
    return LevelModel(none, ones, rows, goals, none, none - 1, placement=placement)


@pytest.mark.parametrize("needs_first", [False, True])
def test_gangs_are_left_out_only_where_that_loses_nothing(needs_first, monkeypatch):
    monkeypatch.setattr(cpsat_levels, "LEAST_RELAXED", 0)
    model = two_gangs(needs_first=needs_first)
    later = model.placement.stage > 0
    assert cpsat_levels._can_exclude_gangs(model, model.placement, later) is not needs_first
    limits = Limits(None, num_workers=1)
    *_, last = solve_levels(model, limits, lambda: pytest.fail("a clock"))
    assert last.solution.tolist() == [1, 1, 1, 1]


@cache
def model_without_evictions():
    policy = load_policy("volcano-default", lambda _: "")
    return replace(policy, actions=(ALLOCATE, BACKFILL))


def decided(seed, work):
    cluster = MixedCluster(10, 50, num_shapes=14, num_departments=2, num_teams=2, seed=seed)
    limits = Limits(None, work, num_workers=1)
    solver = None if work is None else InProcess()
    around = SessionContext(solver=solver, limits=limits if work else None)
    return run_session(cluster.snapshot(), model_without_evictions(), around)


def values(report):
    levels = report.plan.certificate.levels
    return [r.value if r.sense is Sense.MAX else -r.value for r in levels]


@pytest.mark.parametrize("least_rounds", [0, 1500])
@pytest.mark.parametrize("seed", range(5))
def test_more_work_is_never_worse(seed, least_rounds, monkeypatch):
    monkeypatch.setattr(cpsat_levels, "LEAST_ROUNDS", least_rounds)
    monkeypatch.setattr(cpsat_levels, "ROUND_VARIABLES", 20)
    greedy, short, long = (decided(seed, work) for work in (None, 0.02, 0.2))
    assert values(greedy) <= values(short) <= values(long)
    assert not any(report.trace.violations for report in (greedy, short, long))
    for report in (short, long):
        for r in report.plan.certificate.levels:
            assert r.bound is None or (r.value - r.bound) * (1 if r.sense is Sense.MAX else -1) <= 0


def test_the_solver_is_better_than_the_pipeline_on_most_clusters():
    better = [values(decided(seed, 0.05)) > values(decided(seed, None)) for seed in range(6)]
    assert sum(better) >= 4


def test_the_same_limits_give_the_same_plan():
    one, other = decided(3, 0.05), decided(3, 0.05)
    assert one.plan.actions == other.plan.actions
    assert portfolio.DIRECT in one.plan.certificate.engine
