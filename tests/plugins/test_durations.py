from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optsched.plugins.ordering.gang_order import KEPT_BITS, estimate_runtimes_ms, truncate_bits
from optsched.problem.compile import compile_problem
from tests.support.small import cluster, gang, node, shape

SECOND = 1000


@given(st.lists(st.integers(1, 2**52), min_size=1))
def test_values_lose_less_than_an_eighth_and_keep_their_order(values: list[int]) -> None:
    before = np.array(sorted(values), np.int64)
    after = truncate_bits(before)
    assert (after <= before).all()
    assert (8 * (before - after) < before).all()
    assert (np.diff(after) >= 0).all()
    assert (truncate_bits(after) == after).all()


def test_small_values_stay() -> None:
    small = np.arange(2**KEPT_BITS)
    assert truncate_bits(small).tolist() == small.tolist()


def test_a_gang_runs_as_long_as_its_longest_task() -> None:
    told = {"optsched.io/running-estimate": "90s"}
    gangs = [
        gang("a", ("w", 2, shape()), annotations=told),
        gang("b", ("w", 2, shape())),
        gang("c", ("w", 1, shape()), annotations={"optsched.io/running-estimate": "soon"}),
    ]
    problem = compile_problem(cluster([node("n")], gangs))
    assert estimate_runtimes_ms(problem).tolist() == [90 * SECOND, 0, 0]
