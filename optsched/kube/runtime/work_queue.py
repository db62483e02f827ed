"""A work queue as in client-go: one worker at a time handles a key, which is queued only once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from optsched.kube.runtime.timing import BackoffSteps

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")

RETRIES = BackoffSteps(first_s=0.02, max_s=30.0)


class WorkQueue(Generic[K]):
    """A queue of keys; a key that is added while it is handled is queued again afterwards."""

    def __init__(self, chance: Callable[[], float], retries: BackoffSteps = RETRIES) -> None:
        self._chance = chance
        self._retries = retries
        self._waiting: dict[K, None] = {}
        self._processing: set[K] = set()
        self._added_again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._work = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return len(self._waiting) + len(self._added_again)

    @property
    def is_idle(self) -> bool:
        """Whether no key is waiting or being handled; delayed keys do not count."""
        return not (self._waiting or self._processing)

    def add(self, key: K) -> None:
        """Queue a key; a key that is being handled is queued again afterwards."""
        if key in self._processing:
            self._added_again.add(key)
            return
        self._waiting[key] = None
        self._work.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Add a key after a delay, unless an earlier call adds it even sooner."""
        loop = asyncio.get_running_loop()
        known = self._delayed.get(key)
        if known is not None:
            if known.when() <= loop.time() + seconds:
                return
            known.cancel()
        self._delayed[key] = loop.call_later(seconds, self._add_delayed, key)

    async def next_key(self) -> K:
        """Return the next key; the caller must call `mark_done` or `retry_later` for the key."""
        while not self._waiting:
            self._work.clear()
            await self._work.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._processing.add(key)
        return key

    def mark_done(self, key: K) -> None:
        """Record that a key was handled successfully."""
        self._failures.pop(key, None)
        self._release(key)

    def retry_later(self, key: K) -> int:
        """Queue a key again with backoff; return how often in a row the key has failed."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._release(key)
        self.add_after(key, self._retries.delay_after(failures) * (1 - self._chance() / 2))
        return failures

    def clear(self) -> None:
        """Drop all waiting and delayed keys."""
        for handle in self._delayed.values():
            handle.cancel()
        self._delayed.clear()
        self._waiting.clear()
        self._added_again.clear()
        self._failures.clear()

    def _release(self, key: K) -> None:
        self._processing.discard(key)
        if key in self._added_again:
            self._added_again.discard(key)
            self.add(key)

    def _add_delayed(self, key: K) -> None:
        del self._delayed[key]
        self.add(key)
