"""Probes of endpoints other than the API server: pod ports, and NVIDIA UFM for fabric links."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp

from optsched.api.kinds import SECRET
from optsched.controllers.effects import FabricAnswer
from optsched.controllers.ufm import PATH, UfmError, read_links
from optsched.kube.client.errors import KubeError
from optsched.kube.client.listing import Ref

if TYPE_CHECKING:
    from optsched.controllers.effects import Fabric, Question
    from optsched.kube.client.client import Client
    from optsched.session.ports import Clock


ANSWER_S: Final = 1.0
"""Timeout of a pod probe in seconds, as in the kubelet (core/v1, Probe.timeoutSeconds)."""

_REFUSALS: Final = 400


async def is_answered(question: Question) -> bool:
    """Return whether a TCP probe connects, or an HTTP probe gets a response below status 400."""
    try:
        async with asyncio.timeout(ANSWER_S):
            if not question.path:
                _, writer = await asyncio.open_connection(question.host, question.port)
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
                return True
            host = f"[{question.host}]" if ":" in question.host else question.host
            url = f"http://{host}:{question.port}/{question.path.removeprefix('/')}"
            name, value = question.header
            headers = {name: value} if name else {}
            async with (
                aiohttp.ClientSession() as session,
                session.get(url, headers=headers, allow_redirects=False) as answer,
            ):
                return answer.status < _REFUSALS
    except (OSError, TimeoutError, aiohttp.ClientError, ValueError):
        return False


FABRIC_ANSWER_S: Final = 30.0
"""Timeout of a UFM request in seconds, as in Volcano."""

MAX_BYTES: Final = 100 * 2**20
"""Maximum size of a UFM response in bytes, as in Volcano."""

_OK: Final = 200
_KEYS: Final = ("username", "password", "ca.crt")
"""Keys of the Secret for UFM; `ca.crt` holds PEM certificates of an additional CA, or is empty."""


class _NoAnswer(Exception):
    """Raised if UFM gives no usable response; the message contains no credentials."""


@dataclass(frozen=True, slots=True)
class UfmClient:
    """Reads fabric links from UFM; errors are returned, not raised."""

    api: Client
    clock: Clock

    async def read_fabric(self, fabric: Fabric) -> FabricAnswer:
        """Return the links of a fabric, or the reason why they cannot be read."""
        ref = Ref(SECRET, *fabric.secret)
        try:
            data = (await self.api.read(ref)).get("data") or {}
            try:
                texts = {key: b64decode(data.get(key) or "").decode() for key in _KEYS}
            except ValueError as e:
                raise _NoAnswer(f"{ref} cannot be read: a value is not UTF-8 text") from e
            lacking = [key for key in ("username", "password") if not texts[key]]
            if lacking:
                raise _NoAnswer(f"{ref} has no {' and no '.join(lacking)}")
            tls: ssl.SSLContext | bool = False
            if fabric.verifies:
                tls = ssl.create_default_context()
                if texts["ca.crt"]:
                    tls.load_verify_locations(cadata=texts["ca.crt"])
            # The Authorization header for basic authentication (RFC 7617).
            pair = b64encode(f"{texts['username']}:{texts['password']}".encode()).decode()
            body = bytearray()
            async with (
                asyncio.timeout(FABRIC_ANSWER_S),
                aiohttp.ClientSession() as session,
                session.get(
                    f"{fabric.url}{PATH}",
                    headers={"Authorization": f"Basic {pair}"},
                    ssl=tls,
                    allow_redirects=False,
                ) as answer,
            ):
                if answer.status != _OK:
                    raise _NoAnswer(f"UFM answers {answer.status} {answer.reason}")
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise _NoAnswer(f"the response is longer than {MAX_BYTES // 2**20} MiB")
            # Parsing the response takes a second for a fabric of thousands of hosts.
            links = await asyncio.to_thread(read_links, bytes(body))
        except TimeoutError:
            problem = f"no answer within {FABRIC_ANSWER_S:g} s"
        except (_NoAnswer, UfmError, KubeError, aiohttp.ClientError, OSError, ValueError) as e:
            problem = str(e) or type(e).__name__
        else:
            return FabricAnswer(self.clock.now_ms(), links)
        return FabricAnswer(self.clock.now_ms(), problem=f"{fabric.url}: {problem}")
