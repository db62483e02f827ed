"""A TLS listener with limits on connections, handshakes and request headers.

aiohttp does not limit the number of connections and allows a minute for a handshake. Without
limits, clients that connect and send nothing could lock out the API servers. If the maximum number
of connections is open, a new connection replaces a connection of the client address with the most
connections. No client can therefore lock out other clients. A connection whose request is being
processed is kept, so other clients cannot abort the request.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Self, cast

from optsched.admission.names import is_subdomain
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator

    from aiohttp import web

_END_OF_HEADER: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on; an empty host means all network interfaces."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port`, `:port` or `[v6]:port`; raises ValueError for any other text."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_port = is_decimal(port, 5) and int(port) <= 65535
        if not colon or not is_port or not is_host(host):
            raise ValueError(f"{text!r} is not an address: write HOST:PORT or :PORT")
        return cls(host, int(port))


def is_host(text: str) -> bool:
    """Return whether the text is empty, an IP address or a DNS name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return not text or is_subdomain(text.lower())
    return True


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a listener.

    `connections` is the maximum number of open connections. `handshake_s` is the timeout of a TLS
    handshake in seconds. `header_s` is the timeout in seconds from the handshake until the first
    request header is complete.
    """

    connections: int = 256
    handshake_s: float = 5.0
    header_s: float = 10.0


class Stage(IntEnum):
    """The state of a connection; a connection in a lower stage is replaced first."""

    SILENT = 0
    """The client has sent no request yet."""
    IDLE = 1
    """No request is in progress."""
    RECEIVING = 2
    """The body of a request is being received."""
    PROCESSING = 3
    """A request was received, and its response is not ready."""


@contextmanager
def hold_stage(transport: asyncio.BaseTransport | None, stage: Stage) -> Iterator[None]:
    """Set the stage of a connection that `listen` accepted, while the context is open.

    `transport` belongs to the connection. Transports of other servers are ignored.
    """
    protocol = transport.get_protocol() if isinstance(transport, asyncio.Transport) else None
    if not isinstance(protocol, _Connection):
        yield
        return
    before, protocol.stage = protocol.stage, stage
    try:
        yield
    finally:
        protocol.stage = before


@asynccontextmanager
async def listen(
    place: Address,
    tls: ssl.SSLContext,
    make_protocol: Callable[[], asyncio.Protocol],
    limits: ConnectionLimits,
) -> AsyncIterator[Address]:
    """Accept connections while the context is open; yield the bound address.

    If the maximum number of connections is open, a new connection replaces an open connection. The
    replaced connection belongs to the client address with the most replaceable connections. The
    oldest of this client's connections in the lowest stage is replaced (see `Stage`). A connection
    whose request is being processed is replaceable only if its address has more than half of all
    connections. If the new client's own address has the most replaceable connections, only
    connections of this address without a request are replaced. If no connection can be replaced,
    the new connection is refused.

    Raises OSError if the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    table = _ConnectionTable(tls, make_protocol, limits)
    server = await loop.create_server(lambda: _Connection(table), place.host or None, place.port)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


@asynccontextmanager
async def serve_over_tls(
    runner: web.AppRunner, place: Address, tls: ssl.SSLContext, limits: ConnectionLimits
) -> AsyncIterator[Address]:
    """Serve an app over TLS while the context is open; yield the bound address.

    Raises OSError if the address cannot be bound.
    """
    await runner.setup()
    server = cast("web.Server", runner.server)
    try:
        async with listen(place, tls, server, limits) as address:
            yield address
    finally:
        await runner.cleanup()


class _ConnectionTable:
    """The open connections, including those that have sent no request yet."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        limits: ConnectionLimits,
    ) -> None:
        self.tls = tls
        self.make_protocol = make_protocol
        self.limits = limits
        self.open: dict[_Connection, None] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def admit(self, connection: _Connection) -> bool:
        """Add a connection, or replace another connection by it; return whether it was added."""
        limit, peer = self.limits.connections, connection.peer
        if len(self.open) >= limit:
            totals = Counter(each.peer for each in self.open)
            # A request in progress protects its connection only if the client has at most half of
            # all connections. Otherwise, one client could occupy all connections.
            replaceable = [
                each
                for each in self.open
                if each.stage is not Stage.PROCESSING or 2 * totals[each.peer] > limit
            ]
            numbers = Counter(each.peer for each in replaceable)
            most = max(numbers.values(), default=0)
            if numbers[peer] == most:
                own = (each for each in replaceable if each.peer == peer)
                replaced = next((each for each in own if each.stage is Stage.SILENT), None)
                if replaced is None:
                    return False
            else:
                candidates = (each for each in replaceable if numbers[each.peer] == most)
                replaced = min(candidates, key=lambda each: each.stage)
            replaced.abort()
        self.open[connection] = None
        return True


class _Connection(asyncio.Protocol):
    """A connection, which performs a TLS handshake and then runs the server's protocol."""

    def __init__(self, table: _ConnectionTable) -> None:
        self._table = table
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._early: list[bytes] = []
        self._seen = b""
        self.peer = ""
        """The client's address without the port."""
        self.stage = Stage.SILENT

    def abort(self) -> None:
        self._table.open.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        self._transport = plain
        address = plain.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        if not self._table.admit(self):
            plain.abort()
            return
        plain.pause_reading()
        task = asyncio.get_running_loop().create_task(self._secure(plain))
        self._table.tasks.add(task)
        task.add_done_callback(self._table.tasks.discard)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            # The first request may arrive together with the end of the handshake.
            self._early.append(data)
            return
        if self._deadline is not None:
            seen = self._seen + data
            self._seen = seen[-len(_END_OF_HEADER) + 1 :]
            if _END_OF_HEADER in seen:
                self._end_deadline()
                self.stage = Stage.IDLE
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.open.pop(self, None)
        self._end_deadline()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    # --- steps -----------------------------------------------------------------------------------

    async def _secure(self, plain: asyncio.Transport) -> None:
        """Perform the TLS handshake, then start the server's protocol."""
        table, loop = self._table, asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                plain,
                self,
                table.tls,
                server_side=True,
                ssl_handshake_timeout=table.limits.handshake_s,
                ssl_shutdown_timeout=table.limits.handshake_s,
            )
        except OSError:
            # The client does not use TLS, closed the connection or is too slow.
            secured = None
        if secured is None or self not in table.open:
            table.open.pop(self, None)
            plain.abort()
            return
        self._transport = secured
        self._deadline = loop.call_later(table.limits.header_s, self.abort)
        self._inner = table.make_protocol()
        self._inner.connection_made(secured)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
