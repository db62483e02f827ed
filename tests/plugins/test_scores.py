"""Tests of the scores of nodes, compared with values calculated by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.selectors import (
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.objectives.levels import NodeScore
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.scores.nodeorder import NodeOrder
from optsched.plugins.scores.packing import Binpack
from optsched.problem.compile import compile_problem
from tests.support.engines import Bench
from tests.support.small import CPU, GPU, ZONE, cluster, gang, node

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.plugins.extension_points import Rule

MEMORY, GIB = "memory", 1 << 30


def machine(name: str, cpu: int, gib: int, used_cpu: int = 0, used_gib: int = 0, **more) -> Node:
    """Return a node, partly in use by a pod of another scheduler."""
    busy = Task(
        "kube-system/busy",
        TaskShape(((CPU, used_cpu * 1000), (MEMORY, used_gib * GIB))),
        TaskStatus.RUNNING,
        node=name,
    )
    residents = (busy,) if used_cpu or used_gib else ()
    offered = ((CPU, cpu * 1000), (MEMORY, gib * GIB), (GPU, 8), ("pods", 110))
    return replace(node(name, **more), allocatable=tuple(sorted(offered)), residents=residents)


def asking(cpu: int, gib: int, gpu: int = 0, **fields) -> Snapshot:
    asked = ((CPU, cpu * 1000), (MEMORY, gib * GIB), (GPU, gpu))
    what = TaskShape(tuple((r, a) for r, a in asked if a), **fields)
    return gang("g", ("w", 1, what))


def scores(rule: Rule, nodes: list[Node], asks) -> list[float]:
    """Return the score of each node for one task of the gang."""
    problem = compile_problem(cluster(nodes, [asks]))
    total = np.zeros(len(nodes))
    scorer, base = rule.scorer(problem, 0), rule.class_score(problem, 0)
    if scorer is not None:
        total += scorer(problem.used, problem.allocatable)
    if base is not None:
        total += base
    return total.tolist()


# --- binpack -------------------------------------------------------------------------------------
# Volcano: Σ w·(used + request)/allocatable / Σ w · 100 · weight, over the resources asked for.

HALF_FULL = machine("n0", 10, 20, used_cpu=5, used_gib=5)


@pytest.mark.parametrize(
    ("rule", "score"),
    [
        (Binpack(), 60.0),  # CPU is (5+2)/10 = 0.7, memory (5+5)/20 = 0.5
        (Binpack(weight=10), 600.0),
        (Binpack(resources={CPU: 3, MEMORY: 1}), 65.0),  # (3·0.7 + 0.5) / 4
        (Binpack(resources={CPU: 1, MEMORY: 0}), 70.0),
        (Binpack(weight=0), 0.0),
        (Binpack(resources={}), 0.0),
    ],
)
def test_binpack_prefers_what_will_be_full(rule: Binpack, score: float) -> None:
    assert scores(rule, [HALF_FULL], asking(2, 5)) == pytest.approx([score])


def test_binpack_looks_at_the_resources_that_are_asked_for() -> None:
    assert scores(Binpack(), [HALF_FULL], asking(2, 0)) == pytest.approx([70.0])


def test_binpack_gives_nothing_to_a_node_that_is_too_small_for_what_counts() -> None:
    assert scores(Binpack(), [HALF_FULL], asking(6, 5)) == [0.0]
    full = replace(HALF_FULL, allocatable=((CPU, 10_000), (MEMORY, 20 * GIB), ("pods", 110)))
    assert scores(Binpack(resources={GPU: 1}), [full], asking(2, 5, 2)) == [0.0]
    assert scores(Binpack(), [full], asking(2, 5, 2)) == pytest.approx([60.0])


def test_binpack_counts_gpus_where_it_is_told_to() -> None:
    with_gpus = Binpack(resources={CPU: 1, MEMORY: 1, GPU: 2})
    # CPU is 0.7, memory 0.5, and GPUs 2 of 8: (0.7 + 0.5 + 2·0.25) / 4.
    assert scores(with_gpus, [HALF_FULL], asking(2, 5, 2)) == pytest.approx([42.5])
    assert scores(Binpack(), [HALF_FULL], asking(2, 5, 2)) == pytest.approx([60.0])


def test_binpack_has_no_say_about_best_effort() -> None:
    problem = compile_problem(cluster([HALF_FULL], [gang("g", ("w", 1, TaskShape(())))]))
    assert Binpack().scorer(problem, 0) is None


# --- nodeorder -----------------------------------------------------------------------------------

OFF = {
    "least_requested": 0,
    "most_requested": 0,
    "balanced_resource": 0,
    "node_affinity": 0,
    "taint_toleration": 0,
}


def only(**weights: int) -> NodeOrder:
    return NodeOrder(**{**OFF, **weights})


def test_least_requested_prefers_what_will_be_free() -> None:
    # 30 % of CPU and 50 % of memory are idle; upstream truncates each part and the mean.
    assert scores(only(least_requested=1), [HALF_FULL], asking(2, 5)) == [40.0]
    assert scores(only(least_requested=3), [HALF_FULL], asking(2, 5)) == [120.0]
    thirds = machine("n0", 3, 3)
    assert scores(only(least_requested=1), [thirds], asking(1, 2)) == [49.0]  # (66 + 33) // 2


def test_most_requested_prefers_what_will_be_full() -> None:
    assert scores(only(most_requested=1), [HALF_FULL], asking(2, 5)) == [60.0]


def test_balanced_resource_prefers_cpu_and_memory_alike() -> None:
    # The deviation is half the distance between 0.7 and 0.5: 100·(1 − 0.1).
    assert scores(only(balanced_resource=1), [HALF_FULL], asking(2, 5)) == [90.0]
    assert scores(only(balanced_resource=1), [machine("n0", 4, 4)], asking(2, 2)) == [100.0]


def test_more_than_there_is_counts_as_full() -> None:
    tiny = machine("n0", 1, 1)
    assert scores(only(least_requested=1), [tiny], asking(4, 4)) == [0.0]
    assert scores(only(most_requested=1), [tiny], asking(4, 4)) == [100.0]


IN_A = NodeTerm((Requirement(ZONE, Operator.IN, ("a",)),))
IN_B = NodeTerm((Requirement(ZONE, Operator.IN, ("b",)),))
ZONES = [machine(f"n{z}", 4, 4, labels={ZONE: z}) for z in "abc"]


def test_preferred_node_affinity_is_scaled_to_the_best_node() -> None:
    asks = asking(1, 1, preferred_nodes=((30, IN_A), (10, IN_B)))
    assert scores(only(node_affinity=2), ZONES, asks) == [200.0, 66.0, 0.0]


def test_preferences_that_no_node_meets_change_nothing() -> None:
    asks = asking(1, 1, preferred_nodes=((5, IN_A),))
    assert scores(only(node_affinity=1), ZONES[1:], asks) == [0.0, 0.0]


def soft(*keys: str) -> tuple[Taint, ...]:
    return tuple(Taint(k, "", TaintEffect.PREFER_NO_SCHEDULE) for k in keys)


def test_nodes_with_soft_taints_are_shunned() -> None:
    nodes = [
        machine("n0", 4, 4),
        machine("n1", 4, 4, taints=soft("x")),
        machine("n2", 4, 4, taints=soft("x", "y")),
    ]
    assert scores(only(taint_toleration=3), nodes, asking(1, 1)) == [300.0, 150.0, 0.0]
    tolerant = asking(1, 1, tolerations=(Toleration("y", exists=True),))
    assert scores(only(taint_toleration=3), nodes, tolerant) == [300.0, 0.0, 0.0]


def test_hard_taints_are_no_matter_of_taste() -> None:
    hard = (Taint("x", "", TaintEffect.NO_SCHEDULE),)
    problem = compile_problem(cluster([machine("n0", 4, 4, taints=hard)], [asking(1, 1)]))
    assert NodeOrder().class_score(problem, 0) is None


def test_defaults_are_volcanos() -> None:
    # LeastRequested gives 40 points and balance 90; affinity and taints contribute 0 here.
    assert scores(NodeOrder(), [HALF_FULL], asking(2, 5)) == [130.0]


# --- the level -----------------------------------------------------------------------------------


def test_the_level_adds_up_scores_as_the_session_opens() -> None:
    nodes = [machine("n0", 10, 10, used_cpu=5, used_gib=5), machine("n1", 10, 10)]
    made = gang("g", ("w", 2, TaskShape(((CPU, 1000), (MEMORY, GIB)))))
    bench = Bench.of(cluster(nodes, [made]), RuleSet.of(Binpack()), ("node-score",))
    (level,) = bench.levels
    assert isinstance(level, NodeScore)
    assert level.node_values(bench.problem).tolist() == [[60, 10]]
    assert level.ideal(bench.problem) == 120
    answer = bench.improved(bench.decisions({"ns/g-w-0": "n1", "ns/g-w-1": "n1"}))
    # All tasks are placed already, but the solver still runs.
    assert [r.value for r in answer.results] == [120]


def test_without_rules_that_score_there_is_no_level() -> None:
    bench = Bench.of(cluster(ZONES, [asking(1, 1)]), RuleSet.of(), ("node-score",))
    assert bench.levels == []
