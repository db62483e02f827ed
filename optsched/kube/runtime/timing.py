"""Clock, sleep, random numbers and backoff, which tests can replace."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class SystemClock:
    """The system clock; a running process reads no other clock."""

    def now_ms(self) -> int:
        """Return the current time in milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return a monotonic time in seconds."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class Timing:
    """A sleep function and a source of random numbers.

    `sleep` waits for a number of seconds. `chance` returns a random number from 0 to 1.
    """

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class BackoffSteps:
    """Delays that double with each failure.

    `first_s` is the first delay and `max_s` the longest delay, both in seconds.
    """

    first_s: float
    max_s: float

    def delay_after(self, failures: int) -> float:
        """Return the delay in seconds after one or more consecutive failures."""
        return float(min(self.max_s, self.first_s * 2 ** min(failures - 1, 30)))


class Backoff:
    """A delay that grows with each failure.

    Jitter shortens each delay by up to half, so clients that failed together do not retry together.
    """

    def __init__(self, steps: BackoffSteps, chance: Callable[[], float]) -> None:
        self._steps = steps
        self._chance = chance
        self.failures = 0

    def next_delay(self) -> float:
        """Count a failure and return the delay in seconds before the next attempt."""
        self.failures += 1
        return self._steps.delay_after(self.failures) * (1 - self._chance() / 2)

    def reset(self) -> None:
        """Start again with the first delay after a successful attempt."""
        self.failures = 0
