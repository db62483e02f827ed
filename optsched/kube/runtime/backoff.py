"""How long to wait before the next try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class BackoffSteps:
    """Waiting times that double.

    Attributes
    ----------
    first_s, most_s
        The first and the longest.

    """

    first_s: float
    most_s: float

    def delay_after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, at least one."""
        return float(min(self.most_s, self.first_s * 2 ** min(failures - 1, 30)))


class Backoff:
    """Waiting times that grow from failure to failure.

    Chance takes up to half of each, so that clients which fail together do not come back together.
    """

    def __init__(self, steps: BackoffSteps, chance: Callable[[], float]) -> None:
        self._steps = steps
        self._chance = chance
        self.failures = 0

    def next_delay(self) -> float:
        """Seconds to wait after one more failure."""
        self.failures += 1
        return self._steps.delay_after(self.failures) * (1 - self._chance() / 2)

    def reset(self) -> None:
        """Something has worked."""
        self.failures = 0
