"""Serve health and metrics over HTTP, or metrics over TLS to authorized clients.

Health requests need no authorization and never wait for the API server, TLS or metrics requests.
Clients that read metrics are authorized by TokenReview and SubjectAccessReview. Clients need the
same permission as in controller-runtime (pkg/metrics/filters,
`WithAuthenticationAndAuthorization`): the verb `get` on the nonResourceURL `/metrics`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from optsched.api.kinds import SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW
from optsched.cluster.bounded_cache import RecentCache
from optsched.kube.client.client import review
from optsched.kube.client.errors import KubeError
from optsched.kube.runtime.timing import SystemClock, Timing
from optsched.kube.serving.certificates import ServedCertificate
from optsched.kube.serving.tls_listener import Address, ConnectionLimits, serve_over_tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence

    from optsched.kube.client.client import Client
    from optsched.kube.serving.certificates import CertificateFiles
    from optsched.session.ports import Clock

log = logging.getLogger(__name__)

Exposition: TypeAlias = "Callable[[Collection[str]], bytes]"
"""Returns the metrics with the given names, or all metrics, in the Prometheus text format."""

HEALTH: Final = "/healthz"
READY: Final = "/readyz"


class ProcessMetrics:
    """Creates metrics in a separate Prometheus registry.

    The parameter `meaning` of `counter`, `gauge` and `histogram` is the metric's help text, without
    a full stop.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(support_collectors_without_names=True)

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Return a new counter; Prometheus adds `_total` to its name."""
        return Counter(name, f"{meaning}.", labels, registry=self.registry)

    def gauge(self, name: str, meaning: str) -> Gauge:
        """Return a new gauge in the process's registry."""
        return Gauge(name, f"{meaning}.", registry=self.registry)

    def histogram(
        self, name: str, meaning: str, buckets: Sequence[float], *labels: str
    ) -> Histogram:
        """Return a new histogram in the process's registry."""
        return Histogram(name, f"{meaning}.", labels, registry=self.registry, buckets=buckets)

    def exposition(self, names: Collection[str] = ()) -> bytes:
        """Return the metrics with these names, or all metrics, in the Prometheus text format."""
        if not names:
            return generate_latest(self.registry)
        return generate_latest(self.registry.restricted_registry(names))


class Probes(Protocol):
    """Reports the liveness and readiness of a process."""

    def trouble(self) -> str:
        """Return the reason why this process must be restarted; empty if the process works."""

    def unready(self) -> str:
        """Return the reason why this process is not ready; empty if the process is ready."""


@asynccontextmanager
async def serve(
    addresses: Iterable[Address], probes: Probes, exposition: Exposition | None
) -> AsyncIterator[tuple[Address, ...]]:
    """Serve /healthz, /readyz and /metrics; yield the bound addresses.

    `exposition` returns the metrics; it is None if another address serves /metrics. Raises OSError
    if an address cannot be bound.
    """

    async def respond_to_probe(request: web.Request) -> web.Response:
        problem = probes.trouble() or (probes.unready() if request.path == READY else "")
        return web.Response(text=problem or "ok", status=500 if problem else 200)

    application = web.Application()
    for path in (HEALTH, READY):
        application.router.add_get(path, respond_to_probe)
    if exposition is not None:
        application.router.add_get(PATH, partial(respond_with_metrics, exposition))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        for address in dict.fromkeys(addresses):
            await web.TCPSite(runner, address.host or None, address.port).start()
        yield tuple(Address(*place[:2]) for place in runner.addresses)
    finally:
        await runner.cleanup()


async def respond_with_metrics(exposition: Exposition, request: web.Request) -> web.Response:
    """Respond to a request with metrics in the Prometheus text format.

    As in the official Prometheus clients, `name[]` in the query selects a metric and may be
    repeated.
    """
    body = exposition(request.query.getall("name[]", []))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


POLL_S: Final = 5.0
"""Seconds between two reads of the certificate files."""

KEEPALIVE_S: Final = 20.0
ENDING_S: Final = 1.0
"""Seconds within which open requests must finish at shutdown."""

LIMITS: Final = ConnectionLimits(connections=32)


@dataclass(frozen=True, slots=True)
class SecureMetrics:
    """Settings of metrics over TLS.

    Attributes
    ----------
    place
        Address on which metrics are served.
    files
        The certificate and its key; reloaded after a change.
    needs_rights
        True if clients must send a token whose user may get the nonResourceURL /metrics.
    """

    place: Address
    files: CertificateFiles
    needs_rights: bool = False


@dataclass(frozen=True, slots=True)
class BoundAddresses:
    """The addresses of a process; `metrics` is None if the addresses in `health` serve metrics."""

    health: tuple[Address, ...]
    metrics: Address | None = None

    def __str__(self) -> str:
        shown = ", ".join(f"{place.host}:{place.port}" for place in self.health) or "no port"
        if self.metrics is None:
            return f"health and metrics on {shown}"
        return f"health on {shown}; metrics over TLS on {self.metrics.host}:{self.metrics.port}"


@asynccontextmanager
async def serve_process(
    health: Iterable[Address],
    metrics: SecureMetrics | None,
    probes: Probes,
    exposition: Exposition,
    api: Client,
    timing: Timing | None = None,
) -> AsyncIterator[BoundAddresses]:
    """Serve health and metrics while the context is open.

    If `metrics` is None, the addresses in `health` also serve metrics. `api` is the client that
    authorizes metrics requests if authorization is required. Raises OSError if an address cannot be
    bound or a certificate cannot be used.
    """
    if metrics is None:
        async with serve(health, probes, exposition) as bound:
            yield BoundAddresses(bound)
        return
    access = MetricsAccess(api, SystemClock()) if metrics.needs_rights else None
    async with (
        serve(health, probes, None) as bound,
        _serve_metrics(metrics, exposition, access, timing or Timing()) as place,
    ):
        yield BoundAddresses(bound, place)


@asynccontextmanager
async def _serve_metrics(
    secure: SecureMetrics,
    exposition: Exposition,
    access: MetricsAccess | None,
    timing: Timing,
) -> AsyncIterator[Address]:
    """Serve metrics while the context is open, to every client if `access` is None."""
    certificate = ServedCertificate("metrics")
    await certificate.load_files(secure.files)

    async def respond_if_allowed(request: web.Request) -> web.Response:
        if access is not None:
            verdict = await access.authorize(request.headers.get("Authorization", ""))
            if not verdict.is_allowed:
                challenge = {"WWW-Authenticate": "Bearer"} if verdict.status == 401 else {}
                return web.Response(status=verdict.status, text=verdict.text, headers=challenge)
        return await respond_with_metrics(exposition, request)

    app = web.Application(client_max_size=0)
    app.router.add_get(PATH, respond_if_allowed)
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=ENDING_S, keepalive_timeout=KEEPALIVE_S
    )
    following = asyncio.create_task(_follow_files(certificate, secure.files, timing))
    try:
        async with serve_over_tls(runner, secure.place, certificate.tls, LIMITS) as address:
            yield address
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def _follow_files(
    certificate: ServedCertificate, files: CertificateFiles, timing: Timing
) -> None:
    """Reload changed certificates; an invalid certificate is logged once and not used."""
    problem = ""
    while True:
        await timing.sleep(POLL_S)
        try:
            await certificate.load_files(files)
            problem = ""
        except OSError as e:
            if str(e) != problem:
                log.warning("metrics: the certificate was not replaced: %s", e)
            problem = str(e)


PATH: Final = "/metrics"
ALLOWED_S: Final = 60.0
"""Seconds for which a positive review is cached, as in controller-runtime."""

REFUSED_S: Final = 10.0
REVIEW_S: Final = 5.0
"""Timeout in seconds for the two reviews of a token by the API server."""

MAX_REVIEWS: Final = 4
"""Maximum number of concurrent reviews; further requests get status 503."""

MAX_CACHED: Final = 256
"""Number of recent verdicts that a cache always keeps; a cache holds at most twice as many."""

_MAX_TOKEN: Final = 8192


@dataclass(frozen=True, slots=True)
class Verdict:
    """The response to a metrics request: an HTTP status, and the reason if access is denied."""

    status: HTTPStatus
    text: str = ""

    @property
    def is_allowed(self) -> bool:
        """Whether the client may read metrics."""
        return self.status is HTTPStatus.OK


_NO_TOKEN: Final = Verdict(HTTPStatus.UNAUTHORIZED, "send a token: Authorization: Bearer …")
_NO_USER: Final = Verdict(HTTPStatus.UNAUTHORIZED, "the API server knows no user with this token")
_BUSY: Final = Verdict(HTTPStatus.SERVICE_UNAVAILABLE, "too many tokens are under review")
_UNDECIDED: Final = Verdict(
    HTTPStatus.SERVICE_UNAVAILABLE, "the API server gave no answer about this token"
)
_ALLOWED: Final = Verdict(HTTPStatus.OK)


class MetricsAccess:
    """Authorizes metrics requests, and caches each verdict for a short time.

    Denials have a separate cache, so that unknown tokens do not displace allowed tokens. The caches
    hold only token hashes.
    """

    def __init__(self, api: Client, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._allowed: RecentCache[bytes, tuple[float, Verdict]] = RecentCache(MAX_CACHED)
        self._refused: RecentCache[bytes, tuple[float, Verdict]] = RecentCache(MAX_CACHED)
        self._reviews: dict[bytes, asyncio.Task[Verdict]] = {}
        self._is_failing = False

    async def authorize(self, authorization: str) -> Verdict:
        """Return the verdict on a metrics request with the given Authorization header."""
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token.isascii() or not token.isprintable():
            return _NO_TOKEN
        if not token or len(token) > _MAX_TOKEN:
            return _NO_TOKEN
        key = hashlib.sha256(token.encode("ascii")).digest()
        now_s = self._clock.monotonic()
        for cache in (self._allowed, self._refused):
            until_s, verdict = cache.get(key) or (now_s, _NO_USER)
            if now_s < until_s:
                return verdict
        if key not in self._reviews:
            if len(self._reviews) >= MAX_REVIEWS:
                return _BUSY
            task = asyncio.get_running_loop().create_task(self._review(key, token))
            self._reviews[key] = task
            task.add_done_callback(lambda _: self._reviews.pop(key, None))
        return await asyncio.shield(self._reviews[key])

    async def _review(self, key: bytes, token: str) -> Verdict:
        """Return the API server's verdict on a token, and cache it."""
        try:
            async with asyncio.timeout(REVIEW_S):
                found = await review(self._api, TOKEN_REVIEW, {"token": token})
                user, verdict = found.get("user"), _NO_USER
                if found.get("authenticated") is True and isinstance(user, dict):
                    name = user.get("username")
                    known = {key: user[key] for key in ("uid", "groups", "extra") if user.get(key)}
                    attributes = {"path": PATH, "verb": "get"}
                    spec = {"user": name, **known, "nonResourceAttributes": attributes}
                    status = await review(self._api, SUBJECT_ACCESS_REVIEW, spec)
                    verdict = _ALLOWED
                    if status.get("allowed") is not True:
                        text = f"user {name} may not get the nonResourceURL {PATH}"
                        verdict = Verdict(HTTPStatus.FORBIDDEN, text)
        except (KubeError, TimeoutError) as e:
            if not self._is_failing:
                why = str(e) or f"no answer within {REVIEW_S:g} s"
                log.warning("metrics readers cannot be authorized: %s", why)
            self._is_failing = True
            return _UNDECIDED
        if self._is_failing:
            log.info("metrics readers are authorized again")
        self._is_failing = False
        now_s = self._clock.monotonic()
        if verdict.is_allowed:
            self._allowed.add(key, (now_s + ALLOWED_S, verdict))
        else:
            self._refused.add(key, (now_s + REFUSED_S, verdict))
        return verdict
