"""Amounts of resources as sorted tuples of (resource, base units), and decayed usage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

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


# --- usage ----------------------------------------------------------------------------------------

_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Usage:
    """What one queue has used, with older usage counting less.

    Attributes
    ----------
    seconds
        (resource, base units times seconds) in name order.
    at_ms
        The instant, in epoch milliseconds.
    """

    seconds: tuple[tuple[str, float], ...] = ()
    at_ms: int = 0

    def advanced(self, held: Mapping[str, int], now_ms: int, half_life_ms: int) -> Usage:
        """The usage at a later instant, if so much was held from this one on.

        An instant before this one changes nothing. ValueError for a half-life that is not positive.
        """
        _check(half_life_ms)
        elapsed_ms = max(now_ms - self.at_ms, 0)
        kept = 0.5 ** (elapsed_ms / half_life_ms)
        fresh_s = -math.expm1(-math.log(2) * elapsed_ms / half_life_ms) * _mean_s(half_life_ms)
        before = dict(self.seconds)
        after = {
            name: before.get(name, 0.0) * kept + held.get(name, 0) * fresh_s
            for name in sorted({*before, *held})
        }
        found = tuple((name, amount) for name, amount in after.items() if amount > 0)
        return Usage(found, self.at_ms + elapsed_ms)

    def average(self, half_life_ms: int) -> dict[str, float]:
        """The average amount held, in which older amounts count less; in base units.

        A queue that has always held the same amount has that amount as its mean.
        """
        _check(half_life_ms)
        return {name: amount / _mean_s(half_life_ms) for name, amount in self.seconds}


def _mean_s(half_life_ms: int) -> float:
    """Seconds that a use counts for in all, as it fades."""
    return half_life_ms / _MS / math.log(2)


def _check(half_life_ms: int) -> None:
    if half_life_ms <= 0:
        raise ValueError(f"a half-life must be longer than 0, not {half_life_ms} ms")
