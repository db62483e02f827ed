"""Tests of measured load: excluded nodes, scores, and pods that the load omits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.snapshot import Load, Node
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.accounting import Ledger
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.nodes.usage import Estimate, Usage
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import RuleSet
from optsched.problem.compile import compile_problem
from tests.support.engines import Bench, reason
from tests.support.small import cluster, gang

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot

NOW_MS = 3_600_000
CPU_M, MEMORY = 10_000, 1_000_000
SMALL = TaskShape((("cpu", 1000), ("memory", 50_000)))
BEST_EFFORT = TaskShape(())
BURSTING = replace(SMALL, burst=(("cpu", 3000), ("memory", 10_000)))
ALL = np.ones(1, np.bool_)


def node(name: str, cpu: float, memory: float, age_ms: int = 0, *residents: Task) -> Node:
    """Return a node with a load in percent."""
    load = Load(round(cpu * 10_000), round(memory * 10_000), NOW_MS - age_ms)
    offered = (("cpu", CPU_M), ("memory", MEMORY), ("pods", 100))
    return Node(name, offered, residents=residents, load=load)


def there(shape: TaskShape, started_ms: int, status: TaskStatus = TaskStatus.RUNNING) -> Task:
    return Task("ns/there", shape, status, node="n", started_ms=started_ms)


def snapshot_of(*nodes: Node, what: TaskShape = SMALL, number: int = 1) -> Snapshot:
    return cluster(nodes, [gang("g", ("w", number, what))], now_ms=NOW_MS)


def scores(rule: Usage, *nodes: Node) -> list[float] | None:
    found = rule.class_score(compile_problem(snapshot_of(*nodes)), 0)
    return None if found is None else pytest.approx(found.tolist())


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "is_open"),
    [
        (node("n", 80, 80), True),
        (node("n", 80.0001, 0), False),
        (node("n", 0, 81), False),
        (node("n", 99, 99, 300_000), False),
        (node("n", 99, 99, 300_001), True),
        (replace(node("n", 0, 0), load=None), True),
    ],
)
def test_a_node_above_a_limit_takes_nothing_if_that_was_measured_lately(
    made: Node, is_open: bool
) -> None:
    bench = Bench.of(snapshot_of(made), RuleSet.of(Usage()))
    mask = Usage().mask(bench.problem, 0)
    assert (mask is None or bool(mask[0])) is is_open
    assert (bench.broken(bench.decisions({"ns/g-w-0": "n"})) == []) is is_open
    assert bench.greedy().node_of.tolist() == [0 if is_open else -1]


def test_limits_are_those_of_the_policy() -> None:
    rule = Usage(cpu_limit_ppm=300_000, memory_limit_ppm=900_000)
    problem = compile_problem(snapshot_of(node("a", 31, 0), node("b", 30, 90)))
    mask = rule.mask(problem, 0)
    assert mask is not None
    assert mask.tolist() == [False, True]


def test_who_waits_is_told_why() -> None:
    snapshot = snapshot_of(node("a", 90, 0), node("b", 0, 0), number=12)
    said = reason(snapshot, RuleSet.of(Usage(), Gang()), "g")
    assert "1 node had too much load" in said


# --- scores --------------------------------------------------------------------------------------


def test_the_least_loaded_node_comes_first_and_stale_loads_count_nothing() -> None:
    nodes = (node("a", 30, 50), node("b", 60, 80), node("c", 0, 0, 300_001))
    assert scores(Usage(), *nodes) == [300, 150, 0]
    assert scores(Usage(cpu_weight=2, memory_weight=8), *nodes) == [270, 120, 0]
    assert scores(Usage(), nodes[2]) is None
    assert scores(Usage(weight=0), *nodes) is None
    assert scores(Usage(cpu_weight=0, memory_weight=0), *nodes) is None


@pytest.mark.parametrize(
    ("resident", "used"),
    [
        (there(SMALL, NOW_MS - 29_999), 0.07),
        (there(SMALL, NOW_MS - 30_000), 0),
        (there(SMALL, 0), 0.07),
        (there(SMALL, 1, TaskStatus.BOUND), 0.07),
        (there(SMALL, NOW_MS, TaskStatus.RELEASING), 0),
        (there(BEST_EFFORT, NOW_MS), 0.025),
    ],
)
def test_what_has_just_started_is_estimated(resident: Task, used: float) -> None:
    rule = Usage(memory_weight=0, weight=1)
    assert scores(rule, node("n", 0, 0, 0, resident)) == [100 * (1 - used)]


def test_estimates_are_raised_on_loaded_nodes_up_to_the_request() -> None:
    rule = Usage(memory_weight=0, weight=1)
    resident = there(SMALL, NOW_MS)
    assert scores(rule, node("n", 60, 0, 0, resident)) == [100 * (0.4 - 0.084)]
    raised = replace(rule, estimate=Estimate(risk_factor=9))
    assert scores(raised, node("n", 60, 0, 0, resident)) == [100 * (0.4 - 0.1)]
    assert scores(raised, node("n", 100, 0, 0, resident)) == [0]


@pytest.mark.parametrize(
    ("estimate", "load", "used"),
    [
        (Estimate(), 0, 0.07),
        (Estimate(of_burst=0.25), 0, 0.07 + 0.05),
        (Estimate(of_burst=0.25), 60, (0.07 + 0.05) * 1.2),
        (Estimate(of_request=1, of_burst=1), 0, 0.3),
        (Estimate(of_request=1, of_burst=1, risk_factor=2), 60, 0.3),
    ],
)
def test_what_limits_allow_beyond_requests_counts_in_part(
    estimate: Estimate, load: float, used: float
) -> None:
    bursting = replace(SMALL, burst=(("cpu", 2000),))
    rule = Usage(memory_weight=0, weight=1, estimate=estimate)
    there_is = node("n", load, 0, 0, there(bursting, NOW_MS))
    assert scores(rule, there_is) == [100 * (1 - load / 100 - used)]


def test_tasks_of_a_session_count_one_after_the_other() -> None:
    nodes = (node("a", 0, 0), node("b", 10, 10))
    bench = Bench.of(snapshot_of(*nodes, number=4), RuleSet.of(Usage()))
    assert sorted(bench.greedy().node_of.tolist()) == [0, 0, 0, 1]


@given(
    st.lists(st.sampled_from([SMALL, BEST_EFFORT, BURSTING]), min_size=1, max_size=12),
    st.integers(0, 100),
    st.integers(0, 100),
    st.sampled_from([0, 0.5, 1]),
)
def test_scores_follow_placements_and_come_back(
    shapes: list[TaskShape], cpu: int, memory: int, of_burst: float
) -> None:
    rule = Usage(estimate=Estimate(of_burst=of_burst))
    gangs = [gang(f"g{i}", ("w", 1, shape)) for i, shape in enumerate(shapes)]
    made = node("n", cpu, memory)
    problem = compile_problem(cluster([made], gangs, now_ms=NOW_MS))
    switch = rule.open(problem, Ledger(problem))
    assert switch is not None
    used = np.array([cpu / 100, memory / 100])
    steps = []
    for number, name in enumerate(g.name for g in problem.snapshot.gangs):
        task_class = int(problem.task_class[number])
        switch.record_placement(number, task_class, np.array([0]), np.array([1]))
        steps.append((number, task_class))
        used += estimated(rule, shapes[int(name[1:])], used.clip(0, 1))
        before = rule.class_score(problem, task_class)
        scorer = switch.live_scorer(number, task_class)
        assert before is not None
        assert scorer is not None
        expected = 500 * (1 - used.clip(0, 1)).mean()
        assert (before + scorer(ALL))[0] == pytest.approx(expected, abs=1e-6)
    for number, task_class in reversed(steps):
        switch.record_placement(number, task_class, np.array([0]), np.array([-1]))
    assert scorer(ALL)[0] == pytest.approx(0, abs=1e-6)


def estimated(rule: Usage, shape: TaskShape, used: np.ndarray) -> np.ndarray:
    """Return the load that a task adds, calculated as documented."""
    estimate, asked = rule.estimate, dict(shape.request)
    risk = estimate.risk_factor if used.mean() >= estimate.risky_from else 1.0
    size = np.array([CPU_M, MEMORY], float)
    if not asked:
        return np.array([estimate.idle_cpu_m, estimate.idle_memory]) * risk / size
    beyond = dict(shape.burst)
    request = np.array([asked["cpu"], asked["memory"]], float)
    burst = np.array([beyond.get("cpu", 0), beyond.get("memory", 0)], float)
    expected = (request * estimate.of_request + burst * estimate.of_burst) * risk
    return np.minimum(expected, request + burst) / size


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_become_the_rule() -> None:
    build = PLUGINS["usage"].build
    assert build({}) == (Usage(),)
    given = {
        "usage.weight": 2,
        "cpu.weight": 3,
        "memory.weight": 4,
        "thresholds.cpu": 70.5,
        "thresholds.mem": 90,
        "estimator.request_ratio": 0.5,
        "estimator.burst_ratio": 0.25,
        "estimator.risk_threshold": 0.4,
        "estimator.risk_factor": 2,
        "estimator.best_effort.cpu": "1",
        "estimator.best_effort.mem": "1Gi",
        "metrics.interval": "1m",
    }
    estimate = Estimate(0.5, 0.25, 0.4, 2.0, 1000, 2**30)
    assert build(given) == (Usage(2, 3, 4, 705_000, 900_000, estimate, 60_000),)
