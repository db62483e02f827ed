"""Format amounts and counts in messages."""

from __future__ import annotations

from optsched.units import format_quantity


def amount_text(resource: str, amount: int) -> str:
    """Return an amount with its resource name, such as "1500m cpu" or "3 nvidia.com/gpu"."""
    return f"{format_quantity(amount, resource)} {resource}"


def count_noun(number: int, noun: str) -> str:
    """Return a number with a noun, such as "1 node" or "2 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
