"""Tests of fragmentation: the measure, its typical tasks, the level, and openb traces."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import LevelStatus
from optsched.cluster.task import DeviceRequest, TaskShape
from optsched.formats.traces.openb_cluster import read_openb
from optsched.plugins.accounting import Outcome
from optsched.plugins.devices.fragmentation import (
    SHARES,
    FragLevel,
    Fragmentation,
    GpuClass,
    Target,
    find_target,
    find_typical_classes,
    left_devices,
)
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.nodes.node_filters import NodeAffinity
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.scores.nodeorder import NodeOrder
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from tests.support.effort import num_examples
from tests.support.engines import Bench
from tests.support.shared import shared
from tests.support.small import best_values, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import Snapshot
    from optsched.problem.problem import Problem

RULES = RuleSet.of(Gang(), NodeAffinity(), Fragmentation())
LEVELS = ("admission", "tasks", "frag")
HALF = TaskShape((("cpu", 1000),), device=DeviceRequest(1, 500))


def waste(kinds: Sequence[tuple[GpuClass, int]], cpu_m: int, free: list[int]) -> int:
    problem = compile_problem(cluster([node("n", gpu=len(free))], []))
    target = Target.from_classes(problem, kinds)
    (found,) = target.waste(np.array([0]), np.array([cpu_m]), np.array([free]))
    return int(found)


# --- the measure ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cpu_m", "free", "wasted"),
    [
        (GpuClass(1000, 1, 1000), 1000, [1000, 1000], 0),
        (GpuClass(1000, 1, 1000), 999, [1000, 1000], 2000),
        (GpuClass(1000, 1, 1000), 1000, [1000, 400], 400),
        (GpuClass(1000, 2, 1000), 1000, [1000, 400], 1400),
        (GpuClass(1000, 1, 500), 1000, [1000, 400, 500], 400),
        (GpuClass(1000, 1, 500), 1000, [499, 499], 998),
        (GpuClass(0, 0, 0), 1000, [1000, 300], 1300),
        (GpuClass(0, 1, 1000), 0, [0, 0], 0),
    ],
)
def test_what_a_task_can_not_use(kind: GpuClass, cpu_m: int, free: list[int], wasted: int) -> None:
    assert waste([(kind, 1)], cpu_m, free) == wasted


def test_it_is_weighed_by_how_typical_tasks_are() -> None:
    kinds = [(GpuClass(1000, 1, 1000), 3), (GpuClass(2000, 2, 1000), 1)]
    assert waste(kinds, 1500, [1000, 1000]) == 1 * 2000
    assert waste(kinds, 500, [1000, 1000]) == 4 * 2000


def test_tasks_see_only_the_nodes_that_they_select() -> None:
    only = GpuClass(0, 1, 1000, selector=(("kubernetes.io/hostname", "a"),))
    problem = compile_problem(cluster([node("a", gpu=1), node("b", gpu=1)], []))
    target = Target.from_classes(problem, [(only, 1)])
    assert target.total(np.array([0, 0]), np.array([[1000], [1000]])) == 1000


# --- typical tasks -------------------------------------------------------------------------------


def test_rare_kinds_are_left_out() -> None:
    number_of = {shape(1, 1): 90, shape(2, 2): 5, shape(1): 4, shape(4, 4): 1}
    assert [n for _, n in find_typical_classes(number_of)] == [90, 5]
    number_of[shape(2, 2)] = 4
    assert find_typical_classes(number_of)[1:] == [
        (GpuClass.from_shape(shape(2, 2)), 4),
        (GpuClass.from_shape(shape(1)), 4),
    ]


def test_the_target_counts_what_runs_and_what_waits() -> None:
    runs = gang("runs", ("w", 1, shape(1, 1)))
    runs = replace(runs, tasks=(running(runs.tasks[0], "n"),))
    waits = gang("waits", ("w", 2, shape(2, 2)))
    target = find_target(compile_problem(cluster([node("n", 8, 8)], [runs, waits])))
    assert dict(zip(target.number.tolist(), target.share.tolist(), strict=True)) == {1: 333, 2: 667}
    assert target.share.sum() == SHARES


def test_without_tasks_or_gpus_there_is_no_level() -> None:
    assert Bench.of(cluster([node("n", gpu=1)], []), RULES, ["frag"]).levels == []
    without = cluster([node("n")], [gang("g", ("w", 1, shape(1)))])
    assert Bench.of(without, RULES, ["frag"]).levels == []


# --- both engines --------------------------------------------------------------------------------


def random_gpus(rng: np.random.Generator) -> Snapshot:
    nodes = [node(f"n{i}", int(rng.integers(1, 6)), int(rng.integers(0, 4))) for i in range(3)]
    gangs = [
        gang(f"g{i}", ("w", 1, shape(int(rng.integers(1, 3)), int(rng.integers(0, 3)))))
        for i in range(int(rng.integers(1, 5)))
    ]
    asks = gang("runs", ("w", 1, shape(1, int(rng.integers(0, 2)))))
    return cluster(nodes, [*gangs, replace(asks, tasks=(running(asks.tasks[0], "n0"),))])


@pytest.mark.parametrize("seed", range(num_examples(15)))
def test_the_solver_leaves_as_little_as_any_plan(seed: int) -> None:
    bench = Bench.of(random_gpus(np.random.default_rng(seed)), RULES, LEVELS)
    answer = bench.improved()
    best = best_values(bench.problem, bench.rules, bench.levels)
    assert tuple(r.value for r in answer.results) == best
    assert all(r.status is LevelStatus.OPTIMAL for r in answer.results)


@pytest.mark.parametrize("what", [shape(1, 1), HALF, shape(1)])
def test_greedy_takes_the_node_on_which_least_is_lost(what: TaskShape) -> None:
    others = gang("others", ("w", 3, shape(2, 2)), ("x", 2, HALF), least=0)
    nodes = [node("a", 3, 2), node("b", 8, 3), node("c", 2, 1)]
    placed = replace(others, tasks=tuple(running(t, "b") for t in others.tasks[3:]))
    bench = Bench.of(cluster(nodes, [gang("g", ("w", 1, what)), placed]), RULES, ["frag"])
    here = bench.decisions({})
    values = {}
    for name in ("a", "b", "c"):
        tried = bench.decisions({"ns/g-w-0": name})
        if not bench.broken(tried):
            values[name] = bench.levels[0].value(Outcome(bench.problem, tried))
    chosen = int(bench.greedy().node_of[0])
    assert values["abc"[chosen]] == min(values.values())
    assert here.node_of.tolist() == [-1]


def test_greedy_goes_by_what_it_has_placed() -> None:
    pairs = gang("pairs", ("w", 20, shape(1, 2)), least=0, phase=None)
    pairs = replace(pairs, tasks=tuple(running(t, "full") for t in pairs.tasks))
    ones = gang("ones", ("w", 2, shape(1, 1)))
    nodes = [node("a", 9, 2), node("b", 9, 2), node("full", 99, 40)]
    bench = Bench.of(cluster(nodes, [pairs, ones]), RULES, ["frag"])
    assert len(set(bench.greedy().node_of.tolist())) == 1


def test_parts_of_gpus_have_a_bound_and_no_rows() -> None:
    snapshot = cluster(
        [node("n", 4, 2)], [gang("g", ("w", 2, HALF)), gang("h", ("w", 1, shape(1)))]
    )
    bench = Bench.of(snapshot, RULES, LEVELS)
    answer = bench.improved()
    frag = answer.results[-1]
    assert (frag.name, frag.unit) == ("fragmentation", "millionths of a GPU")
    assert frag.value == 333 * 1000  # the task without GPUs is a third of all tasks
    assert frag.bound == frag.value


# --- openb ---------------------------------------------------------------------------------------


@cache
def openb() -> Problem:
    return compile_problem(read_openb(shared("traces", "openb", "openb_pod_list_default.csv"))[0])


@pytest.mark.slow
def test_the_level_of_the_empty_cluster_is_the_published_one() -> None:
    problem = openb()
    nothing = Outcome(problem, Decisions.nothing(problem))
    part = FragLevel().value(nothing) / (6212 * 1000 * SHARES)
    table = shared("traces", "fgd_expected", "analysis_frag_discrete.csv").read_text().splitlines()
    (row,) = (line for line in table if line.startswith("openb_pod_list_default,06-FGD,1.3,42,"))
    published = float(row.split(",")[4])
    assert 100 * part == pytest.approx(published, abs=0.05)


@pytest.mark.nightly
def test_going_by_it_leaves_fewer_gpus_unused_than_other_scores() -> None:
    problem = openb()
    by_frag, by_load = (
        Bench.of(problem.snapshot, RuleSet.of(Gang(), NodeAffinity(), rule), ["frag"])
        for rule in (Fragmentation(), NodeOrder())
    )
    found = by_frag.greedy()
    assert by_frag.broken(found) == []
    level, part = FragLevel(), 6212 * 1000 * SHARES / 100
    least = level.value(Outcome(problem, found)) / part
    other = level.value(Outcome(problem, by_load.greedy())) / part
    assert (least, other) == (pytest.approx(6.6, abs=0.1), pytest.approx(8.0, abs=0.1))
    free = left_devices(Outcome(problem, found)).sum()
    assert 100 - 100 * free / 6_212_000 == pytest.approx(93.3, abs=0.1)
