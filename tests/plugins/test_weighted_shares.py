"""Tests of shares by weight: one exact definition for the engine and the verifier."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from optsched.cluster.relocation import relocate, with_terminating
from optsched.cluster.snapshot import Gang, Queue, Snapshot
from optsched.cluster.task import Task, TaskStatus
from optsched.plugins.shares.proportion import deserved_shares, own_shares
from optsched.plugins.shares.shares_by_name import shares_by_name
from optsched.plugins.shares.weighted_shares import divide_by_weight, sum_supply
from optsched.plugins.verification.world import World
from optsched.problem.compile import compile_problem
from tests.support.effort import num_examples
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape
from tests.support.trees import Tree, changed_by_victims, disagreements

BATCH = 25


def shares(snapshot: Snapshot, resource: str) -> dict[str, int]:
    """Return the deserved amounts of each queue's gangs; engine and verifier must agree."""
    problem = compile_problem(snapshot)
    assert disagreements(snapshot) == []
    column = own_shares(problem)[:, problem.index(resource)].tolist()
    return {n: d for n, d in zip(problem.queues.names, column, strict=True) if d}


def gpus(queue: str, number: int, *, created_ms: int = 0, held: int = 0) -> Gang:
    made = gang(f"in-{queue}", ("w", number, shape(0, gpu=1)), least=1, queue=queue)
    tasks = [running(t, "n") if i < held else t for i, t in enumerate(made.tasks)]
    return replace(made, tasks=tuple(tasks), created_ms=created_ms)


def stranger(name: str, where: str, what: object) -> Task:
    return Task(f"other/{name}", what, TaskStatus.RUNNING, node=where)  # type: ignore[arg-type]


# --- whole devices -------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "expected"), [(16, [6, 5, 5]), (4, [2, 1, 1]), (2, [1, 1])])
def test_whole_devices_follow_the_largest_remainder(total: int, expected: list[int]) -> None:
    gangs = [gpus(name, 16) for name in "abc"]
    found = shares(cluster([node("n", gpu=total)], gangs, [Queue(n) for n in "abc"]), GPU)
    assert list(found.values()) == expected


def test_larger_remainders_come_before_smaller_ones() -> None:
    # Of 10 GPUs, weights 7, 3 and 2 give 5.83, 2.5 and 1.67.
    queues = [Queue("a", weight=3), Queue("b", weight=7), Queue("c", weight=2)]
    snapshot = cluster([node("n", gpu=10)], [gpus(q.name, 10) for q in queues], queues)
    assert shares(snapshot, GPU) == {"a": 2, "b": 6, "c": 2}


def test_of_equal_remainders_that_of_the_queue_comes_first_that_holds_the_device() -> None:
    gangs = [gpus("a", 1, created_ms=1), gpus("b", 1, created_ms=2, held=1)]
    snapshot = cluster([node("n", gpu=1)], gangs, [Queue("a"), Queue("b")])
    assert shares(snapshot, GPU) == {"b": 1}


def test_then_that_of_the_queue_whose_gang_is_the_oldest() -> None:
    gangs = [gpus("a", 1, created_ms=2), gpus("b", 1, created_ms=1)]
    snapshot = cluster([node("n", gpu=1)], gangs, [Queue("a"), Queue("b")])
    assert shares(snapshot, GPU) == {"b": 1}


def test_departments_hand_whole_devices_down() -> None:
    queues = [Queue("a"), Queue("b"), Queue("c"), *(Queue(f"a{i}", parent="a") for i in range(2))]
    gangs = [gpus(name, 16) for name in ("a0", "a1", "b", "c")]
    found = shares(cluster([node("n", gpu=16)], gangs, queues), GPU)
    assert found == {"a0": 3, "a1": 3, "b": 5, "c": 5}


# --- bounds --------------------------------------------------------------------------------------


def test_guarantees_count_within_what_there_is() -> None:
    queues = [Queue("a", guarantee=((CPU, 6000),)), Queue("b"), Queue("c")]
    gangs = [gang(f"in-{n}", ("w", 10, shape(1)), least=1, queue=n) for n in "abc"]
    assert shares(cluster([node("n", 10)], gangs, queues), CPU) == {"a": 6000, "b": 2000, "c": 2000}


def test_what_is_guaranteed_to_idle_queues_is_taken_off_first() -> None:
    queues = [Queue("a"), Queue("b"), Queue("idle", guarantee=((CPU, 4000),))]
    gangs = [gang(f"in-{n}", ("w", 10, shape(1)), least=1, queue=n) for n in "ab"]
    assert shares(cluster([node("n", 10)], gangs, queues), CPU) == {"a": 3000, "b": 3000}


def test_guarantees_that_do_not_fit_are_filled_by_weight() -> None:
    assert divide_by_weight(10, [(1, 8, 9), (1, 8, 9)], lambda i, _: (False, 0, i)) == [5, 5]


# --- pods of other schedulers --------------------------------------------------------------------


def test_pods_of_other_schedulers_are_taken_off_before_shares_are_made() -> None:
    gangs = [gang(f"in-{n}", ("w", 8, shape(1)), least=1, queue=n) for n in "ab"]
    queues = [Queue("a"), Queue("b")]
    hosts = [node("m", 8, residents=(stranger("x", "m", shape(6)),)), node("n", 8)]
    assert shares(cluster(hosts, gangs, queues), CPU) == {"a": 5000, "b": 5000}


def test_an_overcommitted_node_takes_nothing_from_others() -> None:
    gangs = [gang(f"in-{n}", ("w", 8, shape(1)), least=1, queue=n) for n in "ab"]
    hosts = [node("m", 2, residents=(stranger("x", "m", shape(6)),)), node("n", 8)]
    snapshot = cluster(hosts, gangs, [Queue("a"), Queue("b")])
    assert shares(snapshot, CPU) == {"a": 4000, "b": 4000}


# --- victims -------------------------------------------------------------------------------------


def test_victims_of_the_session_still_count_as_demand() -> None:
    gangs = [gpus("a", 4, held=4), gpus("b", 4)]
    snapshot = cluster([node("n", gpu=4)], gangs, [Queue("a"), Queue("b")])
    gone = {t.key for t in gangs[0].tasks[:3]}
    assert (
        shares(with_terminating(snapshot, gone), GPU) == shares(snapshot, GPU) == {"a": 2, "b": 2}
    )


def test_pods_that_terminate_already_do_not() -> None:
    mine = gpus("a", 4, held=4)
    ending = tuple(replace(t, status=TaskStatus.RELEASING) for t in mine.tasks[:3])
    gangs = [replace(mine, tasks=(*ending, *mine.tasks[3:])), gpus("b", 4)]
    snapshot = cluster([node("n", gpu=4)], gangs, [Queue("a"), Queue("b")])
    assert shares(snapshot, GPU) == {"a": 1, "b": 3}


def test_a_pod_that_moves_counts_once() -> None:
    snapshot = cluster(
        [node("m", gpu=2), node("n", gpu=2)],
        [gpus("a", 1, held=1), gpus("b", 4)],
        [Queue("a"), Queue("b")],
    )
    after = relocate(with_terminating(snapshot, {"ns/in-a-w-0"}), {"ns/in-a-w-0": "m"})
    assert shares(after, GPU) == shares(snapshot, GPU) == {"a": 1, "b": 3}


# --- many ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", range(num_examples(8)))
def test_engine_and_verifier_agree_to_the_unit(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        tree = Tree(seed)
        snapshot = tree.snapshot()
        assert disagreements(snapshot) == [], seed
        assert changed_by_victims(tree, snapshot) == [], seed


@pytest.mark.parametrize("batch", range(num_examples(4)))
def test_shares_of_a_resource_sum_to_no_more_than_there_is(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        problem = compile_problem(Tree(seed).snapshot())
        own, whole, queues = own_shares(problem), deserved_shares(problem), problem.queues
        assert (own.sum(axis=0) <= sum_supply(problem)).all(), seed
        below = np.where(np.eye(len(own), dtype=np.bool_), 0, queues.subtree)
        root = np.array([name == "root" for name in queues.names])
        assert (below @ own + own <= whole)[~root].all(), seed
        assert (whole <= queues.capability)[~root].all(), seed
        most = np.maximum(queues.requested, queues.guarantee)
        assert (own <= most).all(), seed


@pytest.mark.parametrize("seed", range(num_examples(200)))
def test_shares_are_the_exact_ones_rounded_to_a_unit(seed: int) -> None:
    """The test finds the exact level by bisection with fractions."""
    rng = np.random.default_rng(seed)
    takers = []
    for _ in range(int(rng.integers(1, 12))):
        floor = int(rng.integers(30)) * int(rng.random() < 0.4)
        weight = int(rng.choice([1, 1, 2, 3, 1000, 65_535]))
        takers.append((weight, floor, floor + int(rng.integers(60))))
    total = int(rng.integers(200))
    found = divide_by_weight(total, takers, lambda i, _: (False, 0, i))
    floors, ceilings = sum(f for _, f, _ in takers), sum(c for _, _, c in takers)
    assert sum(found) == min(total, ceilings)
    if floors <= total <= ceilings:
        exact = exact_shares(total, takers)
        for share, level, (_, floor, ceiling) in zip(found, exact, takers, strict=True):
            assert floor <= share <= ceiling
            assert int(level) <= share <= -(-level // 1)
            assert share == level or level.denominator > 1


def exact_shares(total: int, takers: list[tuple[int, int, int]]) -> list[Fraction]:
    """Return the shares λ·weight within bounds, by testing all levels at which a bound is met."""

    def at(level: Fraction) -> list[Fraction]:
        return [min(max(level * w, Fraction(f)), Fraction(c)) for w, f, c in takers]

    levels = sorted({Fraction(n, w) for w, f, c in takers for n in (f, c)} | {Fraction(0)})
    below = max(level for level in levels if sum(at(level)) <= total)
    above = [level for level in levels if level > below]
    low, high = at(below), at(above[0]) if above else at(below)
    rise = sum(high) - sum(low)
    part = (total - sum(low)) / rise if rise else Fraction(0)
    return [a + part * (b - a) for a, b in zip(low, high, strict=True)]


def test_names_of_missing_queues_are_no_queues() -> None:
    snapshot = cluster([node("n", 4)], [gang("g", ("w", 1, shape(1)), queue="none")])
    assert shares_by_name(World(snapshot, ())).own == {}
