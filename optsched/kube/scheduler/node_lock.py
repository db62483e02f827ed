"""A lock on a node, under which one pod at a time gets vGPUs.

The kubelet does not tell a device plugin for which pod it allocates; the plugin takes the pod whose
annotations say `allocating`. The lock leaves only one such pod: the binder sets an annotation on
the node, and the device plugin removes it once it has allocated. Volcano:
`pkg/scheduler/plugins/util/nodelock`; there a locked node fails the bind, here the bind waits.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import NODE
from optsched.kube.client.errors import Conflict, KubeError
from optsched.kube.client.interfaces import Ref
from optsched.units import TimestampError, format_time, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from optsched.kube.client.interfaces import Api
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

LOCK: Final = "hamivgpu"
"""The annotation, as the device plugin knows it (`DeviceName`)."""
EXPIRES_MS: Final = 5 * 60 * 1000
"""After this a lock counts as abandoned."""
PATIENCE_S: Final = 30.0
"""How long a bind waits for a lock that another scheduler holds."""
LOOKS_EVERY_S: Final = 0.5


@dataclass(slots=True)
class _Turn:
    """The turn of a node, and the binds that have it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_binds: int = 0


class NodeLocks:
    """Locks nodes; binds to one node take turns."""

    def __init__(self, api: Api, clock: Clock, timing: Timing) -> None:
        self._api = api
        self._clock = clock
        self._timing = timing
        self._turns: dict[str, _Turn] = {}

    async def acquire(self, node: str) -> str:
        """Lock a node once it is free; returns why not, or an empty string.

        Raises KubeError where the outcome is unknown.
        """
        async with self._take_turn(node):
            until_s = self._clock.monotonic() + PATIENCE_S
            while True:
                held = await self._try_acquire(node)
                if held is None:
                    return ""
                if self._clock.monotonic() >= until_s:
                    return f"node {node} is locked ({LOCK}) since {held} for another pod"
                await self._timing.sleep(LOOKS_EVERY_S)

    @asynccontextmanager
    async def _take_turn(self, node: str) -> AsyncIterator[None]:
        """Hold the turn of a node while the context is open; the last bind forgets the node."""
        turn = self._turns.setdefault(node, _Turn())
        turn.num_binds += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.num_binds -= 1
            if not turn.num_binds:
                del self._turns[node]

    async def release(self, node: str) -> None:
        """Unlock a node after a failed bind, if possible."""
        with suppress(KubeError):
            await self._api.patch(Ref(NODE, "", node), {"metadata": {"annotations": {LOCK: None}}})

    async def _try_acquire(self, node: str) -> str | None:
        """Return since when another process holds the lock; None once this one does."""
        ref = Ref(NODE, "", node)
        obj = await self._api.read(ref)
        now_ms = self._clock.now_ms()
        annotations = obj["metadata"].get("annotations")
        held = str(annotations.get(LOCK) or "") if isinstance(annotations, dict) else ""
        if held and not _has_expired(held, now_ms):
            return held
        version = obj["metadata"].get("resourceVersion")
        mark = {LOCK: format_time(now_ms)}
        body: dict[str, Any] = {"metadata": {"resourceVersion": version, "annotations": mark}}
        try:
            await self._api.patch(ref, body)
        except Conflict:
            return "just now"
        return None


def _has_expired(since: str, now_ms: int) -> bool:
    """Whether a lock has expired; an unreadable one has."""
    try:
        return now_ms - parse_time_ms(since) > EXPIRES_MS
    except TimestampError:
        return True
