"""Tests of properties of gangs as arrays, and of the values that unchanged gangs carry over."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.problem.columns import GangColumns, group_values
from optsched.problem.shapes import gang_row
from tests.support.small import gang, shape

if TYPE_CHECKING:
    from optsched.problem.shapes import GangRow

SHAPE, PRIORITY = attrgetter("shape"), attrgetter("gang.priority")


def rows_of(*cores: int) -> tuple[GangRow, ...]:
    return tuple(
        gang_row(gang(f"g{i}", ("w", 1, shape(each)), priority=each))
        for i, each in enumerate(cores)
    )


def is_urgent(row: GangRow) -> bool:
    return row.gang.priority > 2


def test_groups_are_numbered_in_the_order_of_their_first_elements() -> None:
    groups, first = group_values(np.array([7, 3, 7, 9, 3]))
    assert groups.tolist() == [0, 1, 0, 2, 1]
    assert first.tolist() == [0, 1, 3]
    assert [each.tolist() for each in group_values(np.zeros(0, np.int64))] == [[], []]


def test_codes_leave_out_gangs_that_are_not_chosen() -> None:
    rows = rows_of(4, 2, 4, 1)
    codes, shapes = GangColumns(rows).codes(SHAPE, np.array([False, True, True, True]))
    assert codes.tolist() == [-1, 0, 1, 2]
    assert shapes == [rows[1].shape, rows[2].shape, rows[3].shape]
    codes, shapes = GangColumns(rows).codes(SHAPE)
    assert (codes.tolist(), len(shapes)) == ([0, 1, 0, 2], 3)


def test_only_new_gangs_are_read_and_all_values_are_those_of_their_gangs() -> None:
    read: list[str] = []

    def priority_of(row: GangRow) -> int:
        read.append(row.gang.key)
        return row.gang.priority

    rows, new = rows_of(4, 2, 3), gang_row(gang("new", ("w", 1, shape(9)), priority=9))
    before = GangColumns(rows)
    before.numbers(priority_of)
    before.flags(is_urgent)
    before.codes(SHAPE)
    read.clear()
    after = GangColumns((rows[2], new, rows[0]), before)
    assert after.numbers(priority_of).tolist() == [3, 9, 4]
    assert read == [new.gang.key]
    assert after.flags(is_urgent).tolist() == [True, True, True]
    codes, shapes = after.codes(SHAPE)
    assert codes.tolist() == [0, 1, 2]
    assert shapes == [rows[2].shape, new.shape, rows[0].shape]
    assert GangColumns((), after).numbers(priority_of).tolist() == []
    assert GangColumns(rows, GangColumns((), after)).numbers(PRIORITY).tolist() == [4, 2, 3]


def test_arrays_are_read_only() -> None:
    rows = rows_of(1, 2)
    before = GangColumns(rows)
    before.numbers(PRIORITY)
    for columns in (before, GangColumns(rows, before)):
        with pytest.raises(ValueError, match="read-only"):
            columns.numbers(PRIORITY)[0] = 3
