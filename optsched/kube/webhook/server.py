"""Admission reviews over HTTPS; every error fails closed.

The HTTP status is 400 for a body that is not an AdmissionReview, and 415 for a body that is not
JSON. The status is 408 for a body that does not arrive, and 413 for a body that is too large. An
internal error denies the request. Until all kinds are listed, the status is 503. API servers treat
the status 503 as a denial, because the webhooks have the failure policy Fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar, cast

from aiohttp import web

from optsched.admission.review import (
    AccessQuestion,
    MalformedReview,
    ObjectQuestion,
    PodsQuestion,
    Response,
    TemplateQuestion,
    TooLarge,
    encode_response,
    read_body,
)
from optsched.admission.services import TIMEOUT_S, review
from optsched.kube.client.client import can_access, list_podgroup_members
from optsched.kube.client.errors import KubeError, NotFound
from optsched.kube.serving.metrics_server import ProcessMetrics
from optsched.kube.serving.tls_listener import ConnectionLimits, Stage, hold_stage, serve_over_tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from optsched.admission.review import Question, Request
    from optsched.admission.services import Service
    from optsched.admission.world import Settings
    from optsched.kube.client.client import Client
    from optsched.kube.serving.tls_listener import Address
    from optsched.kube.webhook.world import LiveWorld, TemplateValidator
    from optsched.session.ports import Clock

log = logging.getLogger(__name__)

MAX_BODY: Final = 8 * 2**20
"""Maximum size of a review in bytes.

The review of an update contains the old and the new object, both JSON-escaped. etcd accepts 1.5 MiB
for the old object, and an API server accepts 3 MiB for the new object. If the limit were 3 MiB, as
in Volcano, the largest objects could be created but not updated.
"""

KEEPALIVE_S: Final = 120.0
"""Seconds after which an idle connection is closed; API servers keep idle connections for 90 s."""

LINGERING_S: Final = 1.0
"""Seconds for which the rest of a request body is read if the response was sent early."""
MAX_ROUNDS: Final = 4
"""Maximum number of review rounds per request: each round may ask the API server new questions."""

MAX_QUESTIONS: Final = 64
"""Maximum number of requests to the API server in one round of a review, except dry runs."""

ANSWERS_S: Final = 0.8 * TIMEOUT_S
"""Seconds within which the API server must answer all questions about one request.

The API server that sent the review times out after `TIMEOUT_S`. `ANSWERS_S`
is shorter than `TIMEOUT_S`, so the user sees a denial with a reason instead of a timeout.
"""

_JSON: Final = "application/json"

_Lookup: TypeAlias = AccessQuestion | ObjectQuestion | PodsQuestion

SMALL: Final = 64 * 2**10
"""Maximum size in bytes of a small body; most jobs are ten times smaller."""
MAX_BYTES: Final = 24 * 2**20
"""Maximum total size in bytes of large bodies that are read or reviewed concurrently."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class MemoryBudget:
    """A fixed number of bytes of memory, which callers reserve in order of arrival."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, amount: int) -> AsyncIterator[None]:
        """Wait until `amount` bytes are available, and reserve them while the context is open."""
        if self._waiters or amount > self._left:
            place = (amount, asyncio.get_running_loop().create_future())
            self._waiters.append(place)
            try:
                await place[1]
            except asyncio.CancelledError:
                if place in self._waiters:
                    self._waiters.remove(place)
                    self._release(0)
                elif not place[1].cancelled():
                    self._release(amount)
                raise
        else:
            self._left -= amount
        try:
            yield
        finally:
            self._release(amount)

    def _release(self, amount: int) -> None:
        self._left += amount
        while self._waiters and self._waiters[0][0] <= self._left:
            amount, turn = self._waiters.popleft()
            if not turn.done():
                self._left -= amount
                turn.set_result(None)


class ReviewThreads:
    """The thread pools that run reviews."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(2, "review")
        self._large = ThreadPoolExecutor(1, "large-review")
        self._memory = MemoryBudget(MAX_BYTES)

    @asynccontextmanager
    async def reserve_memory(self, num_bytes: int) -> AsyncIterator[None]:
        """Reserve memory for a large body; small bodies need no reservation."""
        if num_bytes <= SMALL:
            yield
            return
        async with self._memory.reserve(num_bytes):
            yield

    async def run(
        self, num_bytes: int, call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Run a call in the thread pool for bodies of the given size."""
        lane = self._small if num_bytes <= SMALL else self._large
        future = lane.submit(call, *args, **kwargs)
        return await asyncio.wrap_future(future)


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Checks requests against watched objects.

    Before a request is denied, the objects that caused the denial are read again. If any object
    that was read again has changed, the request is reviewed again.

    `settings` is a function that returns the current settings, because the settings file may
    change.
    """

    api: Client
    world: LiveWorld
    settings: Callable[[], Settings]
    metrics: WebhookMetrics
    clock: Clock
    templates: TemplateValidator
    lanes: ReviewThreads = field(default_factory=ReviewThreads)

    async def _answer_questions(
        self, service: Service, request: Request, response: Response, num_bytes: int
    ) -> Response:
        """Send the requests that a review needs to the API server; return the final response.

        A review may need access reviews, object reads, and dry runs of pod templates. The pod
        templates of a denied request are still validated, so that users see all mistakes at the
        same time.
        """
        known: dict[Question, Any] = {}
        for _ in range(MAX_ROUNDS):
            templates = [q for q in response.questions if isinstance(q, TemplateQuestion)]
            others = [q for q in response.questions if not isinstance(q, TemplateQuestion)]
            if response.problems:
                others = []
            if not templates and not others:
                return response
            if len(others) > MAX_QUESTIONS:
                return Response(
                    (f"more than {MAX_QUESTIONS} access reviews are needed: use fewer queues",)
                )
            try:
                verdicts, *answers = await asyncio.gather(
                    self.templates.validate(templates), *map(self._answer_question, others)
                )
            except KubeError as e:
                log.warning("%s: the API server did not answer: %s", service.path, e)
                unanswered = f"the API server did not say whether the request is allowed: {e}"
                return replace(response, problems=(*response.problems, unanswered), questions=())
            known |= {**verdicts, **dict(zip(others, answers, strict=True))}
            request = replace(
                request, answers=ChainMap(known, cast("Any", self.templates.accepted))
            )
            response = await self.lanes.run(num_bytes, self._review, service, request)
        if response.allowed or response.problems:
            return response
        return Response((f"not decided after {MAX_ROUNDS} rounds of reviews: use fewer queues",))

    async def _answer_question(self, question: _Lookup) -> Any:  # noqa: ANN401  the type depends on the question
        match question:
            case AccessQuestion():
                return await can_access(self.api, question)
            case ObjectQuestion():
                try:
                    return await self.api.read(question.ref)
                except NotFound:
                    return None
            case PodsQuestion():
                return await list_podgroup_members(self.api, question.namespace)

    async def respond(self, service: Service, body: bytes) -> tuple[web.Response, str]:
        """Return the HTTP response to a review, and the result that metrics count."""
        if self.world.unsynced():
            return _plain(503, "not ready: the cluster has not been listed yet"), "unready"
        read = await self.lanes.run(len(body), self._read, service, body)
        if isinstance(read, _Unread):
            return _plain(read.status, read.text), "malformed"
        request, response = read
        try:
            async with asyncio.timeout(ANSWERS_S):
                response = await self._answer_questions(service, request, response, len(body))
                if response.rests_on:
                    # A client may submit a job right after its queue, before the watch delivers the
                    # queue. The objects that caused the denial are therefore read again.
                    self.metrics.second_looks.labels(service.path).inc()
                    if await self.world.refresh_objects(self.api, response.rests_on):
                        again = await self.lanes.run(len(body), self._review, service, request)
                        response = await self._answer_questions(service, request, again, len(body))
        except TimeoutError:
            log.warning("%s: no answer from the API server in %g s", service.path, ANSWERS_S)
            late = (
                f"the API server did not say within {ANSWERS_S:g} s whether the request is allowed"
            )
            response = Response((*response.problems, f"{late}: try again"))
        result = "allowed" if response.allowed else "denied"
        if response is _BROKEN:
            result = "error"
        about = (request.action, f"{request.namespace}/{request.name}", request.user)
        log.debug("%s: %s %r by %r: %s", service.path, *about, result)
        return web.json_response(encode_response(request.uid, response)), result

    def _read(self, service: Service, body: bytes) -> tuple[Request, Response] | _Unread:
        # An exception that leaves the thread would keep the body and its objects in memory.
        try:
            request = read_body(body)
        except TooLarge as e:
            return _Unread(413, f"the review {e}")
        except MalformedReview as e:
            return _Unread(400, f"not an AdmissionReview: {e}")
        # A template that the server accepted before needs no dry run.
        request = replace(request, answers=self.templates.accepted)
        return request, self._review(service, request)

    def _review(self, service: Service, request: Request) -> Response:
        try:
            return review(service, request, self.world, self.settings())
        except Exception:
            # Fail closed on internal errors.
            log.exception("%s: %s %s", service.path, request.namespace, request.name)
            return _BROKEN


@dataclass(frozen=True, slots=True)
class _Unread:
    """The HTTP status and text of the response to a body that is not an AdmissionReview."""

    status: int
    text: str


_BROKEN: Final = Response(("this object cannot be reviewed: see the log of the webhook",))


def application(
    services: Sequence[Service], reviewer: Reviewer, body_s: float = TIMEOUT_S
) -> web.Application:
    """Return a web application that serves the path of each admission service.

    `body_s` is the timeout in seconds for receiving a body.
    """
    app = web.Application(client_max_size=MAX_BODY)
    for service in services:
        app.router.add_post(service.path, partial(_handle, service, reviewer, body_s))
    return app


def serve_reviews(
    app: web.Application,
    place: Address,
    tls: ssl.SSLContext,
    ending_s: float,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  frozen
) -> AbstractAsyncContextManager[Address]:
    """Return a context manager that serves reviews over TLS and yields the bound address.

    `ending_s` is the time in seconds within which open requests must finish at shutdown. The
    context raises OSError if the address cannot be bound.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=ending_s,
        keepalive_timeout=KEEPALIVE_S,
        lingering_time=LINGERING_S,
        auto_decompress=False,
    )
    return serve_over_tls(runner, place, tls, limits)


async def _handle(
    service: Service, reviewer: Reviewer, body_s: float, http: web.Request
) -> web.StreamResponse:
    """Return the HTTP response to a review, and record the result and the duration."""
    began = reviewer.clock.monotonic()
    result = "malformed"
    try:
        if http.content_type != _JSON:
            return _plain(415, f"{http.content_type} is not supported: send {_JSON}")
        encoding = http.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            # A few compressed kilobytes can expand to gigabytes.
            return _plain(415, f"{encoding[:60]} is not supported: send plain {_JSON}")
        length = MAX_BODY if http.content_length is None else http.content_length
        if length > MAX_BODY:
            raise web.HTTPRequestEntityTooLarge(max_size=MAX_BODY, actual_size=length)
        result = "busy"
        with hold_stage(http.transport, Stage.RECEIVING):
            async with (
                asyncio.timeout(body_s) as deadline,
                reviewer.lanes.reserve_memory(length),
            ):
                result = "malformed"
                deadline.reschedule(asyncio.get_running_loop().time() + body_s)
                body = await http.read()
                result = "busy"
                deadline.reschedule(asyncio.get_running_loop().time() + TIMEOUT_S)
                with hold_stage(http.transport, Stage.PROCESSING):
                    response, result = await reviewer.respond(service, body)
    except TimeoutError:
        if result == "busy":
            return _plain(503, "too many reviews are in progress: try again")
        return _plain(408, f"the body did not arrive within {body_s:g} s")
    except (OSError, web.RequestPayloadError):
        return _plain(400, "the body is incomplete: the client closed the connection")
    finally:
        seconds = reviewer.clock.monotonic() - began
        reviewer.metrics.reviewed(service.path, result, seconds)
    return response


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text)


_SECONDS: Final = tuple(0.00025 * 2**i for i in range(14))


class WebhookMetrics(ProcessMetrics):
    """The metrics of a webhook process.

    `second_looks` counts, by path, the denials for which the webhook read objects again from the
    API server. `watch_failures` counts failed lists and watches by resource. `expiry` is the Unix
    time in seconds at which the certificate in use expires.
    """

    def __init__(self) -> None:
        super().__init__()
        name = "optsched_admission"
        self._reviews = self.counter(
            f"{name}_reviews", "Requests, by path and result", "path", "result"
        )
        self._seconds = self.histogram(
            f"{name}_review_seconds",
            "Seconds from the start of a request until its answer",
            _SECONDS,
            "path",
        )
        self.second_looks = self.counter(
            f"{name}_second_looks", "Denials for which the webhook read objects again", "path"
        )
        self.watch_failures = self.counter(
            f"{name}_watch_failures", "Lists and watches that failed", "resource"
        )
        self.expiry = self.gauge(
            f"{name}_certificate_expiry_seconds", "Epoch seconds at which the certificate expires"
        )
        self._config_reads = self.counter(
            f"{name}_config_reads",
            "Changed contents of the resource groups file, by result",
            "result",
        )
        self._config_rejected = self.gauge(
            f"{name}_config_rejected",
            "1 while the resource groups file is invalid, and its last valid content is used",
        )

    def reviewed(self, path: str, result: str, seconds: float) -> None:
        """Record a review by its result, such as allowed, denied, malformed or busy."""
        self._reviews.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)

    def config_read(self, problem: str) -> None:
        """Record that the resource groups file changed; `problem` is empty if it is valid."""
        self._config_reads.labels("rejected" if problem else "read").inc()
        self._config_rejected.set(bool(problem))
