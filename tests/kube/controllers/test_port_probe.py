"""Tests of the probe that connects to pods."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from optsched.controllers.effects import Question
from optsched.kube.controllers.executor import is_answered

pytestmark = pytest.mark.asyncio


async def test_an_answer_below_400_and_an_open_port_will_do() -> None:
    async def ready(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers.get("h") == "v" else 503)

    async def away(_: web.Request) -> web.Response:
        raise web.HTTPFound("http://elsewhere.invalid/")

    application = web.Application()
    application.router.add_get("/ready", ready)
    application.router.add_get("/away", away)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    asked = {
        Question("127.0.0.1", port): True,
        Question("127.0.0.1", port, "/ready", ("h", "v")): True,
        Question("127.0.0.1", port, "ready", ("h", "v")): True,
        Question("127.0.0.1", port, "/ready"): False,
        Question("127.0.0.1", port, "/missing"): False,
        Question("127.0.0.1", port, "/away"): True,
    }
    assert {question: await is_answered(question) for question in asked} == asked
    await runner.cleanup()
    assert not await is_answered(Question("127.0.0.1", port))
    assert not await is_answered(Question("127.0.0.1", port, "/ready"))


async def test_who_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optsched.kube.controllers.executor.ANSWER_S", 0.05)

    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, make_writer: asyncio.StreamWriter) -> None:
        await reader.read()
        make_writer.close()
        await make_writer.wait_closed()
        gone.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert not await is_answered(Question("127.0.0.1", port, "/"))
    await gone.wait()
    server.close()
    await server.wait_closed()
