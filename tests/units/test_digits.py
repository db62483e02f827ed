"""Whole numbers in texts."""

from __future__ import annotations

import pytest

from optsched.units.digits import is_decimal


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
