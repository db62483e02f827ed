"""What processes that run for months have in common: a name, an end, and what to do before it."""

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
    """A name that no other process has.

    In a pod it is the pod's: a container that is started again takes its lease again at once, for
    the one before it has ended. POD_UID has to name the pod, and one process of a pod may elect.
    """
    uid = environment.get("POD_UID", "")
    return f"{socket.gethostname()}_{uid or uuid.uuid4()}"


def freeze_startup_objects() -> None:
    """Leave out of garbage collections what exists now: modules live as long as the process.

    A full collection begins once new objects may be a quarter of what it looks at; without modules
    that is sooner, and it takes less time.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # counts again what is looked at: CPython does that in full collections alone


async def wait_at_most(seconds: float, action: Coroutine[None, None, None]) -> None:
    """Wait for something, but not longer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await action


@contextmanager
def handle_signals(actions: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Signals do what they are meant to for a while."""
    loop = asyncio.get_running_loop()
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in actions:
            loop.remove_signal_handler(number)
