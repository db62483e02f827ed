"""Parse and format Go durations, API server timestamps, and hours of the day.

Durations are integer nanoseconds; times are integer milliseconds since 1970-01-01T00:00:00Z.
Durations follow Go's package time (ParseDuration, Duration.String); times are RFC 3339.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from optsched.units.input_errors import UnitError
from optsched.units.quantity import divide_away

NANOS_PER_MS: Final = 10**6

_MAX_NANOS: Final = 2**63 - 1
_MAX_TEXT: Final = 256
_SECOND: Final = 10**9
_UNIT_NANOS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # micro sign
    "μs": 10**3,  # Greek mu
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_PART: Final = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_PARTS: Final = re.compile(_PART)
_DURATION: Final = re.compile(rf"([+-]?)(0|(?:{_PART})+)")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?"
    r"(Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)


class DurationError(UnitError):
    """Raised for a value that Go's `time.ParseDuration` rejects."""

    accepted = (
        "is not a duration: write numbers with units ns, us, ms, s, m or h, such as 300ms or 1h30m"
    )


class TimestampError(UnitError):
    """Raised for a value that is not an RFC 3339 time."""

    accepted = "is not an RFC 3339 time: write one such as 2026-11-21T05:38:00Z"


def parse_duration_ns(text: object) -> int:
    """Parse a Go duration into nanoseconds; fractions of a nanosecond are truncated, as in Go."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise DurationError(text)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise DurationError(text)
    nanos = 0
    for number, unit in _PARTS.findall(match[2]):
        whole, _, fraction = number.partition(".")
        nanos += int(whole + fraction) * _UNIT_NANOS[unit] // 10 ** len(fraction)
    if nanos > _MAX_NANOS + (match[1] == "-"):
        raise DurationError(text, "is too long: write at most 2562047h")
    return -nanos if match[1] == "-" else nanos


def parse_duration_ms(text: object) -> int:
    """Parse a Go duration into milliseconds, rounded away from zero so that 1ns is not 0."""
    return divide_away(parse_duration_ns(text), NANOS_PER_MS)


def format_duration_ns(nanos: int) -> str:
    """Return a duration as Go prints it: 1h0m0s, 1m14s, 1.5s, 300ms, 20µs, 0s."""
    sign, rest = ("-", -nanos) if nanos < 0 else ("", nanos)
    if 0 < rest < _SECOND:
        unit = next((u for u in ("ms", "µs") if rest >= _UNIT_NANOS[u]), "ns")
        return f"{sign}{_decimal(rest, _UNIT_NANOS[unit])}{unit}"
    hours, rest = divmod(rest, _UNIT_NANOS["h"])
    minutes, rest = divmod(rest, _UNIT_NANOS["m"])
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_decimal(rest, _SECOND)}s"


def format_duration_ms(milliseconds: int) -> str:
    """Return a duration in milliseconds as Go prints it."""
    return format_duration_ns(milliseconds * NANOS_PER_MS)


def parse_time_ms(text: object) -> int:
    """Parse an RFC 3339 time into milliseconds since 1970; fractions of a ms are truncated."""
    if not isinstance(text, str):
        raise TimestampError(text)
    return _time_ms(text)


def format_time(milliseconds: int) -> str:
    """Return a time in RFC 3339 format with whole seconds, like creationTimestamp."""
    return f"{_moment(milliseconds).isoformat(timespec='seconds')}Z"


def format_micro_time(milliseconds: int) -> str:
    """Return a time in RFC 3339 format with microseconds, like the renewTime of a Lease."""
    return f"{_moment(milliseconds).isoformat(timespec='microseconds')}Z"


@lru_cache(maxsize=8192)
def _time_ms(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise TimestampError(text)
    second, fraction, offset = match.groups(default="")
    try:
        moment = datetime.fromisoformat(second + offset)
    except ValueError as e:
        raise TimestampError(text) from e
    return (moment - _EPOCH) // _MILLISECOND + int(fraction.ljust(3, "0")[:3])


def _moment(milliseconds: int) -> datetime:
    return (_EPOCH + milliseconds * _MILLISECOND).replace(tzinfo=None)


def _decimal(nanos: int, unit_nanos: int) -> str:
    whole, rest = divmod(nanos, unit_nanos)
    fraction = str(unit_nanos + rest)[1:].rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)


# --- hours of the day -----------------------------------------------------------------------------

_TIME: Final = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"
_HOURS: Final = re.compile(rf"\s*{_TIME}-{_TIME}\s*")

_DAY_S: Final = 24 * 3600


class HoursError(UnitError):
    """Raised for a value that is not a range of hours of the day, such as 8:30-18:00."""

    accepted = "are not hours of the day: write two times such as 8:30-18:00"


class Hours(NamedTuple):
    """A daily time range in seconds after midnight, both ends included.

    The range spans midnight if `start_s` is at least `end_s`.
    """

    start_s: int
    end_s: int

    def __contains__(self, moment_ms: object) -> bool:
        """Return whether a time, in milliseconds since 1970, is within these hours in UTC."""
        if not isinstance(moment_ms, int):
            return False
        second = moment_ms // 1000 % _DAY_S
        if self.start_s < self.end_s:
            return self.start_s <= second <= self.end_s
        return second >= self.start_s or second <= self.end_s


def parse_hours(text: object) -> Hours:
    """Parse a range of hours of the day; two equal times mean the whole day.

    A range is two times in Go's layout 15:04, joined by a hyphen. Raises `HoursError` for other
    values.
    """
    match = _HOURS.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise HoursError(text)
    hour, minute, last_hour, last_minute = (int(part) for part in match.groups())
    return Hours((hour * 60 + minute) * 60, (last_hour * 60 + last_minute) * 60)
