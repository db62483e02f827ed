"""Find the write at which a process is stopped, by its type and number."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.faults.schedule import WriteKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.faults.schedule import Stop

PLAN_S: Final = 0.5
"""The longest time between two evictions of one plan through one proxy."""

_WRITES: Final = (
    ("POST", re.compile(r"/pods/(?P<pod>[^/?]+)/binding"), WriteKind.BIND),
    ("POST", re.compile(r"/pods/[^/?]+/eviction"), WriteKind.EVICTION),
    ("PATCH", re.compile(r"/pods/[^/?]+/status"), WriteKind.NOMINATION),
    ("PATCH", re.compile(r"/pods/[^/?]+$"), WriteKind.GATE),
    ("PATCH", re.compile(r"/podgroups/[^/?]+/status"), WriteKind.GROUP_STATUS),
    ("PATCH", re.compile(r"/podgroups/[^/?]+$"), WriteKind.GROUP_RECORD),
    ("PATCH", re.compile(r"/resourceclaims/[^/?]+/status"), WriteKind.CLAIM_STATUS),
    ("PATCH", re.compile(r"/resourceclaims/[^/?]+$"), WriteKind.CLAIM),
)


class StopPoints:
    """A thread-safe counter of the writes through all proxies."""

    def __init__(self, stops: Sequence[Stop]) -> None:
        self._left = list(stops)
        self._counts: Counter[WriteKind] = Counter()
        self._bound: set[str] = set()
        self._evicted_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def meet(self, door: str, method: str, path: str) -> Stop | None:
        """Count a request of a proxy, and return the stop at this request, if any.

        Each stop is returned at most once.
        """
        with self._lock:
            for kind in self._kinds(door, method, path):
                self._counts[kind] += 1
                for stop in self._left:
                    if (stop.kind, stop.number) == (kind, self._counts[kind]):
                        self._left.remove(stop)
                        return stop
        return None

    def end(self) -> tuple[Stop, ...]:
        """Remove the remaining stops, and return them."""
        with self._lock:
            left = tuple(self._left)
            self._left.clear()
        return left

    def _kinds(self, door: str, method: str, path: str) -> Iterator[WriteKind]:
        for verb, pattern, kind in _WRITES:
            found = pattern.search(path) if verb == method else None
            if found is None:
                continue
            yield kind
            if kind is WriteKind.BIND:
                gang = found["pod"].rpartition("-")[0]
                if gang in self._bound:
                    yield WriteKind.NEXT_BIND
                self._bound.add(gang)
            elif kind is WriteKind.EVICTION:
                now = time.monotonic()
                if now - self._evicted_s.get(door, -PLAN_S) < PLAN_S:
                    yield WriteKind.NEXT_EVICTION
                self._evicted_s[door] = now
