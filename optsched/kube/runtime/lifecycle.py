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
    """Return the name of this process in leader election, unique among all processes.

    In a pod, POD_UID has to hold the pod's UID. A restarted container then has the same name and
    renews its lease immediately. Only one process of a pod may be a candidate.
    """
    uid = environment.get("POD_UID", "")
    return f"{socket.gethostname()}_{uid or uuid.uuid4()}"


def freeze_startup_objects() -> None:
    """Exclude all existing objects from garbage collection: modules live as long as the process.

    CPython starts a full collection once new objects are a quarter of the tracked objects. If
    modules are excluded, a full collection starts sooner and takes less time.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # only a full collection resets CPython's count of tracked objects


async def wait_at_most(seconds: float, action: Coroutine[None, None, None]) -> None:
    """Await an action, and cancel the action after the given seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await action


@contextmanager
def handle_signals(actions: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call the action of each arriving signal, while the context is open."""
    loop = asyncio.get_running_loop()
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in actions:
            loop.remove_signal_handler(number)
