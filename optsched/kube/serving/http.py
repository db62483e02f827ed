"""Health and metrics over HTTP."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable


class Probes(Protocol):
    """Liveness and readiness of a process."""

    def trouble(self) -> str:
        """Return why this process has to be restarted; empty if it needs not."""

    def unready(self) -> str:
        """Return why this process is not ready; empty if it is."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on; an empty host means every interface."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port`, `:port` or `[v6]:port`; ValueError for anything else."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{text!r} is no address: write HOST:PORT or :PORT")
        return cls(host.strip("[]"), int(port))


@asynccontextmanager
async def serve(
    addresses: Iterable[Address], probes: Probes, exposition: Callable[[], bytes] | None
) -> AsyncIterator[tuple[Address, ...]]:
    """Serve /healthz, /readyz and /metrics; yields the bound addresses.

    exposition: None if /metrics is served at another address. OSError if an address can not be
    bound.
    """
    runner = web.AppRunner(_application(probes, exposition), access_log=None)
    await runner.setup()
    try:
        for address in dict.fromkeys(addresses):
            await web.TCPSite(runner, address.host or None, address.port).start()
        yield tuple(Address(*place[:2]) for place in runner.addresses)
    finally:
        await runner.cleanup()


def _application(probes: Probes, exposition: Callable[[], bytes] | None) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        return _verdict(probes.trouble())

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(probes.trouble() or probes.unready())

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    if exposition is not None:
        application.router.add_get("/metrics", metrics_handler(exposition))
    return application


def metrics_handler(
    exposition: Callable[[], bytes],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that answers with metrics in Prometheus' format."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return metrics


def _verdict(problem: str) -> web.Response:
    return web.Response(text=problem or "ok", status=500 if problem else 200)
