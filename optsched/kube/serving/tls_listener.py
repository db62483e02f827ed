"""Connections over TLS, with limits: how many, and how long a client may take to begin.

aiohttp has no limit on connections and gives handshakes a minute. A client that connects and
sends nothing must not keep API servers out.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from optsched.kube.serving.http import Address

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

_END_OF_HEADER: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many clients are served, and how long each may take.

    connections: at once. handshake_s: for TLS. header_s: from then to the end of the first header.
    """

    connections: int = 256
    handshake_s: float = 5.0
    header_s: float = 10.0


@asynccontextmanager
async def listen(
    place: Address,
    tls: ssl.SSLContext,
    make_protocol: Callable[[], asyncio.Protocol],
    patience: ConnectionLimits,
) -> AsyncIterator[Address]:
    """Accept connections while the context is open; gives the address as it came to be.

    A connection beyond the limit takes the place of the oldest one that has sent no request yet;
    where all have, it is refused. OSError for an address that can not be had.
    """
    loop = asyncio.get_running_loop()
    doorway = _ConnectionTable(tls, make_protocol, patience)
    server = await loop.create_server(lambda: _Connection(doorway), place.host or None, place.port)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


class _ConnectionTable:
    """The connections that are open, and those among them that have sent no request yet."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        patience: ConnectionLimits,
    ) -> None:
        self.tls = tls
        self.make_protocol = make_protocol
        self.patience = patience
        self.open: set[_Connection] = set()
        self.silent: dict[_Connection, None] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def admit(self, connection: _Connection) -> bool:
        """Whether a connection may stay."""
        if len(self.open) >= self.patience.connections:
            oldest = next(iter(self.silent), None)
            if oldest is None:
                return False
            oldest.abort()
        self.open.add(connection)
        self.silent[connection] = None
        return True

    def forget(self, connection: _Connection) -> None:
        """A connection is closed."""
        self.open.discard(connection)
        self.silent.pop(connection, None)


class _Connection(asyncio.Protocol):
    """One connection: plain until TLS stands, then a protocol behind TLS."""

    def __init__(self, doorway: _ConnectionTable) -> None:
        self._doorway = doorway
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._early: list[bytes] = []
        self._seen = b""

    def abort(self) -> None:
        """Close the connection without further words."""
        self._doorway.forget(self)
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        plain = cast("asyncio.Transport", transport)
        self._transport = plain
        if not self._doorway.admit(self):
            plain.abort()
            return
        plain.pause_reading()
        task = asyncio.get_running_loop().create_task(self._secure(plain))
        self._doorway.tasks.add(task)
        task.add_done_callback(self._doorway.tasks.discard)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._inner is None:
            # The first request may come in one piece with the end of the handshake.
            self._early.append(data)
            return
        if self._deadline is not None:
            self._scan_header(data)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._doorway.forget(self)
        self._end_deadline()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    # --- steps -----------------------------------------------------------------------------------

    async def _secure(self, plain: asyncio.Transport) -> None:
        """Shake hands, then pass the connection on."""
        doorway, loop = self._doorway, asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                plain,
                self,
                doorway.tls,
                server_side=True,
                ssl_handshake_timeout=doorway.patience.handshake_s,
                ssl_shutdown_timeout=doorway.patience.handshake_s,
            )
        except OSError:
            # Clients that speak no TLS, that break off or that are too slow.
            secured = None
        if secured is None or self not in doorway.open:
            doorway.forget(self)
            plain.abort()
            return
        self._transport = secured
        self._deadline = loop.call_later(doorway.patience.header_s, self.abort)
        self._inner = doorway.make_protocol()
        self._inner.connection_made(secured)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def _scan_header(self, data: bytes) -> None:
        seen = self._seen + data
        self._seen = seen[-len(_END_OF_HEADER) + 1 :]
        if _END_OF_HEADER in seen:
            self._end_deadline()
            self._doorway.silent.pop(self, None)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
