"""Resource amounts as sorted (resource, amount) pairs, and the decayed usage of queues."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Amounts: TypeAlias = tuple[tuple[str, int], ...]
"""(resource, amount in base units) pairs, sorted by resource name. A missing resource has the
amount 0, unless the documentation of a field says that it is unlimited.
"""

NOTHING: Amounts = ()


def amounts(entries: Mapping[str, int]) -> Amounts:
    """Convert a mapping from resources to amounts in base units to `Amounts`."""
    return tuple(sorted(entries.items()))


def amount_of(have: Amounts, resource: str) -> int:
    """Return the amount of one resource; 0 if the resource is missing."""
    for name, amount in have:
        if name == resource:
            return amount
    return 0


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """Sum several `Amounts`; return a mapping from resource to the summed amount."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part:
            result[name] = result.get(name, 0) + amount
    return result


# --- usage ----------------------------------------------------------------------------------------

_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Usage:
    """The exponentially decayed resource usage of one queue.

    Attributes
    ----------
    seconds
        (resource, usage) pairs, sorted by resource name. The usage of a resource is the decayed
        integral of the amount that the queue holds, in base units times seconds.
    at_ms
        Time up to which `seconds` counts the usage, in epoch milliseconds.
    """

    seconds: tuple[tuple[str, float], ...] = ()
    at_ms: int = 0

    def advanced(self, held: Mapping[str, int], now_ms: int, half_life_ms: int) -> Usage:
        """Return the usage at `now_ms` if the queue holds the amounts `held` since `at_ms`.

        `held` maps resources to base units. If `now_ms` is before `at_ms`, the usage does not
        change. Raises ValueError unless the half-life is positive.
        """
        mean_s = _mean_s(half_life_ms)
        elapsed_ms = max(now_ms - self.at_ms, 0)
        kept = 0.5 ** (elapsed_ms / half_life_ms)
        fresh_s = -math.expm1(-math.log(2) * elapsed_ms / half_life_ms) * mean_s
        before = dict(self.seconds)
        after = {
            name: before.get(name, 0.0) * kept + held.get(name, 0) * fresh_s
            for name in sorted({*before, *held})
        }
        found = tuple((name, amount) for name, amount in after.items() if amount > 0)
        return Usage(found, self.at_ms + elapsed_ms)

    def average(self, half_life_ms: int) -> dict[str, float]:
        """Return the decayed average of the amounts that a queue held, in base units by resource.

        If a queue has always held the same amount, the average equals that amount.
        """
        mean_s = _mean_s(half_life_ms)
        return {name: amount / mean_s for name, amount in self.seconds}


def _mean_s(half_life_ms: int) -> float:
    """Return the mean lifetime of an exponential decay in seconds: its half-life divided by ln 2.

    Raises ValueError unless the half-life is positive.
    """
    if half_life_ms <= 0:
        raise ValueError(f"a half-life must be longer than 0, not {half_life_ms} ms")
    return half_life_ms / _MS / math.log(2)
