"""Identity, signals, shutdown and API server outages of long-running processes.

During an outage, every watch and write fails. With `Outage`, a process logs only one warning per
outage.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from optsched.kube.client.errors import Gone, ServerFault, TooMany, Unreachable

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping

    from optsched.api.kinds import Kind
    from optsched.kube.client.errors import KubeError


def identity(environment: Mapping[str, str] = os.environ) -> str:
    """Return this process's unique name in leader election.

    In a pod, POD_UID must hold the pod's UID. A restarted container has the same pod UID, so it
    keeps its name and renews its lease immediately. Only one process per pod may be a candidate.
    """
    uid = environment.get("POD_UID", "")
    return f"{socket.gethostname()}_{uid or uuid.uuid4()}"


def freeze_startup_objects() -> None:
    """Exclude all existing Python objects from garbage collection: modules are never freed.

    CPython starts a full collection when the number of new objects reaches a quarter of all tracked
    objects. If the modules are excluded, full garbage collections start sooner and take less time.
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


log = logging.getLogger(__name__)


class Outage:
    """Tracks operations that fail because the API server is unavailable, and broken watches.

    Each operation or watch is identified by a key.
    """

    def __init__(self) -> None:
        self._failing: set[Hashable] = set()
        self._broken_watches: set[Hashable] = set()

    @property
    def is_active(self) -> bool:
        """Whether any operation fails because the API server is unavailable."""
        return bool(self._failing)

    def record_failure(self, about: Hashable, error: KubeError) -> bool:
        """Record a failed operation; return whether the failure must be reported.

        Only the first failure of an outage is reported. Errors with other causes, such as a missing
        permission, are always reported.
        """
        if isinstance(error, Gone):
            # `Gone` is no failure of the server: the kind is listed next. A list that fails while a
            # restarted server initializes its storage belongs to the same outage.
            return True
        if not isinstance(error, Unreachable | ServerFault | TooMany):
            self.record_success(about)
            return True
        is_new = not self._failing
        self._failing.add(about)
        return is_new

    def record_success(self, about: Hashable) -> None:
        """Record that the server responded to an operation."""
        self._failing.discard(about)

    def retain(self, is_tried: Callable[[Hashable], bool]) -> None:
        """Forget the failures of operations for which `is_tried` returns False."""
        self._failing = set(filter(is_tried, self._failing))

    def record_watch_success(self, key: Hashable, kind: Kind, *, was_absent: bool = False) -> None:
        """Record that a watch receives events, and log its recovery if it was broken or absent."""
        self.record_success(key)
        if was_absent or key in self._broken_watches:
            self._broken_watches.discard(key)
            log.info("%s: followed again", kind.plural)

    def record_watch_failure(self, key: Hashable, kind: Kind, error: KubeError) -> bool:
        """Log the first failure of a watch; return whether this failure was logged.

        During an outage, only the first failed watch of the process is logged.
        """
        if not self.record_failure(key, error) or key in self._broken_watches:
            return False
        self._broken_watches.add(key)
        # An expired resource version is not an error: the kind is listed again.
        level = logging.INFO if isinstance(error, Gone) else logging.WARNING
        name = f"{kind.plural} of {kind.api_version}" if kind.group else kind.plural
        log.log(level, "%s: cannot be followed: %s", name, error)
        return True
