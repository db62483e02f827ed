"""Whole numbers of the command line."""

from __future__ import annotations

import re
from typing import Final

import click

_WHOLE: Final = re.compile(r"\s*[-+]?[0-9]{1,4000}\s*")
"""`int` raises ValueError if a text has more than 4 300 digits."""


class WholeNumber(click.IntRange):
    """A whole number in ASCII digits.

    Python's `int` also reads `1_0` and the digits of other scripts, which are mostly typing errors.
    """

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number; fail if the text is no whole number or out of range."""
        if not isinstance(value, int) and _WHOLE.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)  # as click
        return super().convert(int(str(value)), param, ctx)
