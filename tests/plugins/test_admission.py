"""Tests of the admission weights, and of the levels over gangs and tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optsched.cluster.relocation import with_terminating
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskShape
from optsched.plugins.accounting import Outcome
from optsched.plugins.objectives.gang_levels import (
    PPB,
    Shortfall,
    admission_levels,
    dominant_weights,
    task_levels,
)
from optsched.plugins.ruleset import RuleSet
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.problem.tiers import priority_tiers, weighted_tier
from tests.support.engines import Bench
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

GIB = 1 << 30


def weights(nodes, *gangs) -> tuple[str, dict[TaskShape, int]]:
    problem = compile_problem(cluster(nodes, gangs))
    found = dominant_weights(problem)
    return found.unit, dict(zip(problem.classes.shapes, found.of_class.tolist(), strict=True))


# --- weights -------------------------------------------------------------------------------------


def test_where_one_resource_dominates_for_all_it_is_counted() -> None:
    # 1 GPU is an eighth of the cluster; the CPU request is a smaller part.
    small, big = shape(1, gpu=1), shape(4, gpu=4)
    made = [gang("s", ("w", 1, small)), gang("b", ("w", 1, big))]
    assert weights([node("n", 64, gpu=8)], *made) == (GPU, {small: 1, big: 4})


def test_without_devices_cpus_are_counted_in_milli() -> None:
    assert weights([node("n", 8)], gang("g", ("w", 1, shape(3)))) == (
        "milli-CPU",
        {shape(3): 3000},
    )


def test_memory_is_counted_in_bytes() -> None:
    big = replace(node("n", 8), allocatable=((CPU, 8000), ("memory", 8 * GIB), ("pods", 9)))
    what = TaskShape(((CPU, 1000), ("memory", 2 * GIB)))
    assert weights([big], gang("g", ("w", 1, what))) == ("bytes of memory", {what: 2 * GIB})


def test_where_different_resources_dominate_shares_are_counted() -> None:
    on_cpu, on_gpu = shape(4), shape(1, gpu=2)
    made = [gang("c", ("w", 1, on_cpu)), gang("g", ("w", 1, on_gpu))]
    unit, found = weights([node("n", 8, gpu=8)], *made)
    assert unit == "ppb of the cluster"
    assert found == {on_cpu: PPB // 2, on_gpu: PPB // 4}


def test_best_effort_tasks_count_a_little() -> None:
    unit, found = weights([node("n", 8)], gang("g", ("w", 1, shape(0))))
    assert (unit, found) == ("tasks", {shape(0): 1})
    unit, found = weights(
        [node("n", 8)], gang("g", ("w", 1, shape(0))), gang("h", ("w", 1, shape(2)))
    )
    assert (unit, found) == ("milli-CPU", {shape(0): 1, shape(2): 2000})


def test_what_no_node_offers_counts_as_the_whole_cluster() -> None:
    unit, found = weights([node("n", 8)], gang("g", ("w", 1, shape(1, gpu=1))))
    assert (unit, found) == (GPU, {shape(1, gpu=1): 1})
    odd, plain = shape(1, gpu=1), shape(2)
    unit, found = weights([node("n", 8)], gang("g", ("w", 1, odd)), gang("h", ("w", 1, plain)))
    assert (unit, found) == ("ppb of the cluster", {odd: PPB, plain: PPB // 4})


# --- levels --------------------------------------------------------------------------------------

HIGH = gang("high", ("w", 2, shape(1)), priority=2)
LOW = gang("low", ("w", 4, shape(1)), least=2, priority=1)
MADE = gang("runs", ("w", 3, shape(1)), least=1, priority=1, phase=GangPhase.RUNNING)
RUNS = replace(MADE, tasks=(running(MADE.tasks[0], "n0"), *MADE.tasks[1:]))


def test_one_level_a_tier_for_what_starts_and_one_for_what_is_a_choice() -> None:
    problem = compile_problem(cluster([node("n0", 8)], [HIGH, LOW, RUNS]))
    tiers = priority_tiers(problem, problem.priority, 0)
    starts, tasks = admission_levels(problem, tiers), task_levels(problem, tiers)
    assert [t.name for t in starts] == ["admission, priority 2", "admission, priority 1"]
    assert [t.name for t in tasks] == ["tasks, priority 1"]
    # The gang `low` counts only its minimum.
    assert [t.ideal(problem) for t in starts] == [2000, 2000]
    assert [t.ideal(problem) for t in tasks] == [6000]
    assert {t.unit for t in (*starts, *tasks)} == {"milli-CPU"}


def test_values_are_counted_from_the_decisions() -> None:
    bench = Bench.of(cluster([node("n0", 8)], [HIGH, LOW, RUNS]), RuleSet.of())
    binds = {f"ns/low-w-{i}": "n0" for i in range(3)} | {"ns/runs-w-1": "n0"}
    outcome = Outcome(bench.problem, bench.decisions(binds))
    assert [(t.name, t.value(outcome)) for t in bench.levels] == [
        ("admission, priority 2", 0),
        ("admission, priority 1", 2000),
        ("tasks, priority 1", 4000),
    ]


def test_a_gang_that_is_evicted_whole_gains_no_task_by_starting_again() -> None:
    """The evicted gang ran with one of two tasks, so starting its other task gains nothing."""
    two = gang("evicted", ("w", 2, shape(2)), least=1)
    evicted = replace(two, tasks=(running(two.tasks[0], "n0"), two.tasks[1]))
    grows = replace(
        gang("grows", ("w", 2, shape(1)), least=1),
        phase=GangPhase.RUNNING,
    )
    grows = replace(grows, tasks=(running(grows.tasks[0], "n0"), grows.tasks[1]))
    snapshot = cluster([node("n0", 3), node("n1", 2)], [evicted, grows])
    bench = Bench.of(with_terminating(snapshot, {"ns/evicted-w-0"}), RuleSet.of())
    again = Outcome(bench.problem, bench.decisions({"ns/evicted-w-1": "n1"}))
    more = Outcome(bench.problem, bench.decisions({"ns/grows-w-1": "n1"}))
    [level] = bench.levels
    assert level.name == "tasks, priority 0"
    assert (level.value(again), level.value(more), level.ideal(bench.problem)) == (0, 1000, 1000)
    # The solver prefers the growing gang, although the other task is larger.
    start = bench.decisions({"ns/evicted-w-1": "n1"})
    [result] = bench.improved(start).results
    assert (result.value, result.bound) == (1000, 1000)


def test_by_weight_there_is_one_level_and_priority_multiplies() -> None:
    problem = compile_problem(cluster([node("n0", 8)], [HIGH, LOW]))
    (level,) = admission_levels(problem, weighted_tier(problem, problem.priority))
    assert level.name == "admission, weighted by priority"
    assert level.ideal(problem) == 2 * 2000 + 1 * 2000


def test_a_gang_counts_the_mean_of_its_tasks_times_its_minimum() -> None:
    mixed = gang("g", ("ps", 1, shape(4)), ("w", 3, shape(1)), least=2)
    problem = compile_problem(cluster([node("n0", 8)], [mixed]))
    (level,) = admission_levels(problem, priority_tiers(problem, problem.priority, 0))
    assert level.ideal(problem) == 7000 * 2 // 4


# --- shortfall -----------------------------------------------------------------------------------


def shortfall(target: int, grid: int, *asks: int) -> tuple[Shortfall, Bench]:
    gangs = [gang(f"g{i}", ("w", 1, shape(n))) for i, n in enumerate(asks)]
    bench = Bench.of(cluster([node("n0", 100)], gangs), RuleSet.of())
    due = np.zeros((1, len(bench.problem.resources)), np.int64)
    due[0, bench.problem.index(CPU)] = target
    everybody = np.ones((1, len(bench.problem.queues.names)), np.bool_)
    return Shortfall("test", "steps", everybody, due, grid), bench


@pytest.mark.parametrize(
    ("target", "grid", "asks", "missing"),
    [
        # The step is a whole CPU, because all requests are whole CPUs.
        (10_000, 1000, (1, 1, 1), 10),
        (10_000, 10, (1, 1, 1), 1),  # the step is a tenth of 100 CPUs, because requests are small
        (10_001, 10, (1, 1, 1), 2),  # the deficit is rounded up
        (0, 1000, (1,), 0),
        (10_000, 1000, (4, 6), 5),  # all requests are even numbers of CPUs
    ],
)
def test_what_is_missing_is_counted_in_steps(
    target: int, grid: int, asks: tuple[int, ...], missing: int
) -> None:
    level, bench = shortfall(target, grid, *asks)
    assert level.value(Outcome(bench.problem, bench.decisions({}))) == missing
    assert level.ideal(bench.problem) == 0


def test_steps_do_not_depend_on_victims() -> None:
    """Plans with other victims are compared, so that their missing amounts need equal steps."""
    level, _ = shortfall(4_000, 1000)
    broken = gang("broken", ("w", 2, shape(1)))
    broken = replace(broken, tasks=(running(broken.tasks[0], "n0"), broken.tasks[1]))
    large = gang("large", ("w", 1, shape(2)))
    before = cluster([node("n0", 100)], [broken, large])
    after = with_terminating(before, [broken.tasks[0].key])
    missing = []
    for snapshot in (before, after):
        problem = compile_problem(snapshot)
        missing.append(level.value(Outcome(problem, Decisions.nothing(problem))))
    assert missing == [3, 4]


def test_what_is_placed_is_no_longer_missing() -> None:
    level, bench = shortfall(5_000, 1000, 2, 2, 2)
    placed = {"ns/g0-w-0": "n0", "ns/g1-w-0": "n0"}
    assert level.value(Outcome(bench.problem, bench.decisions(placed))) == 1
    everything = {**placed, "ns/g2-w-0": "n0"}
    assert level.value(Outcome(bench.problem, bench.decisions(everything))) == 0
