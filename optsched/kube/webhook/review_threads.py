"""Room for bodies in memory, and threads in which they are reviewed.

The loop that answers health probes decides nothing. Small reviews never wait for large ones, and
large ones are decoded one at a time, so that memory has a limit.
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
"""Bytes of a body that counts as small: most jobs have a tenth of that."""
MOST_BYTES: Final = 24 * 2**20
"""Bytes of large bodies that are read or reviewed at one time."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class MemoryBudget:
    """An amount that is shared by those who hold a part of it, first come, first served."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, amount: int) -> AsyncIterator[None]:
        """Hold a part while the context is open; waits until it is there."""
        if self._line or amount > self._left:
            await self._wait(amount)
        else:
            self._left -= amount
        try:
            yield
        finally:
            self._release(amount)

    async def _wait(self, amount: int) -> None:
        place = (amount, asyncio.get_running_loop().create_future())
        self._line.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._line:
                self._line.remove(place)
                self._release(0)
            elif not place[1].cancelled():
                self._release(amount)
            raise

    def _release(self, amount: int) -> None:
        self._left += amount
        while self._line and self._line[0][0] <= self._left:
            amount, turn = self._line.popleft()
            if not turn.done():
                self._left -= amount
                turn.set_result(None)


class ReviewThreads:
    """Threads for reviews; asyncio waits for them."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(2, "review")
        self._large = ThreadPoolExecutor(1, "large-review")
        self._room = MemoryBudget(MOST_BYTES)

    @asynccontextmanager
    async def reserve_memory(self, num_bytes: int) -> AsyncIterator[None]:
        """Hold memory for a body; small ones have it."""
        if num_bytes <= SMALL:
            yield
            return
        async with self._room.reserve(num_bytes):
            yield

    async def run(
        self, num_bytes: int, call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Return what a call gives that is about a body of some size."""
        lane = self._small if num_bytes <= SMALL else self._large
        future = lane.submit(call, *args, **kwargs)
        return await asyncio.wrap_future(future)
