"""A proxy of the API server that disturbs some requests, drawn from a seed."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp import web

from tests.faults.node_knowledge import NodeKnowledge
from tests.support.proxy import HOP, Proxy, cut, is_binding, is_write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.schedule import Stop
    from tests.faults.stops import StopPoints

_REASONS: Final = {
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_NAMES: Final = re.compile(r"/(namespaces|pods|podgroups|queues|jobs|events|nodes|leases)/[^/]+")
NODES: Final = "/api/v1/nodes"
AWAY: Final = b"failed calling webhook"
"""The text of an API server that refuses a request because no webhook reviews the request."""

MOST_S: Final = 2.0
"""The longest time that a stop waits for the responses to earlier writes."""

TREATMENTS: Final = ("delay", "delay", "delay", "cut", "lose", *_REASONS)


@dataclass(frozen=True)
class Stopping:
    """The writes at which a process is stopped, and the function that stops it.

    The thread of the proxy calls the function.
    """

    points: StopPoints
    strike: Callable[[Stop], None]


class Door(Proxy):
    """A proxy that delays, cuts and fails requests, silences watches and stops processes.

    Attributes
    ----------
    counts
        The number of received requests by method and resource.
    late_binds
        Messages about binds to nodes that the process already knew to be cordoned or deleted.
    unreviewed
        The number of requests that failed because no webhook reviewed them, with the keys of
        `counts`.

    """

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        seed: str,
        rate: float,
        stopping: Stopping,
        user: str = "",
    ) -> None:
        """`rate` is the fraction of disturbed requests, except watches.

        With `user`, the requests are those of this user with all permissions.
        """
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(kubeconfig, folder)
        if user:
            self._headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        self.counts: Counter[str] = Counter()
        self.unreviewed: Counter[str] = Counter()
        self.late_binds: list[str] = []
        self._knowledge = NodeKnowledge()
        self._stopping = stopping
        self._num_writing = 0
        self._is_shut = False
        self._seed = seed
        self._rate = rate
        self._silent: dict[str, int] = {}
        self._lock = threading.Lock()

    def heal(self) -> None:
        """Disturb no further request."""
        self._rate = 0.0
        with self._lock:
            self._silent.clear()

    def silence(self, plural: str) -> None:
        """Silence all current and future watches of a kind."""
        with self._lock:
            self._silent[plural] = self._silent.get(plural, 0) + 1

    def sound(self, plural: str) -> None:
        """Let new watches of a kind send events again, without the events of the silent time."""
        with self._lock:
            self._silent.pop(plural, None)

    def revive(self) -> None:
        """Let requests through again after the killed process has been replaced."""
        self._is_shut = False
        self._loop.call_soon_threadsafe(self._knowledge.forget)

    def resume(self) -> None:
        """Record that the stopped process behind the proxy continues."""
        self._loop.call_soon_threadsafe(self._knowledge.resume, time.monotonic())

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, or drop the request if its process has been stopped."""
        if self._is_shut:
            return cut(request)
        if not is_write(request.method, request.path_qs):
            return await self._treat(request)
        if is_binding(request.method, request.path_qs):
            await self._check_bind(request, time.monotonic())
        stop = self._stopping.points.meet(self._seed, request.method, request.path_qs)
        if stop is not None:
            return await self._stop(request, stop)
        self._num_writing += 1
        try:
            return await self._treat(request)
        finally:
            self._num_writing -= 1

    async def _check_bind(self, request: web.Request, sent_s: float) -> None:
        binding = await request.json()
        pod, node = binding["metadata"]["name"], binding["target"]["name"]
        if sentence := self._knowledge.find_late_bind(pod, node, sent_s):
            self.late_binds.append(sentence)

    async def _stop(self, request: web.Request, stop: Stop) -> web.StreamResponse:
        """Stop the process after the responses to its earlier writes, and drop its later writes."""
        self._is_shut = True
        body = await request.read()
        with suppress(TimeoutError):
            async with asyncio.timeout(MOST_S):
                while self._num_writing:
                    await asyncio.sleep(0.005)
        self._stopping.strike(stop)
        # The write happens once, even if the killed process has lost its connection.
        if stop.is_sent:
            await asyncio.shield(self._send(request, body))
        if stop.is_frozen:
            self._is_shut = False
        return cut(request)

    async def _send(self, request: web.Request, body: bytes) -> None:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        with suppress(aiohttp.ClientError):
            async with self._http.request(
                request.method, request.path_qs, data=body or None, headers=headers
            ) as answer:
                await answer.read()

    async def _treat(self, request: web.Request) -> web.StreamResponse:
        method, path = request.method, request.path_qs
        is_watch = "watch=1" in path
        resource = resource_of(path)
        key = f"{'WATCH' if is_watch else method} {resource}"
        self.counts[key] += 1
        treatment = None if is_watch else self._treatment(key)
        if treatment == "delay":
            await asyncio.sleep(Random(f"{self._seed} {self.counts[key]}").uniform(0.05, 0.8))
        if treatment in (None, "delay"):
            answer = await super()._handle(request)
            is_refused = isinstance(answer, web.Response) and answer.status >= 400
            if is_refused and AWAY in (answer.body or b""):
                self.unreviewed[key] += 1
            is_list = key == f"GET {NODES}" and isinstance(answer, web.Response)
            if is_list and answer.status == 200:
                nodes = json.loads(answer.body)["items"]
                self._knowledge.receive_list(nodes, time.monotonic())
            return answer
        if treatment == "cut":
            return cut(request)
        if treatment == "lose":
            await super()._handle(request)
            return cut(request)
        code = int(treatment)
        reason = _REASONS[code]
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        return web.json_response({**status, "reason": reason, "message": "injected"}, status=code)

    def _treatment(self, key: str) -> str | int | None:
        """Return the disturbance of the n-th request of a type, which depends on the seed only."""
        chance = Random(f"{self._seed} {key} {self.counts[key]}")
        if chance.random() >= self._rate:
            return None
        found = chance.choice(TREATMENTS)
        # Only a list can expire with 410, and only a write can conflict with 409.
        is_list = key.startswith("GET ")
        return "delay" if (found == 410) is not is_list and found in (409, 410) else found

    async def _copy(
        self, path: str, answer: aiohttp.ClientResponse, out: web.StreamResponse
    ) -> None:
        """Copy a watch line by line, and drop all lines after its first silent time."""
        plural = path.partition("?")[0].rpartition("/")[2]
        rest, is_dead = b"", False
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            is_dead = is_dead or plural in self._silent
            if lines and not is_dead:
                await out.write(b"\n".join(lines) + b"\n")
                for line in lines if resource_of(path) == NODES else ():
                    self._knowledge.receive_event(json.loads(line), time.monotonic())
        while is_dead:
            await asyncio.sleep(0.2)


def resource_of(path: str) -> str:
    """Return the resource of a request path, without object names."""
    return _NAMES.sub(r"/\1", path.partition("?")[0]).rstrip("/")
