"""Rows are grouped as by NumPy, and ranges are concatenated as by a loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.problem.arrays import LARGEST, frozen, ranges, row_groups, table

NUMBERS = st.one_of(st.integers(-2, 2), st.integers(-(2**62), 2**62))
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[NUMBERS] * width), min_size=1, max_size=30)
)


@given(TABLES)
def test_row_groups_number_distinct_rows_in_ascending_order(rows: list[tuple[int, ...]]) -> None:
    table = np.array(rows, np.int64)
    _, first, group = np.unique(table, axis=0, return_index=True, return_inverse=True)
    got_group, got_first = row_groups(table.T)
    assert got_group.tolist() == group.ravel().tolist()
    assert got_first.tolist() == first.tolist()


def test_row_groups_of_no_rows() -> None:
    group, first = row_groups([np.empty(0, np.int64), np.empty(0, np.bool_)])
    assert (len(group), len(first)) == (0, 0)


def test_row_groups_mix_types_of_columns() -> None:
    group, first = row_groups([np.array([True, False, True]), np.array([7, 7, 7], np.uint8)])
    assert group.tolist() == [1, 0, 1]
    assert first.tolist() == [1, 0]


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5))))
def test_ranges_are_the_concatenation(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    wanted = [i for start, length in pairs for i in range(start, start + length)]
    assert ranges(starts, lengths).tolist() == wanted


def test_frozen_arrays_refuse_to_be_written() -> None:
    array = np.zeros(2)
    frozen(array, "anything else")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize("huge", [2**56, 2**60, 2**63 - 1, 2**63, 10**30])
def test_amounts_that_no_cluster_has_are_taken_for_the_largest(huge: int) -> None:
    assert table([[1, huge], [0, 5]], 2).tolist() == [[1, int(LARGEST)], [0, 5]]


def test_tables_of_no_rows_and_of_no_columns() -> None:
    assert table([], 3).shape == (0, 3)
    assert table([[], []], 0).shape == (2, 0)
