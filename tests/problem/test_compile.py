"""Tests of a snapshot as arrays: axes, classes, amounts, and blockers of gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, QueueState, Snapshot
from optsched.cluster.task import Task, TaskStatus
from optsched.problem.compile import compile_problem
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.problem.problem import Problem


def amounts(problem: Problem, row: np.ndarray) -> dict[str, int]:
    """Return a row over the resource axis by name, without zeros."""
    pairs = zip(problem.resources, row.tolist(), strict=True)
    return {name: amount for name, amount in pairs if amount}


# --- axes ----------------------------------------------------------------------------------------


def test_resources_begin_with_pods_cpu_memory_and_hold_all_that_matters() -> None:
    snapshot = cluster(
        [node("n0", gpu=8)],
        [gang("g", ("w", 1, shape(1)), min_resources=(("licence", 1),))],
        [Queue("q", capability=(("fpga", 1),), guarantee=(("disk", 1),))],
    )
    # The problem omits a resource without requests, limits and guarantees: nvidia.com/gpu.
    assert compile_problem(snapshot).resources == (
        "pods",
        CPU,
        "memory",
        "disk",
        "fpga",
        "licence",
    )


def test_alike_tasks_are_one_class_whatever_their_gang_and_role() -> None:
    gangs = [
        gang("a", ("ps", 1, shape(2)), ("worker", 4, shape(1))),
        gang("b", ("worker", 2, shape(1)), queue="root"),
    ]
    problem = compile_problem(cluster([node("n0")], gangs))
    found = dict(zip(problem.classes.shapes, problem.classes.num_pending.tolist(), strict=True))
    assert found == {shape(2): 1, shape(1): 6}
    by_class = [amounts(problem, row) for row in problem.classes.request]
    assert {"pods": 1, CPU: 2000} in by_class
    assert {"pods": 1, CPU: 1000} in by_class


def test_tasks_follow_gang_by_gang_and_entry_by_entry() -> None:
    gangs = [
        gang("b", ("w", 2, shape(1))),
        gang("a", ("ps", 1, shape(2)), ("worker", 2, shape(1))),
        gang("blocked", ("w", 1, shape(1)), queue="nowhere"),
    ]
    problem = compile_problem(cluster([node("n0")], gangs))
    keys = [t.key for t in problem.tasks]
    assert keys == ["ns/a-ps-0", "ns/a-worker-0", "ns/a-worker-1", "ns/b-w-0", "ns/b-w-1"]
    assert problem.task_start.tolist() == [0, 3, 5, 5]
    assert problem.gang_of.tolist() == [0, 0, 0, 1, 1]
    shapes = [problem.classes.shapes[c] for c in problem.task_class.tolist()]
    assert shapes == [t.shape for t in problem.tasks]


def test_alike_gangs_share_a_shape() -> None:
    gangs = [gang(f"g{i}", ("w", 3, shape(1))) for i in range(5)] + [gang("h", ("w", 2, shape(1)))]
    problem = compile_problem(cluster([node("n0")], gangs))
    assert len(problem.shapes.shapes) == 2
    assert problem.shapes.num_tasks[problem.shape_of].tolist() == [3] * 5 + [2]


def test_entries_know_their_shape_and_place() -> None:
    gangs = [gang("a", ("ps", 1, shape(2)), ("worker", 2, shape(1))), gang("b", ("w", 4, shape(3)))]
    shapes = compile_problem(cluster([node("n0")], gangs)).shapes
    assert shapes.shape_of_entry.tolist() == [0, 0, 1]
    assert shapes.offset.tolist() == [0, 1, 0]
    assert shapes.count.tolist() == [1, 2, 4]


# --- nodes ---------------------------------------------------------------------------------------


def test_what_nodes_offer_hold_and_lose() -> None:
    made = gang("g", ("w", 3, shape(1, gpu=1)), least=1)
    tasks = (
        running(made.tasks[0], "n0"),
        replace(running(made.tasks[1], "n0"), status=TaskStatus.RELEASING),
        made.tasks[2],
    )
    stranger = Task("kube-system/dns", shape(1), TaskStatus.RUNNING, node="n0")
    there = replace(node("n0", cpu=8, gpu=4), residents=(stranger,))
    problem = compile_problem(cluster([there], [replace(made, tasks=tasks)]))
    assert amounts(problem, problem.allocatable[0]) == {"pods": 10, CPU: 8000, GPU: 4}
    assert amounts(problem, problem.used[0]) == {"pods": 3, CPU: 3000, GPU: 2}
    assert amounts(problem, problem.releasing[0]) == {"pods": 1, CPU: 1000, GPU: 1}
    assert amounts(problem, problem.foreign[0]) == {"pods": 1, CPU: 1000}
    assert amounts(problem, problem.idle[0]) == {"pods": 7, CPU: 5000, GPU: 2}
    assert amounts(problem, problem.total) == {"pods": 10, CPU: 8000, GPU: 4}


def test_a_node_that_is_not_ready_offers_nothing() -> None:
    problem = compile_problem(cluster([node("n0", ready=False)], []))
    assert not problem.allocatable.any()
    assert not problem.ready.any()


def test_an_overfull_node_has_nothing_free_rather_than_less() -> None:
    made = gang("g", ("w", 1, shape(8)))
    problem = compile_problem(
        cluster([node("n0", cpu=4)], [replace(made, tasks=(running(made.tasks[0], "n0"),))])
    )
    assert problem.idle[0, problem.index(CPU)] == 0


def test_a_node_without_a_number_of_pods_does_not_limit_it() -> None:
    problem = compile_problem(cluster([Node("n0", ((CPU, 4000),))], []))
    assert problem.idle[0, problem.index("pods")] > 10**6


# --- queues --------------------------------------------------------------------------------------


def test_queues_hold_what_their_gangs_run_and_ask_what_these_still_want() -> None:
    made = gang("g", ("w", 3, shape(2)), least=1, queue="q")
    begun = replace(made, tasks=(running(made.tasks[0], "n0"), *made.tasks[1:]))
    problem = compile_problem(cluster([node("n0")], [begun], [Queue("q"), Queue("idle")]))
    q = problem.queues.names.index("q")
    assert amounts(problem, problem.queues.allocated[q]) == {"pods": 1, CPU: 2000}
    assert amounts(problem, problem.queues.requested[q]) == {"pods": 3, CPU: 6000}
    assert np.flatnonzero(problem.queues.has_gangs).tolist() == [q]


def asked_of(queues: list[Queue], *gangs: Gang) -> dict[str, int]:
    """Return the demand of the queue `q`."""
    problem = compile_problem(cluster([node("n0")], gangs, queues))
    q = problem.queues.names.index("q")
    assert bool(problem.queues.has_gangs[q]) is bool(problem.queues.requested[q].any())
    return amounts(problem, problem.queues.requested[q])


def test_what_gangs_ask_for_whose_pods_are_yet_to_come_counts_too() -> None:
    short = gang("g", ("w", 1, shape(2)), least=5, queue="q")
    assert asked_of([Queue("q")], short) == {"pods": 1, CPU: 2000}


@pytest.mark.parametrize(
    "queues",
    [
        [Queue("q", state=QueueState.CLOSED)],
        [Queue("q", parent="r"), Queue("r", state=QueueState.CLOSING)],
        [Queue("q", parent="r"), Queue("r", parent="q")],
        [Queue("q", parent="gone")],
        [Queue("q", problem=Reason(ReasonCode.INVALID_QUEUE, "spec.weight is -1"))],
    ],
    ids=["closed", "closing above", "cycle", "no parent", "unreadable"],
)
def test_queues_that_take_no_work_are_asked_for_what_they_hold(queues: list[Queue]) -> None:
    made = gang("g", ("w", 3, shape(2)), queue="q", least=1)
    assert asked_of(queues, made) == {}
    there = replace(made, tasks=(running(made.tasks[0], "n0"), *made.tasks[1:]))
    assert asked_of(queues, there) == {"pods": 1, CPU: 2000}


def test_gangs_with_a_fault_ask_for_nothing() -> None:
    bad = Reason(ReasonCode.INVALID_POD_GROUP, "spec.minMember is -1")
    assert asked_of([Queue("q")], gang("g", ("w", 3, shape(2)), queue="q", problem=bad)) == {}


# --- what keeps gangs out ------------------------------------------------------------------------


def blocked(snapshot: Snapshot) -> dict[str, str]:
    problem = compile_problem(snapshot)
    assert (problem.shape_of[list(problem.blocked)] == -1).all()
    return {snapshot.gangs[g].name: str(why) for g, why in problem.blocked.items()}


def test_each_gang_is_kept_out_for_its_own_reason_alone() -> None:
    bad = Reason(ReasonCode.INVALID_POD_GROUP, "spec.minMember is -1")
    gangs = [
        gang("closed", ("w", 1, shape(1)), queue="closed"),
        gang("fine", ("w", 1, shape(1)), queue="q"),
        gang("invalid", ("w", 1, shape(1)), queue="closed", problem=bad),
        gang("nowhere", ("w", 1, shape(1)), queue="nowhere"),
        gang("short", ("w", 1, shape(1)), least=3, queue="q"),
        gang("short-and-nowhere", ("w", 1, shape(1)), least=3, queue="nowhere"),
    ]
    queues = [Queue("closed", state=QueueState.CLOSED), Queue("q")]
    assert blocked(cluster([node("n0")], gangs, queues)) == {
        "closed": "QueueNotOpen: queue closed is Closed; only an Open queue takes new work",
        "invalid": "InvalidPodGroup: spec.minMember is -1",
        "nowhere": "QueueNotFound: queue nowhere does not exist",
        "short": "NotEnoughTasks: minMember is 3, but only 1 pod exists",
        "short-and-nowhere": "QueueNotFound: queue nowhere does not exist",
    }


def test_a_gang_that_only_runs_does_not_wait_for_its_queue_to_open() -> None:
    made = gang("g", ("w", 1, shape(1)), queue="closed", phase=GangPhase.RUNNING)
    there = replace(made, tasks=(running(made.tasks[0], "n0"),))
    queue = Queue("closed", state=QueueState.CLOSING)
    assert blocked(cluster([node("n0")], [there], [queue])) == {}


# --- the rest ------------------------------------------------------------------------------------


def test_an_empty_cluster_compiles() -> None:
    problem = compile_problem(Snapshot(0))
    assert (problem.num_nodes, problem.num_gangs, len(problem.tasks)) == (0, 0, 0)
    assert problem.total.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["allocatable", "used", "shape_of", "task_class", "ready"])
def test_problems_are_read_only(name: str) -> None:
    problem = compile_problem(cluster([node("n0")], [gang("g", ("w", 1, shape(1)))]))
    with pytest.raises(ValueError, match="read-only"):
        getattr(problem, name)[0] = 0


def test_what_is_derived_is_computed_once() -> None:
    problem = compile_problem(cluster([node("n0")], []))
    seen = []

    def count(of: Problem) -> int:
        seen.append(of)
        return of.num_nodes

    assert problem.derived(count) == problem.derived(count) == 1
    assert seen == [problem]


def test_unknown_resources_have_no_index() -> None:
    problem = compile_problem(cluster([node("n0")], []))
    assert problem.index(CPU) == 1
    assert problem.index("unobtainium") == -1
