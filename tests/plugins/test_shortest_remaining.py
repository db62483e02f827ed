"""Tests of short gangs first: the order, and the level in both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import LevelStatus
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ordering.gang_order import YEAR_MS, ShortestRemaining, count_runs_a_year
from optsched.plugins.ruleset import RuleSet
from tests.support.effort import num_examples
from tests.support.engines import Bench, binds
from tests.support.small import best_values, cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang as Group
    from optsched.cluster.snapshot import Snapshot

RULES = RuleSet.of(Gang(), ShortestRemaining())
LEVELS = ("shortest", "admission")


def runs(name: str, text: str = "", tasks: int = 1, created_ms: int = 0) -> Group:
    told = {"optsched.io/running-estimate": text} if text else {}
    return gang(name, ("w", tasks, shape()), annotations=told, created_ms=created_ms)


def test_gangs_that_say_nothing_count_one() -> None:
    lengths = np.array([0, 1, YEAR_MS // 8, YEAR_MS, 3 * YEAR_MS])
    assert count_runs_a_year(lengths).tolist() == [1, 14 << 31, 8, 1, 1]


@pytest.mark.parametrize("decide", [Bench.greedy, lambda bench: bench.improved().decisions])
def test_the_shorter_one_starts(decide) -> None:
    gangs = [runs("a", created_ms=0), runs("b", "2h", created_ms=1), runs("c", "1h", created_ms=2)]
    bench = Bench.of(cluster([node("n", cpu=1)], gangs), RULES, LEVELS)
    assert binds(bench.actions(decide(bench))) == {"ns/c-w-0": "n"}


def test_many_short_ones_are_worth_more_than_a_long_one_that_fills_the_cluster() -> None:
    gangs = [runs("long", "8h", 4), *[runs(f"short{i}", "1h") for i in range(3)]]
    bench = Bench.of(cluster([node("n", cpu=4)], gangs), RULES, LEVELS)
    started = {key.partition("-")[0] for key in binds(bench.actions(bench.improved().decisions))}
    assert started == {f"ns/short{i}" for i in range(3)}


def test_without_estimates_the_order_is_the_one_without_the_rule() -> None:
    gangs = [runs("b"), runs("a", created_ms=1)]
    bench = Bench.of(cluster([node("n", cpu=1)], gangs), RULES, LEVELS)
    assert set(binds(bench.actions(bench.greedy()))) == {"ns/b-w-0"}


def random_lengths(seed: int) -> Snapshot:
    rng = np.random.default_rng(seed)
    nodes = [node(f"n{i}", int(rng.integers(1, 4))) for i in range(2)]
    texts = ("", "1m", "3m", "1h", "30h")
    gangs = [
        runs(f"g{i}", str(rng.choice(texts)), int(rng.integers(1, 3)))
        for i in range(int(rng.integers(1, 5)))
    ]
    return cluster(nodes, gangs)


@pytest.mark.parametrize("seed", range(num_examples(15)))
def test_the_solver_reaches_what_the_best_plan_reaches(seed: int) -> None:
    bench = Bench.of(random_lengths(seed), RULES, LEVELS)
    answer = bench.improved()
    best = best_values(bench.problem, bench.rules, bench.levels)
    assert tuple(r.value for r in answer.results) == best
    assert all(r.status is LevelStatus.OPTIMAL for r in answer.results)
