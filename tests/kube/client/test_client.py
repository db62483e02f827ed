"""The client with a local server that speaks HTTP as an API server does."""

from __future__ import annotations

import asyncio
import json
from asyncio.sslproto import SSLProtocol
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from optsched.api.kinds import NODE, POD, POD_GROUP, QUEUE, Ref
from optsched.kube.client import client as module
from optsched.kube.client.client import TLS_BUFFER, ConfigError, connect, parse_warnings
from optsched.kube.client.errors import Conflict, Forbidden, Garbled, NotFound, TooMany, Unreachable
from optsched.kube.client.listing import Selection
from optsched.kube.runtime.leader_election import LeaseTimes
from tests.formats.objects import group, node, pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from optsched.kube.client.client import Client

POD_REF = Ref(POD, "ns", "p")
GROUP_REF = Ref(POD_GROUP, "ns", "g")


class Server:
    """A server that gives prepared responses and records its requests."""

    def __init__(self) -> None:
        self.answers: list[Callable[[], web.StreamResponse]] = []
        self.asked: list[tuple[str, str]] = []
        self.queries: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.lines: list[bytes] = []
        self.is_silent = False
        """Whether a watch stays open after its lines."""

    def answer(self, content: object, code: int = 200, **headers: str) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.answers.append(lambda: web.Response(text=text, status=code, headers=headers))

    def refuse(self, code: int, reason: str, **headers: str) -> None:
        status = {"kind": "Status", "code": code, "reason": reason, "message": "no"}
        self.answer(status, code, **headers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs))
        self.queries.append(dict(request.query))
        self.headers.append(dict(request.headers))
        body = await request.read()
        self.bodies.append(json.loads(body) if body else None)
        if "watch=1" in request.query_string:
            return await self._stream(request)
        return self.answers.pop(0)()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        for line in self.lines:
            # A network may deliver a line in pieces.
            await stream.write(line[:7])
            await asyncio.sleep(0)
            await stream.write(line[7:] + b"\n")
        if self.is_silent:
            await asyncio.sleep(60)
        return stream


@asynccontextmanager
async def connected(tmp_path: Path) -> AsyncIterator[tuple[Server, Client]]:
    server = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with connect(kubeconfig(tmp_path, runner.addresses[0][1])) as client:
            yield server, client
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, port: int, **context: str) -> str:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.asyncio
async def test_it_says_who_asks_and_for_what(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        server.answer(pod())
        assert await client.read(POD_REF) == pod()
        assert server.asked == [("GET", "/api/v1/namespaces/ns/pods/p")]
        (headers,) = server.headers
        assert headers["Authorization"] == "Bearer secret"
        assert headers["Accept"] == "application/json"
        assert headers["User-Agent"].startswith("optsched/")


@pytest.mark.asyncio
async def test_metadata_is_asked_for_alone(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        server.answer({"kind": "PartialObjectMetadata", "metadata": {"name": "p"}})
        assert (await client.read_metadata(POD_REF))["metadata"] == {"name": "p"}
        assert server.headers[0]["Accept"].startswith("application/json;as=PartialObjectMetadata;")


@pytest.mark.asyncio
async def test_lists_come_in_pages(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        server.answer(
            {"metadata": {"resourceVersion": "7", "continue": "c+/&=2"}, "items": [node()]}
        )
        server.answer({"metadata": {"resourceVersion": "7"}, "items": None})
        first = await client.list_page(NODE, 500)
        last = await client.list_page(NODE, 500, first.token)
        assert (first.items, first.resource_version, first.token) == ([node()], "7", "c+/&=2")
        assert (last.items, last.token) == ((), "")
        assert server.asked[0] == ("GET", "/api/v1/nodes?limit=500")
        assert server.queries[1] == {"limit": "500", "continue": "c+/&=2"}


@pytest.mark.asyncio
async def test_a_watch_gives_whole_lines_however_long(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        server.lines = [b'{"type": "ADDED"}', b"x" * 300_000, b"end"]
        lines = [line async for line in client.watch_lines(POD_GROUP, "7")]
        assert lines == server.lines
        path = "/apis/scheduling.volcano.sh/v1beta1/podgroups"
        asked = "watch=1&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=25"
        assert server.asked == [("GET", f"{path}?{asked}")]


@pytest.mark.asyncio
async def test_a_watch_that_is_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open: a network that loses packets reports no error."""
    monkeypatch.setattr(module, "_WATCHING", aiohttp.ClientTimeout(sock_read=0.1))
    async with connected(tmp_path) as (server, client):
        server.lines, server.is_silent = [b'{"type": "ADDED"}'], True
        lines = client.watch_lines(POD, "7")
        assert await anext(lines) == server.lines[0]
        with pytest.raises(Unreachable, match="no answer in time"):
            await anext(lines)


def test_a_silent_watch_is_noticed_within_30_s() -> None:
    """A server ends a watch before the idle limit, and a late bind ends before the lease does."""
    assert module.WATCH_S < module.IDLE_S == module._WATCHING.sock_read < 30
    times = LeaseTimes()
    assert module.BIND_S == module._BINDING.total <= times.duration_s - times.renew_s


@pytest.mark.asyncio
async def test_what_is_written_goes_where_it_belongs(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        for _ in range(4):
            server.answer(group())
        await client.create(GROUP_REF, group())
        await client.patch(GROUP_REF, {"status": {}})
        await client.patch(Ref(QUEUE, "", "q"), {"status": {}}, "status")
        await client.bind("ns", "p", "u", "n1")
        root = "/apis/scheduling.volcano.sh/v1beta1"
        assert server.asked == [
            ("POST", f"{root}/namespaces/ns/podgroups"),
            ("PATCH", f"{root}/namespaces/ns/podgroups/g"),
            ("PATCH", f"{root}/queues/q/status"),
            ("POST", "/api/v1/namespaces/ns/pods/p/binding"),
        ]
        kinds = [headers["Content-Type"] for headers in server.headers]
        merge = "application/merge-patch+json"
        assert kinds == ["application/json", merge, merge, "application/json"]
        binding = server.bodies[-1]
        assert binding["metadata"] == {"name": "p", "uid": "u"}
        assert binding["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(403, "Forbidden", Forbidden), (404, "NotFound", NotFound), (409, "Conflict", Conflict)],
)
@pytest.mark.asyncio
async def test_refusals_are_errors(
    tmp_path: Path, code: int, reason: str, error: type[Exception]
) -> None:
    async with connected(tmp_path) as (server, client):
        server.refuse(code, reason)
        with pytest.raises(error, match="no"):
            await client.bind("ns", "p", "u", "n1")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "x/status", "x/", "x%2f"])
@pytest.mark.asyncio
async def test_a_name_that_no_object_has_changes_no_request_path(tmp_path: Path, name: str) -> None:
    """Tenants write names of PodGroups in annotations of pods."""
    ref = Ref(POD_GROUP, "ns", name)
    async with connected(tmp_path) as (server, client):
        for request in (client.read(ref), client.patch(ref, {}), client.delete(ref)):
            with pytest.raises(NotFound, match="no object has the name"):
                await request
        assert not server.asked


@pytest.mark.asyncio
async def test_a_busy_server_says_how_long_to_wait(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        server.refuse(429, "TooManyRequests", **{"Retry-After": "3"})
        with pytest.raises(TooMany) as caught:
            await client.read(POD_REF)
        assert caught.value.retry_after_s == 3


@pytest.mark.parametrize("text", ["<html>", "[]", ""])
@pytest.mark.asyncio
async def test_what_is_no_object_is_an_error(tmp_path: Path, text: str) -> None:
    async with connected(tmp_path) as (server, client):
        server.answer(text)
        with pytest.raises(Garbled, match=r"GET /api/v1/namespaces/ns/pods/p: the response is not"):
            await client.read(POD_REF)


@pytest.mark.asyncio
async def test_without_a_server_there_is_no_answer(tmp_path: Path) -> None:
    async with connect(kubeconfig(tmp_path, 1)) as client:
        with pytest.raises(Unreachable, match=r"GET /api/v1/namespaces/ns/pods/p: "):
            await client.read(POD_REF)


@pytest.mark.parametrize(
    "text", ["", "hello", "clusters: [", "clusters: 3", '{"current-context": "x"}', "\x00"]
)
@pytest.mark.asyncio
async def test_an_unusable_kubeconfig_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    for given in (str(path), ""):
        with pytest.raises(ConfigError) as caught:
            async with connect(given):
                pass
        assert str(caught.value).startswith(f"{path} cannot be used: ")
        assert "\n" not in str(caught.value)


@pytest.mark.asyncio
async def test_a_kubeconfig_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    missing = str(tmp_path / "missing")
    monkeypatch.setenv("KUBECONFIG", f"{missing}:{missing}-too")
    for given, named in ((missing, missing), ("", f"{missing}:{missing}-too")):
        with pytest.raises(ConfigError, match=f"^{named}: there is no such file"):
            async with connect(given):
                pass


@pytest.mark.asyncio
async def test_lists_and_watches_may_be_of_some_objects(tmp_path: Path) -> None:
    some = Selection("ns", labels="a=b", fields="metadata.name=p")
    async with connected(tmp_path) as (server, client):
        server.answer({"items": [pod()], "metadata": {"resourceVersion": "7"}})
        await client.list_page(POD, 5, "", some)
        assert [line async for line in client.watch_lines(POD, "7", some)] == []
        assert {path.partition("?")[0] for _, path in server.asked} == {
            "/api/v1/namespaces/ns/pods"
        }
        asked = {"labelSelector": "a=b", "fieldSelector": "metadata.name=p"}
        assert all(asked.items() <= query.items() for query in server.queries)


@pytest.mark.asyncio
async def test_what_a_server_says_besides_is_passed_on(tmp_path: Path) -> None:
    said: list[str] = []
    async with connected(tmp_path) as (server, _):
        port = int(server_port(tmp_path))
        async with connect(kubeconfig(tmp_path, port), on_warning=said.append) as client:
            server.answer(pod(), Warning='299 - "say \\"deserved\\" too", 299 x "and weight"')
            await client.create(POD_REF, pod())
    assert said == ['say "deserved" too', "and weight"]
    assert list(parse_warnings(["no warning", '199 - "old"'])) == []


def server_port(folder: Path) -> str:
    """Return the port of the server in a kubeconfig."""
    config = json.loads((folder / "kubeconfig").read_text())
    return str(config["clusters"][0]["cluster"]["server"]).rpartition(":")[2]


@pytest.mark.asyncio
async def test_tls_connections_have_small_buffers(tmp_path: Path) -> None:
    async with connect(kubeconfig(tmp_path, 1)):
        assert SSLProtocol.max_size == TLS_BUFFER == 65_536


@pytest.mark.asyncio
async def test_the_namespace_is_that_of_the_current_context(tmp_path: Path) -> None:
    async with connect(kubeconfig(tmp_path, 1)) as client:
        assert client.namespace == "default"
    async with connect(kubeconfig(tmp_path, 1, namespace="team")) as client:
        assert client.namespace == "team"


@pytest.mark.asyncio
async def test_a_server_may_be_named_with_a_kubeconfig_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(kubeconfig(tmp_path, 1), "http://127.0.0.1:2/") as client:
        assert client.server == "http://127.0.0.1:2"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    async with connect(server="http://127.0.0.1:3") as client:
        assert (client.server, client.namespace) == ("http://127.0.0.1:3", "default")
