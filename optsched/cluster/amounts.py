"""Amounts of resources as sorted tuples of (resource, base units): hashable, cheap to compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Amounts: TypeAlias = tuple[tuple[str, int], ...]
"""Sorted by resource name, one entry a resource; a missing resource means none of it, except where
a field's documentation says that it means no limit."""

NOTHING: Amounts = ()


def amounts(entries: Mapping[str, int]) -> Amounts:
    """The amounts of a mapping, in name order."""
    return tuple(sorted(entries.items()))


def amount_of(have: Amounts, resource: str) -> int:
    """The amount of one resource, 0 where it is missing."""
    for name, amount in have:
        if name == resource:
            return amount
    return 0


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of amounts, by resource."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part:
            result[name] = result.get(name, 0) + amount
    return result
