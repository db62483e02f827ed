"""Tests of CP-SAT's progress: incumbents, sufficient gaps, and known bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.cluster.decisions import LevelStatus, Sense
from optsched.policy.load import load_policy
from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Expression, Rows
from optsched.session.session import SessionContext, run_session
from optsched.solver import portfolio
from optsched.solver.cpsat.integer_program import (
    Effort,
    SolveOutcome,
    SolverProgress,
    Task,
    maximize,
)
from optsched.solver.cpsat.level_model import LevelModel, LevelUpdate, Limits, Objective, Step
from optsched.solver.cpsat.level_search import OUT_OF_WORK, run_levels, solve_levels
from optsched.solver.cpsat.process import STOPPED, InProcess, WorkerProcess
from tests.support.effort import num_examples
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.problem.arrays import I64

EXACT = Limits(budget_ms=None, num_workers=1)
EFFORT = Effort(seconds=None, deterministic=10.0, num_workers=1, seed=0)


def array(values: list[int]) -> I64:
    return np.array(values, np.int64)


def knapsack(weights: list[int], most: int) -> Rows:
    number = len(weights)
    return Rows(
        array([0] * number),
        array(list(range(number))),
        array(weights),
        array([-UNLIMITED]),
        array([most]),
    )


def task(values: list[int], weights: list[int], most: int, constant: int) -> Task:
    number = len(values)
    goal = Expression(array(list(range(number))), array(values), constant)
    bounds = array([0] * number), array([1] * number)
    return Task(*bounds, knapsack(weights, most), goal, array([0] * number))


def best(values: list[int], weights: list[int], most: int) -> int:
    chosen = product((0, 1), repeat=len(values))
    return max(int(np.dot(c, values)) for c in chosen if int(np.dot(c, weights)) <= most)


items = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=8)


@settings(max_examples=num_examples(30))
@given(items, st.integers(0, 60), st.integers(-500, 500), st.none() | st.floats(0, 0.9))
def test_answers_are_true_at_any_gap(
    chosen: list[tuple[int, int]], most: int, constant: int, gap: float | None
) -> None:
    values, weights = [v for v, _ in chosen], [w for _, w in chosen]
    seen: list[SolverProgress] = []
    found = maximize(task(values, weights, most, constant), replace(EFFORT, gap=gap), seen.append)
    optimum = best(values, weights, most) + constant
    assert found.value is not None
    assert found.bound is not None
    assert found.value <= optimum <= found.bound
    assert (found.outcome is SolveOutcome.OPTIMAL) == (found.value == found.bound)
    assert replace(EXACT, gap=gap).suffices(found.value, found.bound)
    for sight in seen:
        assert sight.bound >= optimum
        assert sight.solution is not None
        assert int(np.dot(sight.solution, weights)) <= most


def levels(at_most: int | None = None) -> LevelModel:
    """Return two levels over six items: first their value, then their number."""
    first = Expression(array(list(range(6))), array([9, 7, 6, 5, 4, 3]), 0)
    second = Expression(array(list(range(6))), array([1] * 6), 0)
    return LevelModel(
        array([0] * 6),
        array([1] * 6),
        knapsack([8, 7, 5, 4, 3, 2], 14),
        (Objective(first, Sense.MAX, 9, at_most), Objective(second, Sense.MIN, 6)),
        array([0] * 6),
        array([-1] * 6),
    )


def test_steps_lead_to_the_updates_and_time_is_work() -> None:
    steps: list[Step] = []
    updates = list(solve_levels(levels(), EXACT, lambda: pytest.fail("a clock"), steps.append))
    final = {update.level: update for update in updates}
    assert [u.status for u in final.values()] == [LevelStatus.OPTIMAL] * 2
    for update in final.values():
        last = [s.update for s in steps if s.update.level == update.level][-1]
        assert (last.value, last.bound) == (update.value, update.bound)
    times = [step.at_s for step in steps]
    assert times == sorted(times)


def test_a_bound_that_is_known_and_reached_needs_no_search() -> None:
    model = levels(at_most=9)
    updates = list(solve_levels(model, EXACT, lambda: 0.0))
    (first,) = [u for u in updates if u.level == 0]
    assert (first.value, first.bound, first.status) == (9, 9, LevelStatus.OPTIMAL)
    assert first.solution is None
    assert [u.value for u in updates if u.level == 1][-1] == 1


def test_no_work_at_all_is_told() -> None:
    updates: list[LevelUpdate] = []
    assert run_levels(levels(), replace(EXACT, deterministic=0.0), updates.append) == OUT_OF_WORK
    assert updates[0].value == 9


# --- by configurations, and in a process ---------------------------------------------------------

POLICY = load_policy("volcano-default", lambda path: path.read_text())
MIXED = cluster(
    [node(f"n{i}", 16) for i in range(4)],
    [gang(f"g{i}", ("w", 1 + i % 3, shape(3 + i % 5)), created_ms=i) for i in range(12)],
)


class Watcher:
    def __init__(self) -> None:
        self.progress: list[tuple[str, int | None, int | None]] = []

    def progressed(self, progress: object) -> None:
        self.progress.append((progress.level, progress.incumbent, progress.bound))  # type: ignore[attr-defined]

    def previewed(self, progress: object) -> None:
        raise AssertionError(f"no shorter search: {progress}")

    def improved(self, turn: int, incumbent: object) -> None:
        assert turn == 1
        assert incumbent().binds.keys() <= {t.key for g in MIXED.gangs for t in g.tasks}  # type: ignore[operator]


@pytest.mark.parametrize("gap", [None, 0.05, 0.5])
@pytest.mark.parametrize("most_direct", [0, 10_000], ids=["configurations", "direct"])
def test_both_encodings_keep_to_gaps_and_tell_what_is_true(
    monkeypatch: pytest.MonkeyPatch, most_direct: int, gap: float | None
) -> None:
    monkeypatch.setattr(portfolio, "MOST_DIRECT", most_direct)
    monkeypatch.setattr(portfolio, "BEST_DIRECT", most_direct)
    best = run_session(MIXED, POLICY, SessionContext(solver=InProcess(), limits=EXACT)).plan
    watcher, limits = Watcher(), replace(EXACT, gap=gap)
    around = SessionContext(solver=InProcess(), limits=limits, watch=watcher)
    plan = run_session(MIXED, POLICY, around).plan
    first, optimum = plan.certificate.levels[0], best.certificate.levels[0].value
    assert first.bound is not None
    assert first.value <= optimum <= first.bound
    assert limits.suffices(first.value, first.bound)
    told = [(v, b) for level, v, b in watcher.progress if level == first.name]
    assert all(v is not None and b is not None and v <= optimum <= b for v, b in told)
    assert told[-1] == (first.value, first.bound)


def test_a_process_that_is_stopped_gives_what_it_has() -> None:
    asked = []
    worker = WorkerProcess(lambda: len(asked) > 0)
    try:
        solved = worker.solve(levels(), EXACT, lambda step: asked.append(step))
        assert solved.updates
        again = worker.solve(levels(), EXACT)
        assert (again.updates, again.stopped) == ((), STOPPED)
    finally:
        worker.close()
