"""Tests of the bounds by which gangs that cannot start are found together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from optsched.problem.arrays import I64, UNLIMITED
from optsched.problem.compile import compile_problem
from optsched.solver.model.node_masks import bound_fitting_tasks, find_lacking_shapes
from tests.support.small import cluster, gang, node, shape


@given(
    arrays(np.int64, (4, 3), elements=st.integers(-5, 2**40)),
    arrays(np.int64, (5, 3), elements=st.integers(0, 7)),
)
def test_tasks_are_counted_node_by_node(idle: I64, request: I64) -> None:
    found = bound_fitting_tasks(idle, request).tolist()
    for most, amounts in zip(found, request.tolist(), strict=True):
        fits = [
            min((max(left, 0) // a for left, a in zip(row, amounts, strict=True) if a), default=-1)
            for row in idle.tolist()
        ]
        assert most == sum(fits) if any(amounts) else most % UNLIMITED == 0


def test_a_gang_lacks_room_or_a_share_for_its_minimum() -> None:
    gangs = [
        gang("a", ("w", 3, shape(2))),
        gang("b", ("w", 4, shape(2))),
        gang("c", ("w", 4, shape(2)), least=3),
        gang("d", ("w", 1, shape(1)), ("x", 1, shape(5))),
    ]
    problem = compile_problem(cluster([node("n0", 4), node("n1", 3)], gangs))
    counts, shapes = problem.shapes.count, problem.shape_of
    lacks = find_lacking_shapes(problem, shapes, problem.idle, counts)
    assert lacks.tolist() == [False, True, False, True]
    lacks = find_lacking_shapes(problem, shapes, problem.idle, counts, lambda _: 2)
    assert lacks.all()
    none = np.zeros_like(counts)
    assert find_lacking_shapes(problem, shapes[:2], problem.idle, none).all()
