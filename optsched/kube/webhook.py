"""Reviews over HTTPS: an API server asks, and nothing is let in by mistake.

Whatever goes wrong is no: a body that is no AdmissionReview is 400, one that does not come 408, one
that is too large 413, no JSON 415, a mistake of ours a denial, and as long as nobody knows what
else is there the answer is 503, upon which an API server refuses, since the webhooks' failure
policy is Fail.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiohttp import web

from optsched.admission.registration import TIMEOUT_S
from optsched.admission.review import MalformedReview, Response, answer, read_body
from optsched.admission.services import review

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from optsched.admission.review import Request
    from optsched.admission.services import Service
    from optsched.admission.world import Settings
    from optsched.kube.admission_world import LiveWorld
    from optsched.kube.ports import Api
    from optsched.kube.webhook_metrics import WebhookMetrics
    from optsched.session.ports import Clock

MAX_BODY: Final = 8 * 2**20
"""A review of a change holds the old object, of which etcd takes 1.5 MiB, and the new one, of which
an API server reads 3 MiB, both written with escapes. With Volcano's limit of 3 MiB the largest
objects could be made, but not changed."""

_JSON: Final = "application/json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Reviews requests against the world as it is known, and once more against what is true.

    settings: gives those in force; a file that they are in may change.
    """

    api: Api
    world: LiveWorld
    settings: Callable[[], Settings]
    metrics: WebhookMetrics
    clock: Clock

    async def review(self, service: Service, request: Request) -> Response:
        """The answer to a request; a denial that rests on other objects is looked at again.

        A client may submit a job right after it has made a queue, before a watch tells us.
        """
        settings = self.settings()
        response = review(service, request, self.world, settings)
        if response.rests_on:
            self.metrics.looked_again(service.path)
            if await self.world.look_again(self.api, response.rests_on):
                response = review(service, request, self.world, settings)
        return response

    async def respond(self, service: Service, body: bytes) -> tuple[web.Response, str]:
        """The answer to a body, and what came of it."""
        if self.world.unsynced():
            return _plain(503, "not ready: the cluster has not been looked at yet"), "unready"
        try:
            request = read_body(body)
        except MalformedReview as e:
            return _plain(400, f"not an AdmissionReview: {e}"), "malformed"
        try:
            response = await self.review(service, request)
        except Exception:
            # A mistake of ours must neither let anything in nor end the server.
            log.exception("%s: %s %s", service.path, request.namespace, request.name)
            response = Response(("this object can not be reviewed: see the log of the webhook",))
            return web.json_response(answer(request.uid, response)), "error"
        said = web.json_response(answer(request.uid, response))
        return said, "allowed" if response.allowed else "denied"


def application(
    services: Sequence[Service], reviewer: Reviewer, body_s: float = TIMEOUT_S
) -> web.Application:
    """The paths of some services; body_s: how long a body may take, for nobody waits longer."""
    app = web.Application(client_max_size=MAX_BODY)
    for service in services:
        app.router.add_post(service.path, _handler(service, reviewer, body_s))
    return app


def _handler(
    service: Service, reviewer: Reviewer, body_s: float
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(http: web.Request) -> web.StreamResponse:
        began = reviewer.clock.monotonic()
        result = "malformed"
        try:
            if http.content_type != _JSON:
                return _plain(415, f"{http.content_type} is not read here: send {_JSON}")
            async with asyncio.timeout(body_s):
                body = await http.read()
            said, result = await reviewer.respond(service, body)
        except TimeoutError:
            return _plain(408, f"the body did not come within {body_s:g} s")
        except (OSError, web.RequestPayloadError):
            return _plain(400, "the body is not whole: its sender has gone")
        finally:
            seconds = reviewer.clock.monotonic() - began
            reviewer.metrics.reviewed(service.path, result, seconds)
        return said

    return handle


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text)
