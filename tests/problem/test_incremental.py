"""Compiling from the previous problem equals compiling from scratch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.selectors import Operator, Requirement
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.nodes.node_filters import HostPorts, NodeAffinity, Taints
from optsched.plugins.objectives.levels import LEVELS, build_levels
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.scores.packing import Binpack
from optsched.plugins.shares.drf import Drf
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.plugins.topology.spread import Spread
from optsched.problem.compile import compile_problem
from optsched.problem.tiers import priority_tiers
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from optsched.solver.portfolio import evaluate_greedy
from tests.support.changes import history
from tests.support.small import ZONE, cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.decisions import LevelResult
    from optsched.problem.problem import Problem

RULES = RuleSet.of(
    *(Gang(), Priority(), Drf(), Proportion(), Capability(), Guarantee(), Binpack()),
    *(NodeAffinity(), Taints(), HostPorts(), PodAffinity(), Spread()),
)
ZONED = Requirement(ZONE, Operator.IN, ("a",))


def in_words(problem: Problem, resources: tuple[str, ...]) -> dict[str, object]:
    """Return the contents of a problem for some resources, whatever their positions."""
    places = [problem.resources.index(r) for r in resources]

    def amounts(table: np.ndarray) -> list[list[int]]:
        return table[:, places].tolist()

    nodes = (problem.allocatable, problem.used, problem.releasing, problem.foreign)
    queues, relations, topology = problem.queues, problem.relations, problem.topology
    return {
        "nodes": [amounts(table) for table in nodes],
        "ready": problem.ready.tolist(),
        "classes": (problem.classes.shapes, problem.classes.relations, problem.classes.queues),
        "labels": problem.classes.labels,
        "requests": amounts(problem.classes.request),
        "num_pending": problem.classes.num_pending.tolist(),
        "shapes": problem.shapes.shapes,
        "least": amounts(problem.shapes.least),
        "shape_of": problem.shape_of.tolist(),
        "tasks": [t.key for t in problem.tasks],
        "task_class": problem.task_class.tolist(),
        "gang_of": problem.gang_of.tolist(),
        "blocked": {g: str(why) for g, why in problem.blocked.items()},
        "gangs": [problem.priority, problem.num_ready, problem.min_member, problem.queue_of],
        "queues": [
            queues.parent_of,
            queues.weight,
            queues.priority,
            queues.has_gangs,
            queues.oldest_ms,
        ],
        "closed": {q: str(why) for q, why in queues.closed.items()},
        "limits": [amounts(t) for t in (queues.capability, queues.deserved, queues.guarantee)],
        "use": [amounts(t) for t in (queues.allocated, queues.claimed, queues.requested)],
        "terms": relations.terms,
        "standing": [relations.domain_of, relations.selected, relations.carried],
        "ports": (relations.ports, relations.port_taken.tolist()),
        "forests": [
            [f.label, f.names, f.tier, f.parent, f.end, f.leaf_of] for f in topology.forests
        ],
        "cells": [topology.cell_of, topology.num_cells],
        "bounds": [
            [b.forest, b.allowed, b.is_hard, b.held, str(b.request), str(b.problem)]
            for bounds in topology.bounds
            for b in bounds.existing
        ],
        "columns": [problem.columns.accepts(ZONED), problem.columns.taints()[0]],
    }


def decided(problem: Problem) -> tuple[object, tuple[LevelResult, ...]]:
    """Return the pipeline's decisions for a problem, and the values of their levels."""
    tiers = priority_tiers(problem, problem.priority, 60_000)
    options = GreedyOptions(tier_of=tiers.of, gated=False)
    decisions = run_greedy(problem, RULES, options)
    levels = build_levels(problem, RULES, tiers, list(LEVELS))
    arrays = decisions.node_of, decisions.nominated, decisions.enqueued
    return [a.tolist() for a in arrays], evaluate_greedy(problem, decisions, levels, "").results


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("seed", range(25))
def test_step_by_step_is_from_scratch(seed: int) -> None:
    previous: Problem | None = None
    for step, snapshot in enumerate(history(np.random.default_rng(seed), 12)):
        scratch = compile_problem(snapshot)
        previous = compile_problem(snapshot, previous)
        wanted, got = (in_words(p, scratch.resources) for p in (scratch, previous))
        assert [name for name in wanted if not same(wanted[name], got[name])] == [], step
        assert decided(previous) == decided(scratch), step


def test_any_earlier_problem_will_do() -> None:
    snapshots = list(history(np.random.default_rng(99), 8))
    first = compile_problem(snapshots[0])
    for snapshot in snapshots:
        scratch = compile_problem(snapshot)
        later = compile_problem(snapshot, first)
        wanted, got = (in_words(p, scratch.resources) for p in (scratch, later))
        assert [name for name in wanted if not same(wanted[name], got[name])] == []


# --- what does not change is not made again ------------------------------------------------------

NODES = [node(f"n{i}", labels={ZONE: "ab"[i % 2]}) for i in range(4)]
SNAPSHOT = cluster(NODES, [gang(f"g{i}", ("w", 2, shape(1))) for i in range(4)])


def test_nothing_changes_nothing_is_made() -> None:
    first = compile_problem(SNAPSHOT)
    second = compile_problem(replace(SNAPSHOT, taken_ms=5), first)
    assert second.allocatable is first.allocatable
    assert second.used is first.used
    assert all(a is b for a, b in zip(first.rows, second.rows, strict=True))


def test_rows_of_gangs_that_stay_are_kept() -> None:
    first = compile_problem(SNAPSHOT)
    gangs = (*SNAPSHOT.gangs[:1], *SNAPSHOT.gangs[2:], gang("new", ("w", 2, shape(1))))
    second = compile_problem(replace(SNAPSHOT, gangs=gangs), first)
    kept = {r.gang.key: r for r in first.rows}
    assert [r.gang.key for r in second.rows if kept.get(r.gang.key) is not r] == ["ns/new"]


def test_only_changed_nodes_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from optsched.problem import compile as module

    first = compile_problem(SNAPSHOT)
    read: list[str] = []
    fresh = module._fresh_amounts

    def listening(nodes, resources):
        read.extend(n.name for n in nodes)
        return fresh(nodes, resources)

    monkeypatch.setattr(module, "_fresh_amounts", listening)
    nodes = (*SNAPSHOT.nodes[:2], replace(SNAPSHOT.nodes[2], ready=False), SNAPSHOT.nodes[3])
    second = compile_problem(replace(SNAPSHOT, nodes=nodes), first)
    assert read == ["n2"]
    assert not second.allocatable[2].any()
    assert first.allocatable[2].any()


def test_columns_are_kept_while_marks_are_the_same() -> None:
    first = compile_problem(SNAPSHOT)
    asked = first.columns.accepts(ZONED)
    smaller = replace(SNAPSHOT.nodes[0], allocatable=(("cpu", 1000),))
    same_marks = compile_problem(replace(SNAPSHOT, nodes=(smaller, *SNAPSHOT.nodes[1:])), first)
    assert same_marks.columns.accepts(ZONED) is asked
    moved = replace(SNAPSHOT.nodes[0], labels={ZONE: "b"})
    other_marks = compile_problem(replace(SNAPSHOT, nodes=(moved, *SNAPSHOT.nodes[1:])), first)
    assert other_marks.columns.accepts(ZONED).tolist() == [False, False, True, False]


def test_resources_that_nobody_mentions_any_more_keep_their_place() -> None:
    licensed = replace(SNAPSHOT, gangs=(gang("g", ("w", 1, shape(1, gpu=1))),))
    first = compile_problem(licensed)
    second = compile_problem(SNAPSHOT, first)
    assert second.resources == first.resources == ("pods", "cpu", "memory", "nvidia.com/gpu")
