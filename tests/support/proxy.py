"""A proxy of an API server that delays requests, replaces responses and cuts watches."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from aiohttp import web

from tests.support.api import POLL_S, server_of, tls, until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    Matches = Callable[[str, str], bool]

HOP = frozenset({"connection", "transfer-encoding", "content-length", "host"})
BEGIN_S = 60.0


@dataclass(eq=False)
class Gate:
    """A gate that holds matching requests while it is closed.

    `held` contains the paths of the waiting requests.
    """

    matches: Matches
    is_open: bool = False
    held: list[str] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def await_held(self, number: int) -> list[str]:
        """Wait until `number` requests wait, and return their paths."""
        until(lambda: len(self.held) >= number, f"{number} requests wait, not {self.held}")
        return list(self.held)


@dataclass(eq=False)
class Watching:
    """A watch through the proxy."""

    path: str
    answer: web.StreamResponse
    task: asyncio.Task[None]


class Proxy:
    """An HTTP proxy on loopback to an API server, with the credentials of a kubeconfig."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = folder / "proxy"
        self._server = server_of(kubeconfig)
        self._tls = tls(kubeconfig)
        self._headers: dict[str, str] = {}
        """Headers that every request to the server gets."""
        self._gates: list[Gate] = []
        self._answers: list[tuple[Matches, int, dict[str, Any]]] = []
        self._losses: list[tuple[Matches, list[str]]] = []
        self._watching: list[Watching] = []
        self._sockets: list[socket.socket] = []
        """Every socket that was opened to the server."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._do(self._begin())
        cluster = {"server": f"http://127.0.0.1:{port}"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
            "current-context": "it",
        }
        self.kubeconfig.write_text(json.dumps(content))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._do(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # --- faults ----------------------------------------------------------------------------------

    def hold(self, matches: Matches) -> Gate:
        """Hold the requests for which `matches(method, path)` is true."""
        gate = Gate(matches)
        self._gates.append(gate)
        return gate

    def open(self, gate: Gate) -> None:
        """Let the held requests and all later requests through."""
        gate.is_open = True
        self._loop.call_soon_threadsafe(gate.opened.set)

    @contextmanager
    def answering(self, matches: Matches, status: dict[str, Any]) -> Iterator[None]:
        """Answer matching requests with a Status, without the server."""
        rule = (matches, int(status["code"]), status)
        self._answers.append(rule)
        yield
        self._answers.remove(rule)

    @contextmanager
    def losing(self, matches: Matches) -> Iterator[list[str]]:
        """Forward matching requests, lose their responses, and yield the paths
        of these requests.
        """
        rule = (matches, list[str]())
        self._losses.append(rule)
        yield rule[1]
        self._losses.remove(rule)

    def await_watch(self, plural: str) -> None:
        """Wait until a kind is watched."""
        until(lambda: self._watches_of(plural), f"{plural} are watched")

    def end_watches(self, plural: str, last: dict[str, Any] | None = None) -> int:
        """Send a last event into every watch of a kind, end the watches, and
        return their number.
        """
        number: int = self._do(self._end_watches(plural, last))
        return number

    # --- implementation --------------------------------------------------------------------------

    def _do(self, action: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(BEGIN_S)

    async def _begin(self) -> int:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls, socket_factory=self._open_socket)
        timeout = aiohttp.ClientTimeout(total=None)
        self._http = aiohttp.ClientSession(
            self._server, connector=connector, timeout=timeout, headers=self._headers
        )
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._http.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The session does not wait for the TLS connections of cancelled requests. They close in the
        # background, and a socket that outlives its loop fails a later test with a ResourceWarning.
        async with asyncio.timeout(BEGIN_S):
            while any(each.fileno() >= 0 for each in self._sockets):
                await asyncio.sleep(POLL_S)

    def _open_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = info
        self._sockets = [each for each in self._sockets if each.fileno() >= 0]
        self._sockets.append(socket.socket(family, kind, protocol))
        return self._sockets[-1]

    def _watches_of(self, plural: str) -> list[Watching]:
        return [w for w in self._watching if w.path.partition("?")[0].endswith(f"/{plural}")]

    async def _end_watches(self, plural: str, last: dict[str, Any] | None) -> int:
        found = self._watches_of(plural)
        for watching in found:
            if last is not None:
                await watching.answer.write(json.dumps(last).encode() + b"\n")
            watching.task.cancel()
        return len(found)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path_qs
        for gate in self._gates:
            if not gate.is_open and gate.matches(request.method, path):
                gate.held.append(path)
                await gate.opened.wait()
        for matches, code, status in self._answers:
            if matches(request.method, path):
                return web.json_response(status, status=code)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        body = await request.read()
        try:
            async with self._http.request(
                request.method, path, data=body or None, headers=headers
            ) as answer:
                if self._is_lost(request.method, path):
                    await answer.read()
                    return cut(request)
                return await self._forward(request, answer)
        except aiohttp.ClientError:
            # The server has aborted the connection, so the client's connection is aborted too.
            return cut(request)

    def _is_lost(self, method: str, path: str) -> bool:
        found = [lost for matches, lost in self._losses if matches(method, path)]
        for lost in found:
            lost.append(path)
        return bool(found)

    async def _copy(
        self, path: str, answer: aiohttp.ClientResponse, out: web.StreamResponse
    ) -> None:
        """Copy a watch line by line, so that an inserted event never splits a line."""
        del path
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                await out.write(b"\n".join(lines) + b"\n")

    async def _forward(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in HOP}
        if "watch" not in request.query or answer.status != 200:
            body = await answer.read()
            return web.Response(status=answer.status, body=body, headers=headers)
        out = web.StreamResponse(status=200, headers=headers)
        await out.prepare(request)
        # A separate task can be ended without ending the response.
        task = asyncio.ensure_future(self._copy(request.path_qs, answer, out))
        watching = Watching(request.path_qs, out, task)
        self._watching.append(watching)
        try:
            with suppress(asyncio.CancelledError):
                await task
        finally:
            self._watching.remove(watching)
        return out


def cut(request: web.Request) -> web.Response:
    """Abort the connection without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def is_binding(method: str, path: str) -> bool:
    """Return whether a request binds a pod."""
    return method == "POST" and path.endswith("/binding")


def is_eviction(method: str, path: str) -> bool:
    """Return whether a request evicts a pod."""
    return method == "POST" and path.endswith("/eviction")


def binding_of(pod: str) -> Matches:
    """Return a matcher of requests that bind a certain pod."""
    return lambda method, path: is_binding(method, path) and f"/{pod}/" in path


def is_watch_of(plural: str) -> Matches:
    """Return a matcher of requests that watch a kind."""
    return lambda _, path: f"/{plural}?" in path and "watch=1" in path


def is_write(method: str, path: str) -> bool:
    """Return whether a request writes, except to leases."""
    return method in ("POST", "PATCH", "PUT", "DELETE") and "/leases" not in path


def every(number: int, matches: Matches) -> Matches:
    """Return a matcher of every `number`-th matching request, including the first."""
    numbers = count()
    return lambda method, path: matches(method, path) and next(numbers) % number == 0


def after(number: int, matches: Matches) -> Matches:
    """Return a matcher that skips the first `number` matching requests."""
    numbers = count()
    return lambda method, path: matches(method, path) and next(numbers) >= number
