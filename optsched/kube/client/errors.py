"""Errors that requests to an API server raise.

KubeError                  base class
├─ Unreachable             no response: the request may have been executed
├─ Garbled                 a response that cannot be parsed
└─ ApiError                an error response, with its code and reason
   ├─ Rejected             400, 422: the request itself is invalid
   ├─ Unauthorized         401
   ├─ Forbidden            403
   ├─ NotFound             404
   ├─ Conflict             409
   │  └─ AlreadyExists     409 on creation
   ├─ Gone                 410
   │  └─ Expired           410: the server no longer keeps the resource version or list page
   ├─ TooMany              429: retry later
   └─ ServerFault          5xx: the request may have been executed
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MESSAGE: Final = 8192
"""Maximum length of an error message in characters.

Webhooks of policy engines list every violation in one message, which can exceed a thousand
characters.
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
"""The Status reasons that Kubernetes defines (apimachinery, meta/v1/types.go, StatusReason)."""
MAX_CAUSES: Final = 100
"""Maximum number of causes, such as invalid fields, that an error lists."""
MAX_RETRY_AFTER_S: Final = 60
"""Maximum delay in seconds before a retry, even if the server or a webhook requests more.

The API server itself requests delays of only a few seconds.
"""
_REGEX: Final = re.compile(
    r" \(regex used for validation is '[^']*'\)|, regex used for [a-z ]*'[^']*'"
)


class KubeError(Exception):
    """Raised when a request to the API server fails."""

    @property
    def label(self) -> str:
        """The name of the error class, as a metric label."""
        return type(self).__name__


class Unreachable(KubeError):
    """The server sent no response, but may have executed the request."""


class Garbled(KubeError):
    """The server's response violates the Kubernetes API."""


class ApiError(KubeError):
    """The server rejected the request; the error keeps only some fields of the returned Status.

    `code` is the HTTP code. `reason` is the Status reason, such as AlreadyExists. `retry_after_s`
    is the delay in seconds that the server requests before a retry, or None. `causes` has a pair
    (field, message) for each invalid field or other cause, such as a disruption budget.
    `cause_reasons` has the reason of each cause, such as DisruptionBudget.
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
        """The HTTP code and the reason, without the message."""
        return f"{self.code} {self.reason}".strip()

    @property
    def label(self) -> str:
        """The Status reason if Kubernetes defines this reason, and otherwise the HTTP code.

        An admission webhook may return any reason, but a metric label must have few values.
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
    """An object with the same name already exists."""


class Gone(ApiError):
    """The requested resource version is no longer available."""


class Expired(Gone):
    """The resource version or list page is too old; the objects must be listed again."""


class TooMany(ApiError):
    """The server is busy and has not executed the request."""


class ServerFault(ApiError):
    """The server failed; the request may have been executed."""


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
    """Return the error for a response with an error code.

    Only the Status reason, message and causes are kept. Other content, such as a proxy's error page
    or a returned object, could contain secrets.
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
    """Return the error for a Status from a response or a watch."""
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
    """Remove regular expressions from a message and truncate it to `MAX_MESSAGE` characters.

    The API server explains a naming rule in words and then repeats it as a regular expression.
    """
    text = _REGEX.sub("", text)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"
