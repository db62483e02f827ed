"""Few pods move, and the pods that a plan keeps in place can stay."""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
import pytest

from optsched.study.gpu_packing.node_pool import Layout
from optsched.study.gpu_packing.repack_model import Present, repack_moving
from optsched.study.gpu_packing.search import Running, improve_layout
from tests.study.gpu_packing.pools import pool, wrong_with

PARTS = [(1, 0, 1, 400, 1), (1, 0, 1, 600, 1), (1, 0, 1, 1000, 1)]


@pytest.mark.parametrize(("most", "given_out"), [(0, 1000), (1, 2000)])
def test_room_is_made_by_moving_one(most: int, given_out: int) -> None:
    few = pool(PARTS, [(9, 0, 1, 0)] * 2)
    start = Layout(np.array([[1, 0, 0], [0, 1, 0]]), np.array([[[1, 0]], [[0, 1]]]))
    pods = [(0, 0, (0,)), (1, 1, (0,))]
    ticks = count()
    layout, staying = improve_layout(
        few, start, Running(pods, most), lambda: float(next(ticks)), 3.0
    )
    assert wrong_with(few, layout) == []
    assert layout.allocated(few) == given_out
    assert staying.total() == 2 - most
    assert not staying - Counter(pods)


def test_devices_that_stay_are_not_shared() -> None:
    """A pod with a whole GPU keeps its GPU, and pods with shares keep theirs.

    The waiting pod takes the remaining GPU.
    """
    few = pool([(1, 0, 1, 400, 2), (1, 0, 1, 1000, 2)], [(9, 0, 3, 0)])
    start = Layout(np.array([[1, 1]]), np.array([[[0], [0], [1]]]))
    pods = [(0, 1, (0,)), (0, 0, (2,))]
    ticks = count()
    layout, staying = improve_layout(few, start, Running(pods, 0), lambda: float(next(ticks)), 2.0)
    assert staying == Counter(pods)
    assert layout.pods.tolist() == [[2, 2]]
    assert layout.shares[0, 0].tolist() == [0]
    assert layout.shares[0, 2].tolist() == [2]


def test_who_left_for_elsewhere_may_leave_none_of_a_class_behind() -> None:
    few = pool([(1, 0, 1, 400, 0), (1, 0, 1, 1000, 1)], [(9, 0, 1, 0)])
    start = Layout(np.array([[0, 0]]), np.array([[[0]]]))
    present = [Present(0, 0, (0,), 1, 0)]
    layout, staying = repack_moving(few, start, few.worth, present, 1, 1.0, 0)
    assert (layout.pods.tolist(), staying) == ([[0, 1]], [0])
