"""Queues of the keys of objects to reconcile, and queues of values to write.

`WorkQueue` holds keys to reconcile, as in client-go: one worker at a time handles a key, which is
queued only once. `WriteQueue` holds values to write, in order of arrival. For each key, a
`WriteQueue` keeps only the newest value. A failed write is retried with a backoff for its key,
while other writes continue. An object that a webhook rejects therefore delays no other object. At
most half of the concurrent requests are retries. After a server fault, all writes of the same lane
(for example, a namespace) count as retries.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from optsched.kube.client.errors import KubeError, ServerFault, TooMany, Unreachable
from optsched.kube.runtime.timing import Backoff, BackoffSteps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from optsched.kube.runtime.timing import Timing

K = TypeVar("K")
V = TypeVar("V")

WRITE_RETRIES: Final = BackoffSteps(first_s=0.5, max_s=15.0)

AWAY_S: Final = 3.0
"""Maximum delay in seconds before a retry while the server is unreachable."""

MAX_FAULTS: Final = 10
"""Number of consecutive server faults (5xx), within about 80 s, after which a write is dropped.

Errors of an unreachable or busy server do not count, because the written object does not cause
them.
"""


@dataclass(eq=False, slots=True)
class _Failures:
    """The backoff of a failed write, and the number of consecutive server faults (5xx)."""

    backoff: Backoff
    num_faults: int = 0


class WriteQueue(Generic[K, V]):
    """A queue of values to write; a value that is replaced before its write is never written.

    `num_dropped` counts the values dropped because too many were waiting; the oldest are dropped
    first.
    """

    def __init__(
        self,
        write: Callable[[K, V], Awaitable[None]],
        timing: Timing,
        *,
        max_concurrent: int = 4,
        max_waiting: int | None = None,
        lane_of: Callable[[K], Hashable] = lambda key: key,
        on_failure: Callable[[K, KubeError], None],
    ) -> None:
        """`lane_of` maps a key to its lane: a set of keys whose writes tend to fail together.

        After a server fault (5xx), all writes in the lane count as retries until one of these
        writes succeeds.
        """
        self.num_dropped = 0
        self._write = write
        self._timing = timing
        self._max_concurrent = max_concurrent
        self._max_waiting = max_waiting
        self._lane_of = lane_of
        self._on_failure = on_failure
        self._values: dict[K, V] = {}
        self._paused: dict[K, V] = {}
        self._failures: dict[K, _Failures] = {}
        self._faulty_lanes: set[Hashable] = set()
        self._under_way: set[K] = set()
        self._num_retries = 0
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._values) + len(self._paused)

    def enqueue(self, key: K, value: V) -> None:
        """Queue a value for writing; it replaces a waiting value of the same key."""
        if key in self._paused:
            self._paused[key] = value
            return
        self._values[key] = value
        if self._max_waiting is not None and len(self) > self._max_waiting:
            oldest = self._values if len(self._values) > 1 else self._paused
            key = next(iter(oldest))
            del oldest[key]
            self._forget(key)
            self.num_dropped += 1
        self._idle.clear()
        self._work.set()

    def pending_value(self, key: K) -> V | None:
        """Return the waiting value of a key, or None if no value waits."""
        return self._values.get(key, self._paused.get(key))

    def discard(self, key: K) -> None:
        """Drop the waiting value of a key."""
        self._values.pop(key, None)
        self._paused.pop(key, None)
        self._forget(key)
        self._check_idle()

    def clear(self) -> None:
        """Drop all waiting values."""
        self._values.clear()
        self._paused.clear()
        self._failures.clear()
        self._faulty_lanes.clear()
        self._check_idle()

    def is_written(self, key: K) -> bool:
        """Return whether all queued values of a key are written, replaced or dropped."""
        return not (key in self._values or key in self._paused or key in self._under_way)

    async def run(self) -> None:
        """Write queued values until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._max_concurrent):
                workers.create_task(self._serve(workers))

    async def until_idle(self) -> None:
        """Wait until no value is waiting or being written."""
        await self._idle.wait()

    async def _serve(self, workers: asyncio.TaskGroup) -> None:
        outage = Backoff(WRITE_RETRIES, self._timing.chance)
        max_retries = max(1, self._max_concurrent // 2)
        while True:
            may_retry = self._num_retries < max_retries
            ready = (
                key
                for key in self._values
                if key not in self._under_way and (may_retry or not self._is_retry(key))
            )
            key = next(ready, None)
            if key is None:
                self._work.clear()
                await self._work.wait()
                continue
            value = self._values.pop(key)
            is_retry = self._is_retry(key)
            self._under_way.add(key)
            self._num_retries += is_retry
            try:
                error = await self._write_once(key, value, workers)
            finally:
                self._under_way.discard(key)
                self._num_retries -= is_retry
            if self._values:
                self._work.set()
            self._check_idle()
            if not isinstance(error, Unreachable):
                outage.reset()
                continue
            pause_s = min(outage.next_delay(), AWAY_S)
            if outage.failures > 1:
                # An unreachable server affects the writes of all keys, so the worker pauses.
                await self._timing.sleep(pause_s)

    async def _write_once(self, key: K, value: V, workers: asyncio.TaskGroup) -> KubeError | None:
        """Write a value; if the write fails, schedule a retry and return the error."""
        lane = self._lane_of(key)
        try:
            await self._write(key, value)
        except KubeError as e:
            failures = self._failures.get(key) or _Failures(
                Backoff(WRITE_RETRIES, self._timing.chance)
            )
            if isinstance(e, ServerFault):
                self._faulty_lanes.add(lane)
                failures.num_faults += 1
            is_transient = isinstance(e, Unreachable | TooMany | ServerFault)
            if is_transient and failures.num_faults < MAX_FAULTS:
                self._failures[key] = failures
                pause_s = failures.backoff.next_delay()
                if isinstance(e, Unreachable):
                    pause_s = min(pause_s, AWAY_S)
                if isinstance(e, TooMany) and e.retry_after_s:
                    pause_s = e.retry_after_s
                self._paused[key] = self._values.pop(key, value)
                workers.create_task(self._resume(key, failures, pause_s))
                return e
            self._forget(key)
            self._on_failure(key, e)
            return e
        self._forget(key)
        self._faulty_lanes.discard(lane)
        return None

    def _is_retry(self, key: K) -> bool:
        return key in self._failures or self._lane_of(key) in self._faulty_lanes

    async def _resume(self, key: K, failures: _Failures, pause_s: float) -> None:
        """Queue a key's value again after a delay, unless the value was dropped.

        `failures` identifies the value: a later value of the same key has another `_Failures`
        object.
        """
        await self._timing.sleep(pause_s)
        if key in self._paused and self._failures.get(key) is failures:
            self._values[key] = self._paused.pop(key)
            self._work.set()

    def _forget(self, key: K) -> None:
        self._failures.pop(key, None)
        # Without `lane_of`, each key is its own lane, which is removed after the key's last write.
        self._faulty_lanes.discard(key)

    def _check_idle(self) -> None:
        if not (self._values or self._paused or self._under_way):
            self._idle.set()


RECONCILE_RETRIES = BackoffSteps(first_s=0.02, max_s=30.0)


class WorkQueue(Generic[K]):
    """A queue of keys; a key that is added while it is handled is queued again afterwards."""

    def __init__(
        self, chance: Callable[[], float], retries: BackoffSteps = RECONCILE_RETRIES
    ) -> None:
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
        """Add a key after a delay, unless an earlier addition of the key is already scheduled."""
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
        """Queue a key again with backoff; return the number of the key's consecutive failures."""
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
