"""Identity, signals and shutdown of long-running processes."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Coroutine, Iterator, Mapping


def identity(environment: Mapping[str, str] = os.environ) -> str:
    """Return this process's unique name in leader election.

    In a pod, POD_UID must hold the pod's UID. A restarted container then keeps its name and renews
    its lease immediately. Only one process per pod may be a candidate.
    """
    uid = environment.get("POD_UID", "")
    return f"{socket.gethostname()}_{uid or uuid.uuid4()}"


def freeze_startup_objects() -> None:
    """Exclude all existing objects from garbage collection, because modules are never freed.

    CPython starts a full collection when new objects reach a quarter of all tracked objects.
    Without the modules, full collections start sooner and take less time.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # only a full collection resets CPython's count of tracked objects


async def wait_at_most(seconds: float, action: Coroutine[None, None, None]) -> None:
    """Await a coroutine, but cancel it after the given number of seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await action


@contextmanager
def handle_signals(actions: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """While the context is open, call the action for each signal that arrives."""
    loop = asyncio.get_running_loop()
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in actions:
            loop.remove_signal_handler(number)
