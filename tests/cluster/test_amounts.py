"""Tests of resource amounts."""

from __future__ import annotations

from optsched.cluster.amounts import amount_of, amounts, total


def test_amounts_are_sorted_whatever_they_come_from() -> None:
    assert amounts({"memory": 2, "cpu": 1}) == amounts({"cpu": 1, "memory": 2})
    assert amounts({"memory": 2, "cpu": 1}) == (("cpu", 1), ("memory", 2))


def test_what_is_missing_is_none_of_it() -> None:
    assert amount_of((("cpu", 1),), "cpu") == 1
    assert amount_of((("cpu", 1),), "memory") == 0


def test_totals_add_up_by_resource() -> None:
    assert total([(("cpu", 1),), (("cpu", 2), ("memory", 3))]) == {"cpu": 3, "memory": 3}
    assert total([]) == {}
