"""Authorize clients that read metrics, by TokenReview and SubjectAccessReview.

Clients need the same permission as in controller-runtime (pkg/metrics/filters,
`WithAuthenticationAndAuthorization`): the verb `get` on the nonResourceURL `/metrics`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW
from optsched.cluster.bounded_cache import RecentCache
from optsched.kube.client.errors import KubeError
from optsched.kube.client.queries import review

if TYPE_CHECKING:
    from optsched.kube.client.client import Client
    from optsched.session.ports import Clock

PATH: Final = "/metrics"
ALLOWED_S: Final = 60.0
"""Seconds for which a positive review is cached; controller-runtime caches tokens equally long."""

REFUSED_S: Final = 10.0
REVIEW_S: Final = 5.0
"""Timeout in seconds for the two reviews of a token by the API server."""

MAX_REVIEWS: Final = 4
"""Maximum number of concurrent reviews; further requests get status 503."""

MAX_CACHED: Final = 256
"""Number of recent verdicts that a cache always keeps; it holds at most twice as many."""

_MAX_TOKEN: Final = 8192

log = logging.getLogger(__name__)


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
