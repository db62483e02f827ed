"""Tests of finish-time ratios: the measure, the order, and the level in both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import LevelStatus
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ordering.gang_order import FinishTimeFair, find_finish_time_ratios
from optsched.plugins.ruleset import RuleSet
from optsched.problem.compile import compile_problem
from tests.support.effort import num_examples
from tests.support.engines import Bench, binds
from tests.support.small import best_values, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang as Group
    from optsched.cluster.snapshot import Snapshot

RULES = RuleSet.of(Gang(), FinishTimeFair())
LEVELS = ("finish-time", "admission")
HOUR = 3_600_000


def runs(name: str, text: str = "", tasks: int = 1, created_ms: int = 0) -> Group:
    told = {"optsched.io/running-estimate": text} if text else {}
    return gang(name, ("w", tasks, shape()), annotations=told, created_ms=created_ms)


def ratios_of(*gangs: Group, cpus: int = 4, now_ms: int = 2 * HOUR) -> dict[str, int]:
    problem = compile_problem(cluster([node("n", cpu=cpus)], gangs, now_ms=now_ms))
    found = find_finish_time_ratios(problem).tolist()
    return {g.name: r for g, r in zip(problem.snapshot.gangs, found, strict=True)}


def test_who_waits_for_as_long_as_it_runs_ends_twice_as_late() -> None:
    assert ratios_of(runs("a", "2h"), runs("b", "1h", created_ms=HOUR), runs("c", "1h")) == {
        "a": 2000,
        "b": 2000,
        "c": 3000,
    }


def test_large_gangs_would_run_longer_on_their_part() -> None:
    # Four gangs are entitled to one CPU each; the large gang requests four.
    gangs = [runs("large", "1h", 4), *[runs(f"small{i}", "1h") for i in range(3)]]
    found = ratios_of(*gangs)
    assert (found["large"], found["small0"]) == (750, 3000)


def test_gangs_that_run_take_part_in_the_sharing() -> None:
    busy = runs("busy")
    busy = replace(busy, tasks=(running(busy.tasks[0], "n"),))
    assert ratios_of(runs("a", "2h", 2), busy, now_ms=0)["a"] == 1000
    assert ratios_of(runs("a", "2h", 4), busy, now_ms=0)["a"] == 500


def test_gangs_without_estimate_count_as_served_in_time() -> None:
    assert ratios_of(runs("a"), runs("b", "1h"))["a"] == 1000


def test_a_gang_of_which_nothing_is_known_changes_no_order() -> None:
    bench = Bench.of(cluster([node("n", cpu=1)], [runs("a"), runs("b")]), RULES, LEVELS)
    assert set(binds(bench.actions(bench.greedy()))) == {"ns/a-w-0"}


@pytest.mark.parametrize("decide", [Bench.greedy, lambda bench: bench.improved().decisions])
def test_who_would_end_the_latest_starts(decide) -> None:
    gangs = [runs("a", "9h"), runs("b", "1m", created_ms=HOUR // 2), runs("c", "4m")]
    snapshot = cluster([node("n", cpu=1)], gangs, now_ms=HOUR)
    bench = Bench.of(snapshot, RULES, LEVELS)
    assert set(binds(bench.actions(decide(bench)))) == {"ns/b-w-0"}


def random_waits(seed: int) -> Snapshot:
    rng = np.random.default_rng(seed)
    nodes = [node(f"n{i}", int(rng.integers(1, 4))) for i in range(2)]
    texts = ("", "1m", "3m", "1h")
    gangs = [
        runs(f"g{i}", str(rng.choice(texts)), int(rng.integers(1, 3)), int(rng.integers(0, 50_000)))
        for i in range(int(rng.integers(1, 5)))
    ]
    return cluster(nodes, gangs, now_ms=50_000)


@pytest.mark.parametrize("seed", range(num_examples(15)))
def test_the_solver_reaches_what_the_best_plan_reaches(seed: int) -> None:
    bench = Bench.of(random_waits(seed), RULES, LEVELS)
    answer = bench.improved()
    best = best_values(bench.problem, bench.rules, bench.levels)
    assert tuple(r.value for r in answer.results) == best
    assert all(r.status is LevelStatus.OPTIMAL for r in answer.results)
