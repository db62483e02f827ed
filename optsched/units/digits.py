"""Recognise whole and decimal numbers in strings."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_DECIMAL: Final = re.compile(
    r"[-+]?(?:[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})(?:[eE][-+]?[0-9]{1,3})?"
)


def is_decimal(text: str, max_digits: int = 19) -> bool:
    """Return whether a string consists of 1 to `max_digits` ASCII digits.

    `str.isdecimal` alone also accepts digits of other scripts, and `int` raises ValueError for more
    than 4 300 digits.
    """
    return text.isascii() and text.isdecimal() and len(text) <= max_digits


def parse_whole(text: str) -> int | None:
    """Parse a string of at most 19 ASCII digits; returns None for any other string."""
    return int(text) if is_decimal(text) else None


def parse_decimal(text: str) -> Decimal | None:
    """Parse a number such as `2`, `-0.5` or `1e3`; returns None for any other string.

    Unlike `float` and `Decimal`, it rejects `1_0`, `inf`, `nan` and digits of other scripts.
    """
    stripped = text.strip()
    return Decimal(stripped) if _DECIMAL.fullmatch(stripped) else None
