"""Probes whether pods answer, on a TCP port or over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import aiohttp

if TYPE_CHECKING:
    from optsched.controllers.effects import Question

ANSWER_S: Final = 1.0
"""How long a pod may take: a kubelet's probes wait as long (core/v1, Probe.timeoutSeconds)."""

_REFUSALS: Final = 400


async def is_answered(question: Question) -> bool:
    """Whether the port accepts a connection, or the path answers without an error."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await (_probe_http(question) if question.path else _probe_tcp(question))
    except (OSError, TimeoutError, aiohttp.ClientError, ValueError):
        return False


async def _probe_tcp(question: Question) -> bool:
    _, make_writer = await asyncio.open_connection(question.host, question.port)
    make_writer.close()
    with suppress(OSError):
        await make_writer.wait_closed()
    return True


async def _probe_http(question: Question) -> bool:
    host = f"[{question.host}]" if ":" in question.host else question.host
    url = f"http://{host}:{question.port}/{question.path.removeprefix('/')}"
    name, value = question.header
    headers = {name: value} if name else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status < _REFUSALS
