"""Tests of shares by weight: Volcano's water-filling in whole units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import TaskShape
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.proportion import Proportion, deserved_shares, own_shares
from optsched.plugins.shares.shares_by_name import shares_by_name
from optsched.plugins.verification.world import World
from optsched.problem.compile import compile_problem
from tests.support.engines import Bench, binds, placed_by_gang, reason
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

RULES = RuleSet.of(GangRule(), Proportion())


def gpus(queue: str, number: int, least: int = 1) -> Gang:
    return gang(f"in-{queue}", ("w", number, shape(0, gpu=1)), least=least, queue=queue)


def cpus(queue: str, number: int) -> Gang:
    return gang(f"in-{queue}", ("w", number, shape(1)), least=1, queue=queue)


def deserved(snapshot: Snapshot, resource: str) -> dict[str, int]:
    """Return the deserved amounts of queues; the arrays and the verifier must agree."""
    problem = compile_problem(snapshot)
    names, r = problem.queues.names, problem.index(resource)
    arrays = [deserved_shares(problem)[:, r].tolist(), own_shares(problem)[:, r].tolist()]
    again = shares_by_name(World(snapshot, ()))
    for column, by_name in zip(arrays, (again.whole, again.own), strict=True):
        by_array = {n: d for n, d in zip(names, column, strict=True) if d}
        assert by_array == {n: s[resource] for n, s in by_name.items() if s.get(resource)}
    return {n: d for n, d in zip(names, arrays[0], strict=True) if d}


# --- shares --------------------------------------------------------------------------------------


def test_four_to_two_to_one_of_28_gpus() -> None:
    nodes = [node(f"n{i}", 64, gpu=7) for i in range(4)]
    queues = [Queue("a", weight=4), Queue("b", weight=2), Queue("c", weight=1)]
    snapshot = cluster(nodes, [gpus(q.name, 28) for q in queues], queues)
    assert deserved(snapshot, GPU) == {"a": 16, "b": 8, "c": 4}


def test_three_to_one_to_one_of_100_cpus() -> None:
    queues = [Queue("a", weight=3), Queue("b"), Queue("c")]
    snapshot = cluster([node("n", 100)], [cpus(q.name, 100) for q in queues], queues)
    assert deserved(snapshot, CPU) == {"a": 60_000, "b": 20_000, "c": 20_000}


def test_without_queues_nobody_deserves_anything() -> None:
    snapshot = Snapshot(0, (node("n", 8),), ())
    assert deserved(snapshot, CPU) == {}


def test_without_a_root_a_queue_above_others_keeps_its_own_floor() -> None:
    """The queue that comes last by name is the parent, and has its own gangs."""
    queues = [Queue("a", parent="z", guarantee=(("cpu", 1000),)), Queue("b")]
    queues.append(Queue("z", guarantee=(("cpu", 6000),)))
    gangs = [cpus("a", 8), cpus("b", 8), cpus("z", 8)]
    snapshot = Snapshot(0, (node("n", 8),), tuple(gangs), tuple(queues))
    assert deserved(snapshot, CPU) == {"a": 3000, "b": 2000, "z": 6000}


def test_what_a_queue_does_not_ask_for_goes_to_the_others() -> None:
    queues = [Queue("a"), Queue("b"), Queue("c", weight=2)]
    gangs = [cpus("a", 10), cpus("b", 100), cpus("c", 100)]
    # 100 = 25 + 25 + 50; a requests 10 of its 25, and b and c share the other 15 as 1 to 2.
    assert deserved(cluster([node("n", 100)], gangs, queues), CPU) == {
        "a": 10_000,
        "b": 30_000,
        "c": 60_000,
    }


def test_queues_without_work_deserve_nothing() -> None:
    queues = [Queue("a"), Queue("idle", weight=100)]
    snapshot = cluster([node("n", 100)], [cpus("a", 100)], queues)
    assert deserved(snapshot, CPU) == {"a": 100_000}


def test_shares_stay_below_the_capability() -> None:
    queues = [Queue("a", capability=((CPU, 10_000),)), Queue("b")]
    snapshot = cluster([node("n", 100)], [cpus("a", 100), cpus("b", 100)], queues)
    assert deserved(snapshot, CPU) == {"a": 10_000, "b": 90_000}


def test_shares_stay_below_what_is_guaranteed_to_others() -> None:
    # Volcano's realCapability also subtracts the guarantees of queues without gangs.
    queues = [Queue("a"), Queue("idle", guarantee=((CPU, 40_000),))]
    snapshot = cluster([node("n", 100)], [cpus("a", 100)], queues)
    assert deserved(snapshot, CPU) == {"a": 60_000}


def test_shares_are_raised_to_the_guarantee() -> None:
    queues = [Queue("a", guarantee=((CPU, 80_000),)), Queue("b")]
    snapshot = cluster([node("n", 100)], [cpus("a", 100), cpus("b", 100)], queues)
    assert deserved(snapshot, CPU) == {"a": 80_000, "b": 20_000}


def test_one_gpu_for_two_queues_is_deserved_by_one() -> None:
    # Half a GPU would help neither queue, so the queue of the older gang deserves the whole GPU.
    queues, older = [Queue("a"), Queue("b")], replace(gpus("b", 1), created_ms=-1)
    snapshot = cluster([node("n", gpu=1)], [gpus("a", 1), older], queues)
    assert deserved(snapshot, GPU) == {"b": 1}
    bench = Bench.of(snapshot, RULES)
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert binds(bench.actions(decisions)) == {"ns/in-b-w-0": "n"}
        assert bench.broken(decisions) == []


def test_nodes_that_are_not_ready_are_not_shared_out() -> None:
    nodes = [node("n0", 60), node("n1", 40, ready=False)]
    snapshot = cluster(nodes, [cpus("a", 100)], [Queue("a")])
    assert deserved(snapshot, CPU) == {"a": 60_000}


def test_nodes_that_do_not_limit_pods() -> None:
    snapshot = cluster([Node("n", ((CPU, 4000),))], [cpus("a", 4)], [Queue("a")])
    assert placed_by_gang(snapshot, RULES) == {"in-a": 4}


def random_task(rng: np.random.Generator) -> TaskShape:
    asks = {CPU: 1000 * int(rng.integers(0, 40)), "memory": int(rng.integers(2**42))}
    return TaskShape(amounts({**asks, GPU: int(rng.integers(0, 3))}))


def random_shares(rng: np.random.Generator, deep: float = 0.0) -> Snapshot:
    queues = [
        Queue(
            f"q{i}",
            weight=int(rng.integers(1, 100)),
            capability=((CPU, int(rng.integers(0, 300_000))),) if rng.random() < 0.3 else None,
            guarantee=((CPU, int(rng.integers(0, 50_000))),) if rng.random() < 0.3 else (),
            parent=f"q{int(rng.integers(i))}" if i and rng.random() < deep else "root",
        )
        for i in range(int(rng.integers(1, 8)))
    ]
    gangs = [
        gang(
            f"g{i}",
            ("w", int(rng.integers(1, 9)), random_task(rng)),
            least=1,
            queue=f"q{int(rng.integers(len(queues)))}",
        )
        for i in range(int(rng.integers(0, 12)))
    ]
    terabytes = ("memory", int(rng.integers(1, 2**46)))
    nodes = [
        node(f"n{i}", int(rng.integers(1, 100)), int(rng.integers(0, 8)))
        for i in range(int(rng.integers(0, 4)))
    ]
    nodes = [replace(n, allocatable=tuple(sorted((*n.allocatable, terabytes)))) for n in nodes]
    return cluster(nodes, gangs, queues)


@pytest.mark.parametrize("seed", range(60))
def test_arrays_and_verifier_agree_about_random_queues(seed: int) -> None:
    snapshot = random_shares(np.random.default_rng(seed))
    for resource in compile_problem(snapshot).resources:
        deserved(snapshot, resource)


@pytest.mark.parametrize("seed", range(60))
def test_arrays_and_verifier_agree_about_random_trees(seed: int) -> None:
    snapshot = random_shares(np.random.default_rng(seed), deep=0.6)
    for resource in compile_problem(snapshot).resources:
        deserved(snapshot, resource)


@pytest.mark.parametrize("seed", range(60, 90))
def test_no_more_than_there_is_is_shared_out(seed: int) -> None:
    problem = compile_problem(random_shares(np.random.default_rng(seed)))
    shares, queues = own_shares(problem), problem.queues
    assert (shares.sum(axis=0) <= problem.total).all()
    assert (shares <= np.maximum(queues.requested, queues.guarantee)).all()


def departments(**asked: int) -> Snapshot:
    """Return two parent queues on 60 GPUs: a (weight 3) with a1 (2) and a2 (1), b (2) with b1."""
    weights = {"a": ("root", 3), "b": ("root", 2), "a1": ("a", 2), "a2": ("a", 1), "b1": ("b", 1)}
    queues = [Queue(name, weight=w, parent=parent) for name, (parent, w) in weights.items()]
    nodes = [node(f"n{i}", cpu=10, gpu=10) for i in range(6)]
    return cluster(nodes, [gpus(queue, number) for queue, number in asked.items()], queues)


def test_departments_share_first_and_then_their_teams() -> None:
    every = deserved(departments(a1=60, a2=60, b1=60), GPU)
    assert every == {"a": 36, "a1": 24, "a2": 12, "b": 24, "b1": 24}
    idle = deserved(departments(a1=60, b1=60), GPU)
    assert idle == {"a": 36, "a1": 36, "b": 24, "b1": 24}


def test_what_a_department_leaves_goes_to_the_other() -> None:
    assert deserved(departments(a1=6, b1=60), GPU) == {"a": 6, "a1": 6, "b": 54, "b1": 54}


def test_gangs_of_a_department_itself_share_with_its_teams() -> None:
    snapshot = departments(a=60, a1=60, b1=60)
    problem = compile_problem(snapshot)
    mine = own_shares(problem)[:, problem.index(GPU)]
    assert dict(zip(problem.queues.names, mine.tolist(), strict=True))["a"] == 22
    assert deserved(snapshot, GPU)["a"] == 36


# --- what shares are for -------------------------------------------------------------------------


def test_a_queue_takes_what_it_deserves() -> None:
    queues = [Queue("a", weight=3), Queue("b")]
    snapshot = cluster([node("n", 8)], [cpus("a", 20), cpus("b", 20)], queues)
    assert placed_by_gang(snapshot, RULES) == {"in-a": 6, "in-b": 2}


def test_what_a_queue_has_on_nodes_that_are_down_is_told_as_its_share() -> None:
    """The queue deserves the Ready nodes, and its pods on NotReady nodes count for it."""
    old, new = gang("old", ("w", 1, shape(3))), gang("new", ("w", 1, shape(2)))
    old = replace(old, tasks=(running(old.tasks[0], "down"),))
    nodes = [node("up", 4), node("down", 4, ready=False)]
    snapshot = cluster(nodes, [old, new])
    assert reason(snapshot, RULES, "new") == (
        "QueueDeservedExceeded: queue default deserves 4 cpu by its weight, 3 cpu are in use, "
        "2 cpu are requested"
    )


def test_a_gang_above_the_share_of_its_queue_waits_and_the_reason_says_so() -> None:
    queues = [Queue("a", weight=3), Queue("b")]
    whole = gang("whole", ("w", 4, shape(1)), queue="b")
    big = Node("n", ((CPU, 8000), ("pods", 110)))
    snapshot = cluster([big], [cpus("a", 20), whole], queues)
    assert placed_by_gang(snapshot, RULES) == {"in-a": 6, "whole": 0}
    assert reason(snapshot, RULES, "whole") == (
        "QueueDeservedExceeded: queue b deserves 2 cpu by its weight, 0 cpu are in use, "
        "4 cpu are requested"
    )


def test_a_plan_above_the_share_is_refused() -> None:
    queues = [Queue("a", weight=3), Queue("b")]
    bench = Bench.of(cluster([node("n", 8)], [cpus("a", 20), cpus("b", 20)], queues), RULES)
    three = {f"ns/in-b-w-{i}": "n" for i in range(3)}
    assert bench.broken(bench.decisions(three)) == ["proportion"]
    assert not bench.direct_allows(three)
    assert not bench.configurations_allow(three)


def test_what_runs_above_the_share_may_stay() -> None:
    queues = [Queue("a"), Queue("b")]
    old = gang("old", ("w", 7, shape(1)), queue="a", phase=GangPhase.RUNNING)
    there = replace(old, tasks=tuple(running(t, "n") for t in old.tasks))
    snapshot = cluster([node("n", 8)], [there, cpus("a", 5), cpus("b", 5)], queues)
    assert placed_by_gang(snapshot, RULES) == {"in-a": 0, "in-b": 1, "old": 0}
