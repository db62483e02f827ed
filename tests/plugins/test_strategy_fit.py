"""Tests of strategies by resource, compared with scores calculated by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.registry import PLUGINS
from optsched.plugins.scores.packing import (
    SCORING_TYPE,
    SCORING_WEIGHT,
    Share,
    Strategy,
    StrategyFit,
    requested_shares,
)
from optsched.problem.compile import compile_problem
from tests.support.small import CPU, GPU, cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Node

MOST, LEAST = Strategy.MOST, Strategy.LEAST
BOTH = ((CPU, Share(LEAST, 1)), (GPU, Share(MOST, 3)))


def busy(name: str, cpu: int, gpu: int, used_cpu: int = 0, used_gpu: int = 0) -> Node:
    used = tuple((r, a) for r, a in ((CPU, used_cpu * 1000), (GPU, used_gpu)) if a)
    there = Task("kube-system/busy", TaskShape(used), TaskStatus.RUNNING, node=name)
    return replace(node(name, cpu, gpu), residents=(there,) if used else ())


def scores(rule: StrategyFit, what: TaskShape, *nodes: Node) -> list[float]:
    problem = compile_problem(cluster(nodes, [gang("g", ("w", 1, what))]))
    total = np.zeros(len(nodes))
    scorer, base = rule.scorer(problem, 0), rule.class_score(problem, 0)
    if scorer is not None:
        total += scorer(problem.used, problem.allocatable)
    return (total if base is None else total + base).tolist()


# --- how resources are used ----------------------------------------------------------------------


def test_one_resource_is_spread_and_another_filled() -> None:
    rule = StrategyFit(1, BOTH)
    # CPU gives 1 − (2 + 2)/8 = 0.5; GPUs give (1 + 1)/4 = 0.5 and (3 + 1)/4 = 1.
    nodes = busy("a", 8, 4, 2, 1), busy("b", 8, 4, 2, 3)
    assert scores(rule, shape(2, 1), *nodes) == pytest.approx([50.0, 87.5])
    assert scores(replace(rule, weight=10), shape(2, 1), *nodes) == pytest.approx([500.0, 875.0])


def test_only_what_is_asked_for_counts() -> None:
    assert scores(StrategyFit(1, BOTH), shape(2), busy("a", 8, 4, 2, 3)) == pytest.approx([50.0])
    assert scores(StrategyFit(1, ((GPU, Share()),)), shape(2), busy("a", 8, 4)) == [0.0]


def test_a_node_without_a_resource_has_no_part_of_it() -> None:
    assert scores(StrategyFit(1, BOTH), shape(2, 1), node("a", 8)) == pytest.approx([0.75 * 25])


def test_a_node_that_is_too_small_has_nothing() -> None:
    assert scores(StrategyFit(1, BOTH), shape(4, 1), busy("a", 8, 4, 5)) == [0.0]


def test_without_weight_nothing_is_scored() -> None:
    assert scores(StrategyFit(0, BOTH), shape(2, 1), node("a", 8, 4)) == [0.0]


# --- which resources count -----------------------------------------------------------------------


def asked(shares: dict[str, Share], notes: dict[str, str] | None = None) -> dict[str, Share]:
    amounts = (("a.com/x-1", 1), ("a.com/y", 1), ("cpu", 1))
    what = TaskShape(amounts, notes=tuple(sorted((notes or {}).items())))
    return dict(requested_shares(tuple(shares.items()), what))


def test_the_longest_pattern_counts_and_a_full_name_comes_before_it() -> None:
    one, two, three = Share(weight=1), Share(weight=2), Share(weight=3)
    assert asked({"a.com/*": one, "a.com/x*": two}) == {"a.com/x-1": two, "a.com/y": one}
    assert asked({"a.com/*": one, "a.com/y": three})["a.com/y"] == three


def test_a_pod_may_give_all_resources_one_strategy() -> None:
    found = asked({"cpu": Share(LEAST, 2)}, {SCORING_TYPE: "MostAllocated"})
    assert found == {"cpu": Share(MOST, 2)}


def test_a_pod_may_name_what_counts_for_it() -> None:
    notes = {SCORING_WEIGHT: '{"a.com/y": 5, "cpu": 1, "memory": 9}'}
    assert asked({"cpu": Share(MOST, 2)}, notes) == {
        "a.com/y": Share(LEAST, 5),
        "cpu": Share(MOST, 1),
    }


@pytest.mark.parametrize("text", ["{", "[1]", '{"cpu": "2"}', '{"cpu": 0}'])
def test_what_has_no_reading_is_passed_over(text: str) -> None:
    notes = {SCORING_WEIGHT: text, SCORING_TYPE: "Medium"}
    assert asked({"cpu": Share(MOST, 2)}, notes) == {"cpu": Share(MOST, 2)}


# --- scarce resources ----------------------------------------------------------------------------

OTHER = "b.com/npu"
SCARCE = StrategyFit(0, (), ((GPU, 1), (OTHER, 3)), 2)


def test_nodes_without_scarce_resources_are_preferred() -> None:
    rich = replace(node("c", 4, 2), allocatable=((OTHER, 1), (CPU, 4000), (GPU, 2), ("pods", 10)))
    nodes = node("a", 4), node("b", 4, 2), rich
    assert scores(SCARCE, shape(1), *nodes) == [200.0, 150.0, 0.0]
    assert scores(SCARCE, shape(1, 1), *nodes) == [0.0, 150.0, 0.0]


def test_scarcity_needs_a_weight() -> None:
    assert scores(replace(SCARCE, scarce_weight=0), shape(1), node("a", 4)) == [0.0]


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_become_rules() -> None:
    build = PLUGINS["resource-strategy-fit"].build
    assert build is not None
    assert build({}) == (StrategyFit(),)
    (rule,) = build(
        {
            "resourceStrategyFitWeight": 3,
            "resources.nvidia.com/gpu.type": "MostAllocated",
            "resources.nvidia.com/gpu.weight": 2,
            "resources.cpu.weight": 4,
            "sra.enable": True,
            "sra.resources": "a, b",
            "sra.weight": 5,
            "sra.resourceWeight.b": 6,
        }
    )
    gpu_and_cpu = ((GPU, Share(MOST, 2)), (CPU, Share(LEAST, 4)))
    assert rule == StrategyFit(3, gpu_and_cpu, (("a", 1), ("b", 6)), 5)
