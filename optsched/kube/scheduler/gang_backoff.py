"""Backoff of gangs after a failed bind or eviction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.cluster.reasons import Reason
from optsched.kube.runtime.backoff import BackoffSteps

if TYPE_CHECKING:
    from optsched.cluster.reasons import ReasonCode
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.session.ports import Clock

HOLDS: Final = BackoffSteps(first_s=1.0, most_s=60.0)
"""How long a gang is held after its failures in a row."""


@dataclass(slots=True)
class _Hold:
    until_s: float = 0.0
    failures: int = 0


class GangBackoff:
    """Which gangs are held, and until when; the cache keeps held gangs from being scheduled."""

    def __init__(self, cache: ClusterCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._held: dict[str, _Hold] = {}

    def fail(self, gang: str, code: ReasonCode, message: str) -> None:
        """Hold a gang after a failure, longer than after the one before."""
        hold = self._held.setdefault(gang, _Hold())
        hold.failures += 1
        pause_s = HOLDS.delay_after(hold.failures)
        hold.until_s = self._clock.monotonic() + pause_s
        self._cache.hold_gang(gang, Reason(code, f"{message}; tried again in {pause_s:.0f} s"))

    def reset(self, gang: str) -> None:
        """Forget the failures of a gang after a success."""
        if self._held.pop(gang, None) is not None:
            self._cache.release_gang(gang)

    def release_due(self) -> None:
        """Release gangs whose backoff has ended."""
        now = self._clock.monotonic()
        for gang, hold in tuple(self._held.items()):
            if hold.until_s <= now:
                self._cache.release_gang(gang)
            if hold.until_s + HOLDS.most_s <= now:
                del self._held[gang]
