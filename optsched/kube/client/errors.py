"""Errors of requests to an API server.

KubeError                  base class of all
├─ Unreachable             no response: the request may have been carried out
├─ Garbled                 a response that cannot be parsed
└─ ApiError                a refusal, with its code and reason
   ├─ Rejected             400, 422: the request itself is wrong
   ├─ Unauthorized         401
   ├─ Forbidden            403
   ├─ NotFound             404
   ├─ Conflict             409
   │  └─ AlreadyExists     409 on creation
   ├─ Gone                 410
   │  └─ Expired           410: a resource version or page that the server no longer keeps
   ├─ TooMany              429: retry later
   └─ ServerFault          5xx: the request may have been carried out
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from optsched.units.digits import is_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MESSAGE: Final = 8192
"""Maximum length of an error message in characters.

Webhooks of policy engines list every violation in one message, so that a message may have thousands
of characters.
"""
STATUS_REASONS: Final = frozenset(
    {
        "AlreadyExists",
        "BadRequest",
        "Conflict",
        "Expired",
        "Forbidden",
        "Gone",
        "InternalError",
        "Invalid",
        "MethodNotAllowed",
        "NotAcceptable",
        "NotFound",
        "RequestEntityTooLarge",
        "ServerTimeout",
        "ServiceUnavailable",
        "StoreReadError",
        "Timeout",
        "TooManyRequests",
        "Unauthorized",
        "UnsupportedMediaType",
    }
)
"""The reasons of Kubernetes' own API server (apimachinery, meta/v1/types.go, StatusReason)."""
MAX_CAUSES: Final = 100
"""Maximum number of causes that the error of a refused request lists."""
MAX_RETRY_AFTER_S: Final = 60
"""Maximum delay in seconds before a retry, also if the server or a webhook requests a longer one.

The API server requests delays of seconds.
"""
_REGEX: Final = re.compile(
    r" \(regex used for validation is '[^']*'\)|, regex used for [a-z ]*'[^']*'"
)


class KubeError(Exception):
    """Raised when a request to the API server fails."""


class Unreachable(KubeError):
    """The server sent no response, but may have carried out the request."""


class Garbled(KubeError):
    """The response of the server violates the Kubernetes API."""


class ApiError(KubeError):
    """The server refused the request; the error keeps only some fields of the returned Status.

    `code` is the HTTP code. `reason` is the reason in the Status, such as AlreadyExists.
    `retry_after_s` is the delay in seconds before a retry, if the server requests a delay. `causes`
    has a pair (field, message) for each invalid field of the object, or for each other cause, such
    as a disruption budget. `cause_reasons` has the reasons of the causes, such as DisruptionBudget.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        retry_after_s: float | None = None,
        causes: tuple[tuple[str, str], ...] = (),
        cause_reasons: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(code, reason, message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.causes = causes
        self.cause_reasons = cause_reasons

    def __str__(self) -> str:
        return f"{self.code} {self.reason}: {self.message}" if self.message else self.title

    @property
    def title(self) -> str:
        """The HTTP code and the reason of the error, without the message."""
        return f"{self.code} {self.reason}".strip()

    @property
    def label(self) -> str:
        """The reason if Kubernetes defines the reason, and otherwise the HTTP code.

        An admission webhook may return any reason, but labels of metrics must have few values.
        """
        if self.reason in STATUS_REASONS:
            return self.reason
        return str(self.code) if 400 <= self.code < 600 else "other"


class Rejected(ApiError):
    """The request is invalid; a retry cannot succeed."""


class Unauthorized(ApiError):
    """The client is not authenticated."""


class Forbidden(ApiError):
    """The user is not authorized for this request."""


class NotFound(ApiError):
    """The object or its kind does not exist."""


class Conflict(ApiError):
    """The object is not in the state that the request assumes."""


class AlreadyExists(Conflict):
    """An object with the same name exists already."""


class Gone(ApiError):
    """The requested resource version is no longer available."""


class Expired(Gone):
    """The resource version or the page is too old, so the objects must be listed again."""


class TooMany(ApiError):
    """The server is busy and has not carried out the request."""


class ServerFault(ApiError):
    """The server failed; the request may have been carried out."""


_BY_REASON: Final[Mapping[str, type[ApiError]]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Expired,
}
_BY_CODE: Final[Mapping[int, type[ApiError]]] = {
    400: Rejected,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Rejected,
    429: TooMany,
}


def parse_error(code: int, body: bytes, phrase: str = "", retry_after: str = "") -> ApiError:
    """Return the error of a refused request.

    Only the reason, the message and the causes of a Status are kept. Other content, such as the
    page of a proxy or a returned object, could contain secrets.
    """
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"reason": phrase}
    delay = float(min(int(retry_after), MAX_RETRY_AFTER_S)) if is_decimal(retry_after) else None
    return error_from_status({**status, "code": code}, delay)


def error_from_status(status: Mapping[str, Any], retry_after_s: float | None = None) -> ApiError:
    """Return the error that a Status object describes, such as a Status in a watch."""
    code = status.get("code")
    code = code if isinstance(code, int) else 500
    details = status.get("details")
    details = details if isinstance(details, dict) else {}
    wait = details.get("retryAfterSeconds")
    if retry_after_s is None and isinstance(wait, int) and wait > 0:
        retry_after_s = float(min(wait, MAX_RETRY_AFTER_S))
    causes = details.get("causes")
    listed = causes[:MAX_CAUSES] if isinstance(causes, list) else ()
    kept = tuple(
        (_cut(str(cause.get("field") or "")), _cut(str(cause.get("message") or "")))
        for cause in listed
        if isinstance(cause, dict)
    )
    message, reason = (_cut(str(status.get(name) or "")) for name in ("message", "reason"))
    fallback = ServerFault if code >= 500 else ApiError
    error_class = _BY_REASON.get(reason) or _BY_CODE.get(code, fallback)
    reasons = (_cut(str(c.get("reason") or "")) for c in listed if isinstance(c, dict))
    return error_class(code, reason, message, retry_after_s, kept, frozenset(reasons) - {""})


def _cut(text: str) -> str:
    """Return a message without regular expressions, truncated to `MAX_MESSAGE` characters.

    The API server explains a rule about names in words, and repeats the rule as a regular
    expression.
    """
    text = _REGEX.sub("", text)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"
