"""Placements of small pools are optimal; those of larger pools are valid and near the bound."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings

from optsched.study.gpu_packing.node_pool import Layout, Pool, empty_layout
from optsched.study.gpu_packing.program import round_to_layout
from optsched.study.gpu_packing.search import Effort, allocate
from tests.study.gpu_packing.pools import most_by_trying, pool, pools, wrong_with
from tests.support.effort import num_examples


def some_pool(num_nodes: int) -> Pool:
    """Return a pool of two node classes and seven pod classes, with more demand than capacity."""
    classes = [
        (8000, 30, 1, 1000, 4 * num_nodes),
        (4000, 10, 1, 320, 2 * num_nodes),
        (6000, 10, 1, 470, 2 * num_nodes),
        (2000, 10, 1, 230, num_nodes),
        (30_000, 200, 4, 1000, num_nodes // 2),
        (64_000, 300, 8, 1000, num_nodes // 8),
        (4000, 20, 0, 0, num_nodes),
    ]
    kinds = [(96_000, 384, 8, 0), (16_000, 120, 2, 1)]
    return pool(classes, [kinds[n % 2] for n in range(num_nodes)])


@settings(max_examples=num_examples(15))
@given(pools())
def test_the_best_of_small_pools_is_found(small: Pool) -> None:
    ticks = count()
    found = allocate(small, lambda: float(next(ticks)), 4.0, effort=Effort(seconds=5.0))
    assert wrong_with(small, found.layout) == []
    assert found.layout.allocated(small) == most_by_trying(small)


def test_whole_numbers_come_near_the_bound() -> None:
    many = some_pool(40)
    layout = round_to_layout(many, 20.0)
    assert layout is not None
    assert wrong_with(many, layout) == []
    assert layout.waiting(many)[many.must].tolist() == [0]
    ticks = count()
    found = allocate(many, lambda: float(next(ticks)), 4.0)
    assert found.bound is not None
    assert wrong_with(many, found.layout) == []
    assert layout.allocated(many) <= found.layout.allocated(many) <= found.bound.milli
    assert found.layout.allocated(many) >= 0.97 * found.bound.milli


def test_the_same_seed_gives_the_same() -> None:
    few = some_pool(10)
    runs = []
    for _ in range(2):
        ticks = count()
        runs.append(allocate(few, lambda ticks=ticks: float(next(ticks)), 4.0, seed=7))
    assert (runs[0].layout.pods == runs[1].layout.pods).all()
    assert runs[0].rounds == runs[1].rounds


def test_a_start_is_never_made_worse() -> None:
    """A pod that must run comes first, even if it takes the CPU of many GPUs."""
    few = pool([(1000, 0, 1, 1000, 3), (900, 0, 0, 0, 1)], [(1000, 10, 1, 0)] * 3)
    start = Layout(np.array([[1, 0], [0, 1], [1, 0]]), np.zeros((3, 1, 0), np.int64))
    found = allocate(few, lambda: 0.0, 0.0, start=start)
    assert found.layout.pods.sum(axis=0).tolist() == [2, 1]
    assert found.rounds == 0


def test_what_must_run_drives_out_others() -> None:
    few = pool([(1000, 0, 1, 1000, 1), (900, 0, 0, 0, 1)], [(1000, 10, 1, 0)])
    ticks = count()
    found = allocate(few, lambda: float(next(ticks)), 4.0)
    assert found.layout.pods.tolist() == [[0, 1]]


@pytest.mark.parametrize("classes", [[], [(1000, 0, 1, 1000, 0)]])
def test_nobody_is_placed_where_nobody_waits(classes: list[tuple[int, ...]]) -> None:
    idle = pool(classes, [(1000, 10, 1, 0)])
    found = allocate(idle, lambda: 0.0, 1.0)
    assert found.layout.allocated(idle) == empty_layout(idle).allocated(idle) == 0
    assert (found.rounds, found.bound is not None and found.bound.milli) == (0, 0)
