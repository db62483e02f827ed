"""Go's `math/rand` from the state that tests/rules/go_random has recorded of it.

An additive lagged Fibonacci generator: x[i] = x[i − 607] + x[i − 273] modulo 2^64.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableSequence
    from pathlib import Path

_LONG, _SHORT = 607, 273


class GoRandom:
    """The numbers that `rand.Seed` and the functions of the package give."""

    def __init__(self, recorded: Path) -> None:
        first = [int(line) for line in recorded.read_text().split()]
        assert len(first) == _LONG
        self._fresh = deque(first)
        self._last: deque[int] = deque(maxlen=_LONG)

    def uint64(self) -> int:
        if self._fresh:
            value = self._fresh.popleft()
        else:
            value = (self._last[0] + self._last[_LONG - _SHORT]) % 2**64
        self._last.append(value)
        return value

    def int63(self) -> int:
        return self.uint64() % 2**63

    def intn(self, most: int) -> int:
        """`Intn` of numbers up to 2^31: by remainder, without those that would make it uneven."""
        if most & (most - 1) == 0:
            return (self.int63() >> 32) & (most - 1)
        limit = 2**31 - 1 - 2**31 % most
        value = self.int63() >> 32
        while value > limit:
            value = self.int63() >> 32
        return value % most

    def shuffle(self, values: MutableSequence[object]) -> None:
        """`Shuffle`, which draws by Lemire's multiplication."""
        for i in range(len(values) - 1, 0, -1):
            j = self._below(i + 1)
            values[i], values[j] = values[j], values[i]

    def _below(self, most: int) -> int:
        product = (self.int63() >> 31) * most
        if product % 2**32 < most:
            threshold = (2**32 - most) % most
            while product % 2**32 < threshold:
                product = (self.int63() >> 31) * most
        return product >> 32

    def permutation(self, number: int) -> list[int]:
        """`Perm`."""
        found = [0] * number
        for i in range(number):
            j = self.intn(i + 1)
            found[i] = found[j]
            found[j] = i
        return found
