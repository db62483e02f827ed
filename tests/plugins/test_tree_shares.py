"""Tests of the ideal allocations of queues in a tree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from optsched.api.wellknown import HIERARCHY, HIERARCHY_WEIGHTS
from optsched.cluster.snapshot import Queue
from optsched.plugins.accounting import Outcome
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.drf import Drf
from optsched.plugins.shares.fairness import ideal_parts, queue_shares
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.shares.tree_fairness import HierarchicalDrf, hierarchy
from optsched.plugins.shares.tree_shares import build_contest
from optsched.plugins.verification.world import World
from optsched.problem.compile import compile_problem
from tests.plugins.test_contract import examples
from tests.plugins.test_fairness import contests_of_queues
from tests.support.contests import contests
from tests.support.effort import num_examples
from tests.support.engines import Bench
from tests.support.small import CPU, GPU, cluster, gang, node, shape
from tests.support.trees import Tree


def queue(name: str, path: str, weights: str = "", **fields: object) -> Queue:
    marks = {HIERARCHY: path, **({HIERARCHY_WEIGHTS: weights} if weights else {})}
    return Queue(name, annotations=marks, **fields)


def wants(name: str, where: str, number: int, what):
    return gang(name, ("w", number, what), least=0, queue=where)


def ideals(snapshot) -> dict[str, tuple[float, float]]:
    """Return the ideal CPUs and GPUs by queue."""
    problem = compile_problem(snapshot)
    amounts = HierarchicalDrf().find_contest(problem).ideal
    cpu, gpu = problem.index(CPU), problem.index(GPU)
    return {
        name: (round(amounts[q, cpu] / 1000, 6), round(amounts[q, gpu], 6))
        for q, name in enumerate(problem.queues.names)
        if amounts[q].any()
    }


DEPARTMENTS = [
    queue("a1", "root/a/a1", "1/3/2"),
    queue("a2", "root/a/a2", "1/3/1"),
    queue("b1", "root/b/b1", "1/2/1"),
]


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (("a1", "a2", "b1"), {"a1": (24, 24), "a2": (12, 12), "b1": (24, 24)}),
        (("a1", "b1"), {"a1": (36, 36), "b1": (24, 24)}),
        (("a2",), {"a2": (60, 60)}),
    ],
)
def test_departments_come_first_and_then_their_teams(busy, expected):
    gangs = [wants(name, name, 60, shape(1, 1)) for name in busy]
    nodes = [node(f"n{i}", 6, gpu=6) for i in range(10)]
    assert ideals(cluster(nodes, gangs, DEPARTMENTS)) == expected


def test_what_a_team_does_not_want_stays_in_its_department():
    gangs = [wants("a1", "a1", 6, shape(1, 1))]
    gangs += [wants(name, name, 60, shape(1, 1)) for name in ("a2", "b1")]
    found = ideals(cluster([node("n0", 60, gpu=60)], gangs, DEPARTMENTS))
    assert found == {"a1": (6, 6), "a2": (30, 30), "b1": (24, 24)}


def test_who_is_blocked_neither_starves_nor_holds_up_its_department():
    """This is the blocking-nodes case of Volcano's TestHDRF."""
    queues = [queue(n, f"root/{n}", "1/25") for n in ("q1", "q2", "q4")]
    queues.append(queue("q3", "root/d/q3", "1/25/50"))
    cpu, gpu = shape(1), shape(0, 1)
    gangs = [wants("g1", "q1", 30, cpu), wants("g2", "q2", 30, cpu), wants("g4", "q4", 30, gpu)]
    gangs += [wants("g31", "q3", 30, cpu), wants("g32", "q3", 30, gpu)]
    found = ideals(cluster([node("n0", 30, gpu=30)], gangs, queues))
    assert found == {"q1": (10, 0), "q2": (10, 0), "q3": (10, 15), "q4": (0, 15)}


def test_a_department_that_holds_all_of_one_thing_still_gets_of_another():
    """Section 4.2 of the paper: only `dev` requests GPUs, and `prod` keeps its CPUs."""
    queues = [queue("dev", "root/n1/dev"), queue("prod", "root/n1/prod"), queue("ops", "root/n2")]
    gangs = [
        wants("dev", "dev", 10, shape(0, 1)),
        wants("prod", "prod", 10, shape(1)),
        wants("ops", "ops", 10, shape(1)),
    ]
    found = ideals(cluster([node("n0", 10, gpu=10)], gangs, queues))
    assert found == {"dev": (0, 10), "prod": (5, 0), "ops": (5, 0)}


def test_ceilings_and_floors_hold_in_the_ideal():
    queues = [
        queue("capped", "root/x/capped", capability=((CPU, 2000),)),
        queue("floored", "root/y/floored", guarantee=((CPU, 8000),)),
        queue("plain", "root/x/plain"),
    ]
    gangs = [wants(q.name, q.name, 12, shape(1)) for q in queues]
    found = ideals(cluster([node("n0", 12)], gangs, queues))
    assert found == {"capped": (2, 0), "floored": (8, 0), "plain": (2, 0)}


@examples(60)
@given(contests_of_queues())
def test_without_departments_it_is_the_ideal_of_flat_queues(snapshot):
    """Each queue has one gang, because a flat queue rises as a whole."""
    one_each = {g.queue: g for g in snapshot.gangs}
    snapshot = replace(
        snapshot,
        gangs=tuple(g for g in snapshot.gangs if one_each[g.queue] is g),
        queues=tuple(replace(q, guarantee=()) for q in snapshot.queues),
    )
    problem = compile_problem(snapshot)
    flat = ideal_parts(problem, RuleSet.of(Drf(), Capability()))[:, None] * problem.queues.requested
    found = HierarchicalDrf().find_contest(problem).ideal
    counted = problem.total > 0
    assert found[:, counted] == pytest.approx(flat[:, counted], rel=1e-6, abs=1e-3)


@examples(80)
@given(contests())
def test_the_verifier_finds_the_same_from_the_objects(snapshot):
    rule, problem = HierarchicalDrf(), compile_problem(snapshot)
    due = rule.deserved(problem)
    assert due is not None
    by_name = rule.deserved_by_name(World(snapshot, ()))
    assert by_name is not None
    for q, name in enumerate(problem.queues.names):
        found = [by_name[name].get(r, 0) for r in problem.resources]
        assert found == due[q].tolist(), name


@examples(60)
@given(contests())
def test_no_limit_is_broken_and_nobody_gets_more_than_is_asked(snapshot):
    problem = compile_problem(snapshot)
    ideal = HierarchicalDrf().find_contest(problem).ideal
    queues = problem.queues
    kept = np.arange(len(problem.resources)) != problem.index("pods")
    assert (ideal <= queues.requested * (1 + 1e-9) + 1e-6)[:, kept].all()
    floors = np.minimum(queues.guarantee, queues.requested)
    if not floors.any():
        free = np.maximum(problem.total - problem.foreign[problem.ready].sum(axis=0), 0)
        assert (ideal.sum(axis=0) <= free * (1 + 1e-9) + 1e-6)[kept].all()
        below = queues.subtree.astype(float) @ ideal
        assert (below <= queues.capability * (1 + 1e-9) + 1e-6).all()


def _nothing(problem) -> np.ndarray:
    return np.zeros(problem.queues.guarantee.shape)


@pytest.mark.parametrize("seed", range(num_examples(60)))
def test_what_is_due_sums_to_no_more_than_there_is(seed):
    problem = compile_problem(Tree(seed).snapshot())
    contest = build_contest(
        problem, [hierarchy(q) for q in problem.snapshot.queues], _nothing(problem)
    )
    due = contest.deserved
    assert (due.sum(axis=0) <= contest.free).all()
    assert (due <= problem.queues.requested).all()
    assert (np.abs(due - contest.ideal) <= np.maximum(problem.total // 1_000_000, 1) + 1)[
        :, np.arange(len(problem.resources)) != problem.index("pods")
    ].all()


def test_whole_gpus_are_due_by_largest_remainder():
    queues = [Queue(name) for name in "abc"]
    gangs = [wants(name, name, 16, shape(0, 1)) for name in "abc"]
    snapshot = cluster([node("n", gpu=16)], gangs, queues)
    due = HierarchicalDrf().deserved(compile_problem(snapshot))
    assert due is not None
    gpu = compile_problem(snapshot).index(GPU)
    assert due[:3, gpu].tolist() == [6, 5, 5]


def test_certificates_tell_the_ideal_of_the_tree():
    gangs = [wants(name, name, 60, shape(1, 1)) for name in ("a1", "a2", "b1")]
    rules = RuleSet.of(HierarchicalDrf())
    nodes = [node(f"n{i}", 6, gpu=6) for i in range(10)]
    bench = Bench.of(cluster(nodes, gangs, DEPARTMENTS), rules)
    found = queue_shares(Outcome(bench.problem, bench.greedy()), rules)
    expected = {"a1": 400_000, "a2": 200_000, "b1": 400_000}
    assert {s.queue: s.ideal for s in found} == expected
    assert {s.queue: s.share for s in found} == expected


def test_there_is_a_level_for_each_depth_that_tells_queues_apart():
    gangs = [wants(name, name, 60, shape(1, 1)) for name in ("a1", "a2", "b1")]
    rules = RuleSet.of(HierarchicalDrf())
    bench = Bench.of(cluster([node("n0", 60, gpu=60)], gangs, DEPARTMENTS), rules, ("fair-share",))
    assert [t.name for t in bench.levels] == ["fair share at depth 1", "fair share at depth 2"]
    alone = Bench.of(cluster([node("n0", 60)], gangs[:1], DEPARTMENTS), rules, ("fair-share",))
    assert alone.levels == []
