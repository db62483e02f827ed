"""What is to be written, the newest value for each key, in the order in which keys came."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from optsched.kube.backoff import Backoff, Steps
from optsched.kube.errors import KubeError, ServerFault, TooMany, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from optsched.kube.waiting import Waiting

K = TypeVar("K")
V = TypeVar("V")

RETRIES: Final = Steps(first_s=0.5, most_s=15.0)


class Outbox(Generic[K, V]):
    """Writes values; a value that is replaced before its turn is never written.

    Attributes
    ----------
    num_dropped
        Values that were given up, the oldest first, because too many waited.

    """

    def __init__(
        self,
        write: Callable[[K, V], Awaitable[None]],
        waiting: Waiting,
        *,
        at_once: int = 4,
        most: int | None = None,
        on_failure: Callable[[K, KubeError], None],
    ) -> None:
        self.num_dropped = 0
        self._write = write
        self._waiting = waiting
        self._at_once = at_once
        self._most = most
        self._on_failure = on_failure
        self._values: dict[K, V] = {}
        self._under_way: set[K] = set()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: K, value: V) -> None:
        """Have a value written; it takes the place of one that waits under the same key."""
        self._values[key] = value
        if self._most is not None and len(self._values) > self._most:
            del self._values[next(iter(self._values))]
            self.num_dropped += 1
        self._idle.clear()
        self._work.set()

    def clear(self) -> None:
        """Give up everything that waits."""
        self._values.clear()
        if not self._under_way:
            self._idle.set()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._at_once):
                workers.create_task(self._serve())

    async def until_idle(self) -> None:
        """Wait until everything is written."""
        await self._idle.wait()

    async def _serve(self) -> None:
        backoff = Backoff(RETRIES, self._waiting.chance)
        while True:
            key = await self._next()
            value = self._values.pop(key)
            self._under_way.add(key)
            try:
                pause_s = await self._try(key, value, backoff)
            finally:
                self._under_way.discard(key)
            if self._values:
                self._work.set()
            elif not self._under_way:
                self._idle.set()
            if pause_s:
                await self._waiting.sleep(pause_s)

    async def _next(self) -> K:
        """The first key that nobody is writing right now."""
        while True:
            for key in self._values:
                if key not in self._under_way:
                    return key
            self._work.clear()
            await self._work.wait()

    async def _try(self, key: K, value: V, backoff: Backoff) -> float:
        """Write a value; how long to wait before the next."""
        try:
            await self._write(key, value)
        except (Unreachable, TooMany, ServerFault) as e:
            self._values.setdefault(key, value)
            asked_s = e.retry_after_s if isinstance(e, TooMany) else None
            return asked_s or backoff.next()
        except KubeError as e:
            self._on_failure(key, e)
        backoff.reset()
        return 0.0
