"""Tests of the linear model as arrays."""

from __future__ import annotations

import numpy as np

from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Expression, LinearModel


def test_variables_are_numbered_as_they_come() -> None:
    model = LinearModel()
    assert model.add_variables(0, [1, 2, 3]).tolist() == [0, 1, 2]
    assert model.add_variables(-1, 5).tolist() == [3]
    assert model.add_variables(0, []).tolist() == []
    lower, upper = model.bounds
    assert (lower.tolist(), upper.tolist()) == ([0, 0, 0, -1], [1, 2, 3, 5])


def test_rows_count_from_zero_within_a_call() -> None:
    model = LinearModel()
    x, y = model.add_variables(0, [9, 9]).tolist()
    assert model.add_rows([0, 0, 1], [x, y, y], [1, 2, 3], upper=[10, 20]).tolist() == [0, 1]
    assert model.add_rows(0, [x], 7, lower=1).tolist() == [2]
    rows = model.rows
    assert rows.row.tolist() == [0, 0, 1, 2]
    assert rows.variable.tolist() == [x, y, y, x]
    assert rows.coefficient.tolist() == [1, 2, 3, 7]
    assert rows.lower.tolist() == [-UNLIMITED, -UNLIMITED, 1]
    assert rows.upper.tolist() == [10, 20, UNLIMITED]


def test_entries_added_later_stand_in_their_row() -> None:
    model = LinearModel()
    x, y = model.add_variables(0, [1, 1]).tolist()
    first = model.add_rows([0, 1], [x, x], 1, upper=[5, 6])
    model.add_entries(first, y, [-1, -2])
    rows = model.rows
    assert rows.row.tolist() == [0, 0, 1, 1]
    assert rows.variable.tolist() == [x, y, x, y]
    assert rows.coefficient.tolist() == [1, -1, 1, -2]


def test_an_empty_model_has_empty_arrays() -> None:
    model = LinearModel()
    assert [len(part) for part in (*model.bounds, model.rows.row, model.rows.lower)] == [0] * 4


def test_a_row_without_entries_still_counts() -> None:
    model = LinearModel()
    model.add_rows([], [], [], lower=[1, 1])
    assert model.num_rows == 2
    assert len(model.rows.lower) == 2


def test_expressions_leave_out_zeros_and_keep_the_constant() -> None:
    form = Expression.of([0, 1, 2], [3, 0, -1], constant=10)
    assert form.variables.tolist() == [0, 2]
    assert form.value(np.array([5, 100, 4])) == 21


def test_one_coefficient_serves_all_variables() -> None:
    assert Expression.of([0, 1], 2).coefficients.tolist() == [2, 2]
