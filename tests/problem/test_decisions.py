"""Tests of decisions as arrays."""

from __future__ import annotations

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
