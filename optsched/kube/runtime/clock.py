"""The system clock."""

from __future__ import annotations

import time


class SystemClock:
    """The only place where a running process reads the time."""

    def now_ms(self) -> int:
        """Return epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.monotonic()
