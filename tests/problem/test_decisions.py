"""Decisions as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from tests.support.small import cluster, gang, node, shape


def test_deciding_nothing_leaves_every_task_where_it_is() -> None:
    problem = compile_problem(cluster([node("n0")], [gang("g", ("w", 2, shape(1)))]))
    nothing = Decisions.nothing(problem)
    assert nothing.node_of.tolist() == [-1, -1]
    assert nothing.nominated.tolist() == [-1, -1]
    assert not nothing.enqueued.any()
    assert nothing.node_of is not nothing.nominated


def test_placed_tasks_are_counted_by_gang_and_class() -> None:
    gangs = [
        gang("a", ("ps", 1, shape(2)), ("worker", 2, shape(1))),
        gang("b", ("worker", 2, shape(1))),
    ]
    problem = compile_problem(cluster([node("n0")], gangs))
    everything = replace(Decisions.nothing(problem), node_of=np.where(np.arange(5) == 4, -1, 0))
    gang_of, task_class, number = everything.placed_by_entry(problem)
    counted = zip(gang_of.tolist(), task_class.tolist(), number.tolist(), strict=True)
    by_shape = {(g, problem.classes.shapes[c]): n for g, c, n in counted}
    assert by_shape == {(0, shape(2)): 1, (0, shape(1)): 2, (1, shape(1)): 1}


def test_nothing_placed_nothing_counted() -> None:
    problem = compile_problem(cluster([node("n0")], []))
    parts = Decisions.nothing(problem).placed_by_entry(problem)
    assert [len(part) for part in parts] == [0, 0, 0]
