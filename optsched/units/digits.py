"""Recognise whole and decimal numbers in texts."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_DECIMAL: Final = re.compile(
    r"[-+]?(?:[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})(?:[eE][-+]?[0-9]{1,3})?"
)


def is_decimal(text: str, max_digits: int = 19) -> bool:
    """Return whether a text consists of 1 to `max_digits` ASCII digits.

    `str.isdecimal` also accepts the digits of other scripts, and `int` raises ValueError if a text
    has more than 4 300 digits.
    """
    return text.isascii() and text.isdecimal() and len(text) <= max_digits


def parse_whole(text: str) -> int | None:
    """Return the whole number that a text of at most 19 ASCII digits states, or None."""
    return int(text) if is_decimal(text) else None


def parse_decimal(text: str) -> Decimal | None:
    """Return a number such as `2`, `-0.5` or `1e3`; None for any other text.

    `float` and `Decimal` also read `1_0`, `inf`, `nan` and the digits of other scripts.
    """
    stripped = text.strip()
    return Decimal(stripped) if _DECIMAL.fullmatch(stripped) else None
