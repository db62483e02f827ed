"""Reviews over TLS while other clients are slow, broken or numerous."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from optsched.admission.services import SERVICES
from optsched.admission.world import Settings
from optsched.kube.serving.certificates import Credentials, renew_credentials
from optsched.kube.serving.tls_listener import Address, ConnectionLimits
from optsched.kube.webhook.server import Reviewer, WebhookMetrics, application, serve_reviews
from optsched.kube.webhook.world import LiveWorld, TemplateValidator
from tests.admission.kit import container, job, task, template
from tests.kube.fakes import FakeApi, FakeClock, waiting
from tests.kube.webhook.test_server import queue, review

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from optsched.admission.services import Service

pytestmark = pytest.mark.asyncio

HOST = "127.0.0.1"
PATIENCE_S = 60.0
BODY_S = 0.3
NUM_CLIENTS = 150


class Place:
    """The address of a server, and its trusted certificate."""

    def __init__(self, port: int, credentials: Credentials, http: aiohttp.ClientSession) -> None:
        self.port = port
        self._http = http
        self.trust = ssl.create_default_context(cadata=credentials.authority.decode())

    async def ask(self, body: Any) -> bool:
        """Return whether a review is allowed."""
        url = f"https://{HOST}:{self.port}/jobs/validate"
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        async with self._http.post(url, json=body, ssl=self.trust, timeout=timeout) as answer:
            assert answer.status == 200
            said = await answer.json()
            assert said["response"]["uid"] == "u-1"
            return bool(said["response"]["allowed"])

    async def assert_well(self) -> None:
        """Check that the server allows a valid job and denies an invalid one."""
        assert await self.ask(review())
        assert not await self.ask(review(job(minAvailable=9)))

    async def connect(
        self, *, is_safe: bool = True, peer: str = HOST
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection with or without TLS, from a loopback address."""
        trust = self.trust if is_safe else None
        return await asyncio.open_connection(HOST, self.port, ssl=trust, local_addr=(peer, 0))


@asynccontextmanager
async def serving(
    folder: Path,
    patience: ConnectionLimits = ConnectionLimits(),  # noqa: B008  it is frozen
) -> AsyncIterator[Place]:
    """Run the webhook server over TLS with the cluster objects that it needs."""
    api, clock = FakeApi(queue("default")), FakeClock()
    world = LiveWorld(clock, lambda _: None)
    templates = TemplateValidator(api, "volcano-system", clock)
    reviewer = Reviewer(api, world, Settings, WebhookMetrics(), clock, templates)
    credentials, _ = renew_credentials(None, (HOST,), datetime.now(UTC))
    for name, pem in (("crt", credentials.certificate), ("key", credentials.key)):
        (folder / name).write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    watches = [asyncio.create_task(each) for each in world.watches(api, waiting(FakeClock()))]
    app = application(SERVICES, reviewer, BODY_S)
    try:
        async with serve_reviews(app, Address(HOST, 0), context, 0.1, patience) as address:
            while world.unsynced():
                await asyncio.sleep(0)
            connector = aiohttp.TCPConnector(limit=NUM_CLIENTS)
            async with aiohttp.ClientSession(connector=connector) as http:
                yield Place(address.port, credentials, http)
    finally:
        for each in watches:
            each.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


def head(length: int) -> bytes:
    lines = (
        "POST /jobs/validate HTTP/1.1",
        f"Host: {HOST}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


async def test_clients_that_never_come_to_an_end_hold_nobody_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        slow = [await place.connect() for _ in range(NUM_CLIENTS)]
        for position, (_, make_writer) in enumerate(slow):
            make_writer.write(head(1000)[: 20 + position % 60])
            await make_writer.drain()
        await place.assert_well()
        for _, make_writer in slow:
            make_writer.close()
        await place.assert_well()


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        reader, make_writer = await place.connect()
        make_writer.write(head(1000) + b'{"apiVersion":')
        async with asyncio.timeout(PATIENCE_S):
            said = await reader.readuntil(b"within 0.3 s")
        assert said.startswith(b"HTTP/1.1 408 ")
        make_writer.close()
        await place.assert_well()


async def test_a_body_that_ends_too_soon_lets_nothing_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as place:
        whole = json.dumps(review()).encode()
        for length in (0, 1, len(whole) // 2, len(whole) - 1):
            reader, make_writer = await place.connect()
            make_writer.write(head(len(whole)) + whole[:length])
            await make_writer.drain()
            # The client disconnects before the body is complete.
            make_writer.transport.abort()
            async with asyncio.timeout(PATIENCE_S):
                assert b"allowed" not in await reader.read()
        reader, make_writer = await place.connect()
        make_writer.write(head(len(whole) - 1) + whole)
        async with asyncio.timeout(PATIENCE_S):
            assert b" 400 " in await reader.readline()
            assert b"allowed" not in await reader.read()
        make_writer.close()
        await place.assert_well()
    assert "Traceback" not in caplog.text


async def test_connections_that_break_while_they_are_made_break_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as place:
        for first in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 100, head(0)):
            reader, make_writer = await place.connect(is_safe=False)
            make_writer.write(first)
            await make_writer.drain()
            make_writer.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                assert b"allowed" not in await reader.read()
            make_writer.close()
        for _ in range(20):
            _, make_writer = await place.connect()
            make_writer.transport.abort()
        await place.assert_well()
    assert "Traceback" not in caplog.text


async def test_whom_nobody_vouches_for_is_not_talked_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        await place.assert_well()
        strangers = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(HOST, place.port, ssl=strangers)


async def test_many_at_once_are_all_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        bad = review(job(minAvailable=9))
        asked = [place.ask(bad if number % 3 == 0 else review()) for number in range(NUM_CLIENTS)]
        said = await asyncio.gather(*asked)
    assert said == [number % 3 != 0 for number in range(NUM_CLIENTS)]


async def test_who_sends_nothing_is_cut_off(tmp_path: Path) -> None:
    """The time limits apply before the TLS handshake ends, and before the header ends."""
    async with serving(tmp_path, ConnectionLimits(handshake_s=0.05, header_s=0.05)) as place:
        begun = [await place.connect(is_safe=is_safe) for is_safe in (False, True, True)]
        begun[2][1].write(head(1000)[:30])
        async with asyncio.timeout(PATIENCE_S):
            for reader, make_writer in begun:
                with contextlib.suppress(OSError):
                    assert await reader.read() == b""
                make_writer.close()
        await place.assert_well()


async def test_the_silent_make_room_for_others(tmp_path: Path) -> None:
    async with serving(tmp_path, ConnectionLimits(connections=4)) as place:
        silent = [await place.connect() for _ in range(4)]
        await place.assert_well()
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(OSError):
                assert await silent[0][0].read() == b""
        assert not silent[3][0].at_eof()
        for _, make_writer in silent:
            make_writer.close()


async def test_connections_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    """Connections that have sent a request stay."""
    async with serving(tmp_path, ConnectionLimits(connections=2)) as place:
        known = [await place.connect() for _ in range(2)]
        for reader, make_writer in known:
            make_writer.write(head(2) + b"[]")
            assert b" 400 " in await reader.readline()
            await reader.readuntil(b"AdmissionReview")
        with pytest.raises(ConnectionError):
            await place.connect()
        for reader, make_writer in known:
            make_writer.write(head(2) + b"[]")
            assert b" 400 " in await reader.readuntil(b"Date")
            make_writer.close()


@pytest.mark.parametrize("are_silent", [False, True])
async def test_one_address_does_not_keep_others_away(tmp_path: Path, *, are_silent: bool) -> None:
    """A client holds all connections, and opens another one whenever one of them is closed."""
    async with serving(tmp_path, ConnectionLimits(connections=4)) as place:

        async def hold() -> asyncio.StreamWriter:
            reader, make_writer = await place.connect(peer="127.0.0.2")
            if not are_silent:
                make_writer.write(head(2) + b"[]")
                assert b" 400 " in await reader.readline()
            return make_writer

        held = [await hold() for _ in range(4)]
        for _ in range(3):
            # aiohttp keeps the connection of the first review for the others.
            await place.assert_well()
            with contextlib.suppress(ConnectionError):
                held.append(await hold())
        reader, make_writer = await place.connect()
        make_writer.write(head(2) + b"[]")
        assert b" 400 " in await reader.readline()
        await place.assert_well()
        for each in (*held, make_writer):
            each.close()


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event until which reviews do not end."""
    event, respond = asyncio.Event(), Reviewer.respond

    async def respond_later(self: Reviewer, service: Service, body: bytes) -> Any:
        await event.wait()
        return await respond(self, service, body)

    monkeypatch.setattr(Reviewer, "respond", respond_later)
    return event


async def test_clients_of_many_addresses_end_no_review(tmp_path: Path, go: asyncio.Event) -> None:
    """An API server keeps the connections of its reviews, although it has the most connections."""
    async with serving(tmp_path, ConnectionLimits(connections=6)) as place:

        async def begin_review(connection: tuple[Any, asyncio.StreamWriter]) -> None:
            connection[1].write(head(2) + b"[]")
            await asyncio.sleep(0.1)

        reviews = [await place.connect() for _ in range(2)]
        for each in reviews:
            await begin_review(each)
        idle_reader, idle_writer = await place.connect()
        idle_writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 404 " in await idle_reader.readuntil(b"404: Not Found")
        others = [await place.connect(peer=f"127.0.0.{number}") for number in range(2, 12)]
        for each in others[-3:]:
            await begin_review(each)
        # Without a connection that has sent no request, an idle one is replaced.
        others.append(await place.connect(peer="127.0.0.12"))
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(OSError):
                assert await idle_reader.read() == b""
        await begin_review(others[-1])
        for number in range(13, 16):
            with pytest.raises(ConnectionError):
                await place.connect(peer=f"127.0.0.{number}")
        go.set()
        for reader, make_writer in (*reviews, *others[-4:]):
            async with asyncio.timeout(PATIENCE_S):
                assert b" 400 " in await reader.readline()
            make_writer.close()


async def test_reviews_of_one_address_do_not_keep_others_away(
    tmp_path: Path, go: asyncio.Event
) -> None:
    async with serving(tmp_path, ConnectionLimits(connections=4)) as place:
        held = [await place.connect(peer="127.0.0.2") for _ in range(4)]
        for _, make_writer in held:
            make_writer.write(head(2) + b"[]")
        await asyncio.sleep(0.05)
        ours = [await place.connect() for _ in range(2)]
        go.set()
        for reader, make_writer in ours:
            make_writer.write(head(2) + b"[]")
            async with asyncio.timeout(PATIENCE_S):
                assert b" 400 " in await reader.readline()
        for _, make_writer in (*held, *ours):
            make_writer.close()


async def test_no_body_is_decompressed(tmp_path: Path) -> None:
    """A few kilobytes of compressed data can expand to gigabytes."""
    packed = gzip.compress(json.dumps(review()).encode())
    async with serving(tmp_path) as place:
        for encoding in ("gzip", "deflate", "br", "zstd", "x"):
            reader, make_writer = await place.connect()
            lines = head(len(packed)).removesuffix(b"\r\n")
            make_writer.write(lines + f"Content-Encoding: {encoding}\r\n\r\n".encode() + packed)
            async with asyncio.timeout(PATIENCE_S):
                said = await reader.readuntil(b"send plain application/json")
            assert said.startswith(b"HTTP/1.1 415 ")
            assert f"{encoding} is not supported" in said.decode()
            make_writer.close()
        await place.assert_well()


async def test_the_loop_answers_while_a_large_review_runs(tmp_path: Path) -> None:
    """A review of a megabyte runs in a separate thread, so small reviews and probes do not wait."""
    async with serving(tmp_path) as place:
        variables = [{"name": f"V{index}", "value": "x"} for index in range(30_000)]
        large = review(job(task(template=template(container(env=variables)))))
        running = asyncio.create_task(place.ask(large))
        num_small = 0
        while not running.done():
            await place.assert_well()
            num_small += 1
        assert running.result()
    assert num_small >= 1
