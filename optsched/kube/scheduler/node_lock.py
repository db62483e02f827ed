"""The lock by which one pod at a time gets vGPUs of a node.

The kubelet asks device plugins without a word about which pod it is for; they take the one whose
annotations say `allocating`. With the lock there is only one: whoever binds sets an annotation on
the node, and the device plugin takes it away once it has handed the vGPUs out. Volcano:
`pkg/scheduler/plugins/util/nodelock`; there a locked node fails the bind, here the next waits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import NODE
from optsched.kube.client.errors import Conflict, KubeError
from optsched.kube.client.interfaces import Ref
from optsched.units import TimestampError, format_time, parse_time_ms

if TYPE_CHECKING:
    from optsched.kube.client.interfaces import Api, Raw
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

LOCK: Final = "hamivgpu"
"""The annotation, as the device plugin knows it (`DeviceName`)."""
EXPIRES_MS: Final = 5 * 60 * 1000
"""After that, whoever set it counts as gone."""
PATIENCE_S: Final = 30.0
"""How long a bind waits for a lock that somebody else holds."""
LOOKS_EVERY_S: Final = 0.5


class NodeLocks:
    """Locks nodes one after the other."""

    def __init__(self, api: Api, clock: Clock, timing: Timing) -> None:
        self._api = api
        self._clock = clock
        self._timing = timing
        self._turns: dict[str, asyncio.Lock] = {}

    async def acquire(self, node: str) -> str:
        """Lock a node, once it is free; why not, or empty.

        Raises KubeError where nobody knows.
        """
        async with self._turns.setdefault(node, asyncio.Lock()):
            until_s = self._clock.monotonic() + PATIENCE_S
            while True:
                held = await self._try_acquire(node)
                if held is None:
                    return ""
                if self._clock.monotonic() >= until_s:
                    return f"node {node} is locked ({LOCK}) since {held} for another pod"
                await self._timing.sleep(LOOKS_EVERY_S)

    async def release(self, node: str) -> None:
        """Unlock a node after a bind that came to nothing, if possible."""
        with suppress(KubeError):
            await self._api.patch(Ref(NODE, "", node), {"metadata": {"annotations": {LOCK: None}}})

    async def _try_acquire(self, node: str) -> str | None:
        """Since when somebody else has the lock; None once it is ours."""
        ref = Ref(NODE, "", node)
        obj = await self._api.read(ref)
        now_ms = self._clock.now_ms()
        held = _lock_time(obj)
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


def _lock_time(node: Raw) -> str:
    annotations = node["metadata"].get("annotations")
    return str(annotations.get(LOCK) or "") if isinstance(annotations, dict) else ""


def _has_expired(since: str, now_ms: int) -> bool:
    """Whether a lock has expired; one that nobody can read never does any good."""
    try:
        return now_ms - parse_time_ms(since) > EXPIRES_MS
    except TimestampError:
        return True
