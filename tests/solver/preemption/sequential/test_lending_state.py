"""The sums of evicted requests agree with the definition of a lending."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optsched.solver.preemption.sequential.eviction_problem import Lending, LendingOption
from optsched.solver.preemption.sequential.heuristic import LendingState

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.solver.preemption.sequential.eviction_problem import Groups

NUM_RESOURCES = 2


def is_lent(request: I64, lendings: list[Lending], evicted: I64) -> bool:
    """Return whether each lender satisfies some option of its lending, by the definition."""
    return all(
        not evicted[lending.groups].any()
        or any(
            sum(int(request[k, option.resource] * evicted[k]) for k in option.below) <= option.most
            and sum(int(evicted[k]) for k in option.members) >= option.need
            for option in lending.options
        )
        for lending in lendings
    )


@given(st.integers(0, 2**32 - 1))
def test_sums_answer_as_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_groups = int(rng.integers(1, 7))
    request = rng.integers(0, 4, (num_groups, NUM_RESOURCES))
    lendings = []
    for _ in range(int(rng.integers(0, 4))):
        below = np.flatnonzero(rng.random(num_groups) < 0.8)
        own = below[rng.random(len(below)) < 0.7]
        options = tuple(
            LendingOption(int(r), int(size), below, int(rng.integers(-1, 9)), last, need)
            for r in range(NUM_RESOURCES)
            for size in np.unique(request[own, r])
            if size > 0
            for last, need in (
                (own[request[own, r] >= size], 1),
                (below[: int(rng.integers(1, len(below) + 1))], int(rng.integers(2, 5))),
            )
        )
        lendings.append(Lending(0, (), own, options))
    state = LendingState(cast("Groups", SimpleNamespace(request=request)), lendings)
    evicted, kept = np.zeros(num_groups, np.int64), state.sums
    for _ in range(6):
        groups = np.flatnonzero(rng.random(num_groups) < 0.4)
        counts = rng.integers(1, 3, len(groups))
        more = evicted.copy()
        more[groups] += counts
        assert state.allows(groups, counts) == is_lent(request, lendings, more)
        state.add(groups, counts)
        evicted = more
    state.sums = kept
    nothing = np.zeros(0, np.int64)
    assert state.allows(nothing, nothing)
