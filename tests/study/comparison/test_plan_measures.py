"""Tests of the measures of plans, compared with values calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import optsched
from optsched.cluster.decisions import (
    Allocate,
    Certificate,
    Evict,
    LevelResult,
    LevelStatus,
    Plan,
    Sense,
)
from optsched.cluster.node_resources import GpuShareRequest, SharedGpu
from optsched.study.comparison.plan_measures import measure_plan
from tests.support.small import cluster, gang, node, running, shape

GPU = {"cpu": "8", "nvidia.com/gpu": "4"}
LEVEL = LevelResult("a", "u", Sense.MAX, 100, 110, LevelStatus.FEASIBLE)


def certificate(*levels: LevelResult) -> Certificate:
    return Certificate(levels, "greedy", 0.0, "")


def test_what_is_placed_is_counted() -> None:
    snapshot = optsched.snapshot(
        [optsched.node(name, {"cpu": "32", "nvidia.com/gpu": "8"}) for name in "abc"],
        [
            optsched.gang("x", 3, GPU, queue="one"),
            optsched.gang("y", 1, GPU, queue="two"),
            optsched.gang("z", 9, GPU, queue="two"),
        ],
        [optsched.queue("one", weight=3), optsched.queue("two")],
    )
    found = measure_plan(snapshot, optsched.solve(snapshot, "volcano-compatible"))
    assert (found.gangs, found.pods, found.waiting, found.victims) == (2, 4, 1, 0)
    assert found.nodes == 2
    assert found.allocation == pytest.approx(16 / 24)
    assert (found.largest_share, found.least_share) == (pytest.approx(0.5), pytest.approx(1 / 6))
    # The shares by weight are 1/6 and 1/6.
    assert found.jain == pytest.approx(1.0)
    # Every typical pod takes 4 GPUs, and the free node has capacity for it.
    assert found.fragmentation == 0.0
    assert (found.topology_tier, found.cross_leaf_pairs) == (None, None)


def test_victims_leave_and_those_that_move_stay() -> None:
    waits = gang("v", ("w", 3, shape(2)))
    there = replace(waits, tasks=tuple(running(task, "a") for task in waits.tasks))
    snapshot = cluster([node("a", 8), node("b", 8)], [there, gang("g", ("w", 1, shape(1)))])
    keys = [task.key for task in snapshot.nodes[0].residents]
    actions = (
        Evict(keys[0], "a", "preempt", "ns/g"),
        Evict(keys[1], "a", "consolidate", "ns/g", "b"),
    )
    found = measure_plan(snapshot, Plan(actions, certificate(LEVEL)))
    assert (found.victims, found.moved, found.nodes) == (1, 1, 2)
    assert found.allocation == pytest.approx(4 / 16)
    assert found.fragmentation is None
    assert found.gap == pytest.approx(0.1)


def test_vgpus_are_counted_by_the_larger_of_their_parts() -> None:
    shared = node("a", 8, shared_gpus=(SharedGpu("0", 40_000), SharedGpu("1", 40_000)))
    half = gang("g", ("w", 1, shape(1, shared_gpus=(GpuShareRequest(1, memory=4_000, cores=50),))))
    snapshot = cluster([shared, node("b", 8, gpu=2)], [half])
    found = measure_plan(snapshot, Plan((Allocate("ns/g-w-0", "a", "ns/g"),), certificate(LEVEL)))
    assert found.allocation == pytest.approx(500 / 4000)


def test_a_level_without_a_bound_has_no_gap() -> None:
    snapshot = cluster([node("a", 8)], [])
    open_level = LevelResult("b", "u", Sense.MIN, 3, None, LevelStatus.FEASIBLE)
    assert measure_plan(snapshot, Plan((), certificate(LEVEL, open_level))).gap is None
    assert measure_plan(snapshot, Plan((), certificate())).gap is None
