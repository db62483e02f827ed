"""Queues that restrict the choice of nodes have separate task classes."""

from __future__ import annotations

from dataclasses import replace

from optsched.cluster.snapshot import NodeGroups, Queue, Snapshot
from optsched.problem.compile import compile_problem
from optsched.problem.queues import narrowing_queues
from tests.support.small import cluster, gang, node, shape

GROUPS = NodeGroups(("a",))


def with_queue(queue: Queue, before: Snapshot | None = None) -> Snapshot:
    """Return three equal gangs in three queues, one of which is given."""
    queues = {"p": Queue("p"), "q": Queue("q"), "r": Queue("r"), queue.name: queue}
    if before is not None:
        kept = {q.name: q for q in before.queues} | {queue.name: queue}
        return replace(before, queues=tuple(kept[name] for name in sorted(kept)))
    gangs = [gang(name, ("w", 2, shape()), queue=name) for name in "pqr"]
    return cluster([node("n0")], gangs, list(queues.values()))


def test_only_such_queues_have_them() -> None:
    problem = compile_problem(with_queue(Queue("q", node_groups=GROUPS)))
    assert problem.classes.queues == ("", "q")
    assert problem.task_class.tolist() == [0, 0, 1, 1, 0, 0]
    assert compile_problem(with_queue(Queue("q"))).classes.queues == ("",)


def test_a_queue_narrows_for_those_below_it() -> None:
    tree = [Queue("p", node_groups=GROUPS), Queue("q", parent="p"), Queue("r", parent="q")]
    assert narrowing_queues([*tree, Queue("s")]) == {"p", "q", "r"}
    assert narrowing_queues([Queue("p", parent="q"), Queue("q", parent="p")]) == frozenset()


def test_a_queue_that_changes_moves_its_gangs_to_another_class() -> None:
    before = with_queue(Queue("q"))
    after = with_queue(Queue("q", node_groups=GROUPS), before)
    problem = compile_problem(after, compile_problem(before))
    assert problem.classes.queues == ("", "q")
    back = compile_problem(before, problem)
    assert back.classes.queues == ("",)
    assert back.task_class.tolist() == [0] * 6
