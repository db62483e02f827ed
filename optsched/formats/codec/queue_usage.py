"""What a queue has used lately, as the annotation `optsched.io/usage` keeps it.

`{"at": "2026-11-21T05:38:00Z", "resourceSeconds": {"nvidia.com/gpu": 7200.0}}`: base units (CPUs in
thousandths, bytes, pieces) times seconds, as they count at that time. Numbers come back as written.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.usage import Usage
from optsched.formats.codec.snapshot_annotations import time_text
from optsched.units import FieldError, TimestampError, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

USAGE: Final = "optsched.io/usage"

_AT: Final = "at"
_SECONDS: Final = "resourceSeconds"
_ACCEPTED: Final = (
    "is not a usage and counts as none: it would be such as "
    '{"at": "2026-11-21T05:38:00Z", "resourceSeconds": {"nvidia.com/gpu": 7200.0}}'
)


def usage_text(usage: Usage) -> str:
    """A usage as the annotation has it."""
    return json.dumps({_AT: time_text(usage.at_ms), _SECONDS: dict(usage.seconds)})


def read_usage(annotations: Mapping[str, str]) -> tuple[Usage | None, tuple[FieldError, ...]]:
    """The usage that annotations tell; None without any, or for one that has no reading."""
    text = annotations.get(USAGE)
    if text is None:
        return None, ()
    try:
        return _usage(json.loads(text)), ()
    except (
        *(ValueError, TypeError, AttributeError, KeyError, TimestampError),
        *(OverflowError, RecursionError),
    ):
        error = FieldError(f"metadata.annotations[{USAGE}]", text, _ACCEPTED)
        return None, (error,)


def _usage(found: Mapping[str, Any]) -> Usage:
    pairs = [(name, float(amount)) for name, amount in sorted(found[_SECONDS].items())]
    if not all(math.isfinite(amount) and amount >= 0 for _, amount in pairs):
        raise ValueError(found)
    return Usage(tuple(pairs), parse_time_ms(found[_AT]))
