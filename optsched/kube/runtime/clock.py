"""The clock of the machine."""

from __future__ import annotations

import time


class SystemClock:
    """The only place of a running scheduler where time is read."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
