"""How hard tests try: a part of the examples by default, many more at night."""

from __future__ import annotations

import os

EFFORT = float(os.environ.get("OPTSCHED_EFFORT", "0.15"))
"""Examples are multiplied by this: 1 is what a rule was developed with, `make nightly` takes 20."""


def num_examples(number: int) -> int:
    """Return how many of some examples are tried: at least one."""
    return max(1, round(number * EFFORT))
