from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from optsched.kube.serving.metrics_server import serve
from optsched.kube.serving.tls_listener import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOOPBACK = Address("127.0.0.1", 0)


class Patient:
    """A service with a fixed health status."""

    def __init__(self, trouble: str = "", unready: str = "") -> None:
        self._trouble = trouble
        self._unready = unready

    def trouble(self) -> str:
        return self._trouble

    def unready(self) -> str:
        return self._unready


class Visitor:
    """A client of one server."""

    def __init__(self, http: aiohttp.ClientSession, place: Address) -> None:
        self._http = http
        self._base = f"http://{place.host}:{place.port}"

    async def get(self, path: str) -> tuple[int, str]:
        async with self._http.get(self._base + path) as answer:
            return answer.status, await answer.text()

    async def content_type(self, path: str) -> str:
        async with self._http.get(self._base + path) as answer:
            return answer.headers["Content-Type"]


@asynccontextmanager
async def visiting(patient: Patient) -> AsyncIterator[Visitor]:
    async with (
        serve([LOOPBACK], patient, lambda names: f"{names} 1\n".encode()) as (place,),
        aiohttp.ClientSession() as http,
    ):
        yield Visitor(http, place)


@pytest.mark.parametrize(
    ("patient", "healthz", "readyz"),
    [
        (Patient(), (200, "ok"), (200, "ok")),
        (Patient(unready="not listed"), (200, "ok"), (500, "not listed")),
        (Patient("stuck"), (500, "stuck"), (500, "stuck")),
        (Patient("stuck", "not listed"), (500, "stuck"), (500, "stuck")),
    ],
)
@pytest.mark.asyncio
async def test_what_a_kubelet_is_told(
    patient: Patient, healthz: tuple[int, str], readyz: tuple[int, str]
) -> None:
    async with visiting(patient) as visitor:
        assert await visitor.get("/healthz") == healthz
        assert await visitor.get("/readyz") == readyz


@pytest.mark.asyncio
async def test_metrics_come_as_prometheus_wants_them() -> None:
    async with visiting(Patient()) as visitor:
        assert await visitor.get("/metrics") == (200, "[] 1\n")
        assert (await visitor.content_type("/metrics")).startswith("text/plain; version=")
        assert (await visitor.get("/secrets"))[0] == 404
        assert await visitor.get("/metrics?name[]=b&name[]=a") == (200, "['b', 'a'] 1\n")


@pytest.mark.asyncio
async def test_it_listens_where_it_is_told_to_once_for_each_place() -> None:
    async with serve([LOOPBACK, LOOPBACK], Patient(), bytes) as places:
        assert len(places) == 1
    async with serve([], Patient(), bytes) as places:
        assert places == ()


@pytest.mark.asyncio
async def test_a_place_that_is_taken_is_an_error() -> None:
    async with serve([LOOPBACK], Patient(), bytes) as (place,):
        with pytest.raises(OSError, match="address already in use"):
            async with serve([place], Patient(), bytes):
                pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":8080", Address("", 8080)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("localhost:65535", Address("localhost", 65535)),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize("text", ["", "8080", "host", "host:", "host:http", ":65536", "a:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address: write HOST:PORT or :PORT"):
        Address.parse(text)
