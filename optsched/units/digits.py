"""Recognise whole numbers in texts."""

from __future__ import annotations


def is_decimal(text: str, max_digits: int = 19) -> bool:
    """Return whether a text consists of 1 to `max_digits` ASCII digits.

    `str.isdecimal` also accepts the digits of other scripts, and `int` raises ValueError if a text
    has more than 4 300 digits.
    """
    return text.isascii() and text.isdecimal() and len(text) <= max_digits
