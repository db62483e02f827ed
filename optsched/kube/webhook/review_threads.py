"""Threads for reviews, and a memory budget for their bodies.

The event loop, which answers health probes, reviews nothing. Small reviews never wait for large
ones, and large ones are decoded one at a time, so that memory is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SMALL: Final = 64 * 2**10
"""Largest size of a small body in bytes: most jobs have a tenth of that."""
MOST_BYTES: Final = 24 * 2**20
"""Bytes of large bodies that are read or reviewed at the same time."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class MemoryBudget:
    """An amount that is reserved in parts, first come, first served."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, amount: int) -> AsyncIterator[None]:
        """Reserve a part while the context is open; waits until it is available."""
        if self._waiters or amount > self._left:
            await self._wait(amount)
        else:
            self._left -= amount
        try:
            yield
        finally:
            self._release(amount)

    async def _wait(self, amount: int) -> None:
        place = (amount, asyncio.get_running_loop().create_future())
        self._waiters.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiters:
                self._waiters.remove(place)
                self._release(0)
            elif not place[1].cancelled():
                self._release(amount)
            raise

    def _release(self, amount: int) -> None:
        self._left += amount
        while self._waiters and self._waiters[0][0] <= self._left:
            amount, turn = self._waiters.popleft()
            if not turn.done():
                self._left -= amount
                turn.set_result(None)


class ReviewThreads:
    """Threads in which reviews run."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(2, "review")
        self._large = ThreadPoolExecutor(1, "large-review")
        self._memory = MemoryBudget(MOST_BYTES)

    @asynccontextmanager
    async def reserve_memory(self, num_bytes: int) -> AsyncIterator[None]:
        """Reserve memory for a large body; small ones need none."""
        if num_bytes <= SMALL:
            yield
            return
        async with self._memory.reserve(num_bytes):
            yield

    async def run(
        self, num_bytes: int, call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Run a call in the thread pool for bodies of this size."""
        lane = self._small if num_bytes <= SMALL else self._large
        future = lane.submit(call, *args, **kwargs)
        return await asyncio.wrap_future(future)
