"""Whole and decimal numbers in texts."""

from __future__ import annotations

from decimal import Decimal

import pytest

from optsched.units.quantity import is_decimal, parse_decimal


@pytest.mark.parametrize("text", ["0", "7", "007", "9" * 19])
def test_ascii_digits_are_a_whole_number(text: str) -> None:
    assert is_decimal(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1_0", "1.0", "１", "\u0661", "²", "9" * 5000]
)
def test_other_texts_are_none(text: str) -> None:
    assert not is_decimal(text)


def test_the_number_of_digits_is_limited() -> None:
    assert is_decimal("123", 3)
    assert not is_decimal("1234", 3)


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", "2"), ("-0.5", "-0.5"), ("+.25", "0.25"), ("3.", "3"), ("1e3", "1000"), (" 7 ", "7")],
)
def test_a_decimal_number_is_exact(text: str, number: str) -> None:
    assert parse_decimal(text) == Decimal(number)


@pytest.mark.parametrize(
    "text",
    ["", ".", "1_0", "inf", "NaN", "0x1", "1 0", "1,5", "１.5", "\u0661", "1.\u0662", "9" * 5000],
)
def test_other_texts_are_no_decimal_number(text: str) -> None:
    assert parse_decimal(text) is None
