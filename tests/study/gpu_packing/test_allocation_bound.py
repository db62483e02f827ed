"""Tests of the bound, compared with all placements of small pools, and of patterns."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given

from optsched.study.gpu_packing.node_pool import Layout, Pool, empty_layout
from optsched.study.gpu_packing.program import (
    MOST_PATTERNS,
    TooManyPatterns,
    allocation_bound,
    share_patterns,
)
from optsched.study.gpu_packing.repack_model import repack
from tests.study.gpu_packing.pools import most_by_trying, pool, pools, wrong_with


@given(pools())
def test_nothing_is_above_the_bound_and_the_search_meets_the_best(small: Pool) -> None:
    best = most_by_trying(small)
    found = repack(small, empty_layout(small), small.worth, 5.0, 1)
    assert wrong_with(small, found) == []
    assert found.allocated(small) == best
    bound = allocation_bound(small)
    assert bound is not None
    assert bound.milli >= best - 1e-6


def test_what_all_pods_ask_for_is_a_bound() -> None:
    small = pool([(1000, 10, 1, 400, 2)], [(64_000, 1000, 8, 0)])
    bound = allocation_bound(small)
    assert bound is not None
    assert bound.milli == pytest.approx(800)


def test_parts_do_not_fill_a_device_as_water_does() -> None:
    """One GPU holds only one pod of 0.6 GPUs."""
    small = pool([(0, 0, 1, 600, 10)], [(1000, 1000, 4, 0)] * 2)
    bound = allocation_bound(small)
    assert bound is not None
    assert bound.milli == pytest.approx(8 * 600)
    assert bound.price.tolist() == [0]


def test_cpu_comes_in_whole_pods_too() -> None:
    """One node holds only one pod that requests more than half of the CPU."""
    small = pool([(600, 0, 1, 1000, 10)], [(1000, 1000, 4, 0)] * 3)
    bound = allocation_bound(small)
    assert bound is not None
    assert bound.milli == pytest.approx(3000)
    assert bound.pods.tolist() == [[pytest.approx(3)]]


def test_where_pods_that_must_run_can_not_there_is_no_bound() -> None:
    small = pool([(600, 0, 0, 0, 4)], [(1000, 1000, 4, 0)] * 2)
    assert allocation_bound(small) is None


def test_patterns_are_the_full_devices() -> None:
    sizes = [230, 320, 470]
    full = [
        counts
        for counts in product(range(5), repeat=3)
        if 0 <= 1000 - np.dot(counts, sizes) < sizes[0]
    ]
    assert sorted(map(tuple, share_patterns(sizes).tolist())) == sorted(full)
    assert share_patterns([]).shape == (0, 0)


def test_too_many_patterns_are_refused() -> None:
    with pytest.raises(TooManyPatterns, match=str(MOST_PATTERNS)):
        share_patterns(list(range(10, 60)))


def test_a_start_that_is_best_is_kept() -> None:
    small = pool([(100, 0, 1, 500, 2), (100, 0, 1, 1000, 1)], [(1000, 1000, 2, 0)])
    start = Layout(np.array([[2, 1]]), np.array([[[0], [2]]]))
    found = repack(small, start, small.worth, 1.0, 1)
    assert found.allocated(small) == small.total
