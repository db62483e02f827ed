"""Names that Kubernetes accepts (k8s.io/apimachinery, pkg/util/validation).

Each function checks a name's length before it calls a cached function, so no long string is cached.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MAX_LABEL: Final = 63
MAX_SUBDOMAIN: Final = 253
_MAX_QUALIFIED: Final = MAX_SUBDOMAIN + 1 + MAX_LABEL

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

LABEL_RULE: Final = (
    "use at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
)
SUBDOMAIN_RULE: Final = (
    "use at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
)
JOB_NAME_RULE: Final = (
    "use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
)
QUALIFIED_RULE: Final = (
    "use a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both "
    "ends, after an optional DNS name and '/', such as example.com/my-name"
)


@lru_cache(maxsize=8192)
def _matches(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """Return whether a string is a DNS label (RFC 1123)."""
    return len(text) <= MAX_LABEL and _matches(_LABEL, text)


def is_subdomain(text: str) -> bool:
    """Return whether a string is a DNS subdomain (RFC 1123)."""
    return len(text) <= MAX_SUBDOMAIN and _matches(_SUBDOMAIN, text)


def is_qualified(text: str) -> bool:
    """Return whether a string is a qualified name, such as example.com/my-name."""
    return len(text) <= _MAX_QUALIFIED and _is_qualified(text)


@lru_cache(maxsize=4096)
def _is_qualified(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return (
        len(name) <= MAX_LABEL
        and _NAME.fullmatch(name) is not None
        and (not slash or is_subdomain(prefix))
    )
