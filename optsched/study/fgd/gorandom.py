"""Go's `math/rand` generator, which shuffles the pods of the published experiment.

`math/rand` is an additive lagged Fibonacci generator: x[i] = x[i − 607] + x[i − 273] modulo 2^64.
The generator's initial state is a fixed table, XORed with the output of a multiplicative generator
that starts at the seed. The first 607 numbers for one seed determine the fixed table, which
determines the numbers for every other seed. `go_seed_42.txt` contains the first 607 numbers for
seed 42. A test compares the output of this module with that of Go.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableSequence

_LONG: Final = 607
_SHORT: Final = 273
_WORD: Final = 2**64
_RECORDED_SEED: Final = 42
_PRIME: Final = 2**31 - 1
_FACTOR: Final = 48271
_ZERO_SEED: Final = 89482311
_SKIPPED: Final = 20


class GoRandom:
    """A generator that returns the same numbers as Go's `math/rand` after `rand.Seed(seed)`."""

    def __init__(self, seed: int) -> None:
        mixed = zip(_seeded(seed), _table(), strict=True)
        self._last = deque((word ^ cooked for word, cooked in mixed), maxlen=_LONG)

    def uint64(self) -> int:
        """Return the next 64-bit number, like Go's `Uint64`."""
        value = (self._last[0] + self._last[_LONG - _SHORT]) % _WORD
        self._last.append(value)
        return value

    def int63(self) -> int:
        """Return the next number below 2^63, like Go's `Int63`."""
        return self.uint64() % 2**63

    def intn(self, most: int) -> int:
        """Return a random number from 0 to `most` − 1, like Go's `Intn`; `most` is at most 2^31.

        The result is a random 31-bit number modulo `most`. Random 31-bit numbers that would make
        some results more likely than others are discarded.
        """
        if most & (most - 1) == 0:
            return (self.int63() >> 32) & (most - 1)
        limit = 2**31 - 1 - 2**31 % most
        value = self.int63() >> 32
        while value > limit:
            value = self.int63() >> 32
        return value % most

    def shuffle(self, values: MutableSequence[int]) -> None:
        """Shuffle `values` in place like Go's `Shuffle`, with Lemire's multiplication method."""
        for i in range(len(values) - 1, 0, -1):
            most = i + 1
            product = (self.int63() >> 31) * most
            if product % 2**32 < most:
                threshold = (2**32 - most) % most
                while product % 2**32 < threshold:
                    product = (self.int63() >> 31) * most
            j = product >> 32
            values[i], values[j] = values[j], values[i]

    def permutation(self, number: int) -> list[int]:
        """Return a permutation of the integers from 0 to `number` − 1, like Go's `Perm`."""
        found = [0] * number
        for i in range(number):
            j = self.intn(i + 1)
            found[i] = found[j]
            found[j] = i
        return found


def _seeded(seed: int) -> list[int]:
    """Return the 607 state words for a seed, in the order in which the generator uses them."""
    value = seed % _PRIME or _ZERO_SEED
    for _ in range(_SKIPPED):
        value = value * _FACTOR % _PRIME
    words = []
    for _ in range(_LONG):
        word = 0
        for shift in (40, 20, 0):
            value = value * _FACTOR % _PRIME
            word ^= value << shift
        words.append(word % _WORD)
    return [words[(_LONG - _SHORT - 1 - i) % _LONG] for i in range(_LONG)]


@cache
def _table() -> tuple[int, ...]:
    """Return one constant per state word; `GoRandom` XORs a seed's words with the constants."""
    text = files("optsched.study.fgd").joinpath(f"go_seed_{_RECORDED_SEED}.txt").read_text("utf-8")
    first = [int(line) for line in text.split()]
    state = deque(first, maxlen=_LONG)
    for _ in range(_LONG):  # Run the generator backwards by x[i − 607] = x[i] − x[i − 273].
        state.appendleft((state[-1] - state[_LONG - 1 - _SHORT]) % _WORD)
    return tuple(a ^ b for a, b in zip(state, _seeded(_RECORDED_SEED), strict=True))
