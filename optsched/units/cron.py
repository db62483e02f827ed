"""Parse timetables in cron notation by the rules of Go's robfig/cron/v3 (`ParseStandard`).

A timetable has five fields: minute, hour, day of the month, month and day of the week. A field
accepts lists, ranges, steps and names; `?` means `*`. Sunday is 0, and 7 is an error. Instead of
five fields, a timetable may be a word such as `@daily`, or `@every` with a duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from optsched.units.digits import is_decimal
from optsched.units.duration import DurationError, parse_duration_ns
from optsched.units.unit_errors import UnitError

_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY: Final = "@every "
_SECOND: Final = 10**9


class CronError(UnitError):
    """Raised for a text that is not a valid timetable."""


@dataclass(frozen=True, slots=True)
class _Field:
    """The bounds and the accepted names of one of the five fields of a timetable."""

    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 6, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Timetable:
    """The times at which a job is due: clock times, or a constant interval.

    `any_day` and `any_weekday` are true if the field for days or weekdays allows every value. If
    `any_day` or `any_weekday` is true, a job is due on days on which both fields match. Otherwise,
    a job is due on days on which at least one field matches. `every_s` is the interval in seconds,
    or 0 for clock times.
    """

    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = True
    any_weekday: bool = True
    every_s: int = 0


def parse_timetable(text: str) -> Timetable:
    """Parse a timetable; `CronError` names the invalid field and the accepted values."""
    if text.startswith(_EVERY):
        return Timetable(every_s=_every_s(text))
    words = _WORDS.get(text, text).split()
    if text.startswith("@") and text not in _WORDS:
        known = ", ".join([*_WORDS, "@every <duration>"])
        raise CronError(text, f"is not a timetable: known words are {known}")
    if len(words) != len(_FIELDS):
        names = ", ".join(each.name for each in _FIELDS)
        raise CronError(text, f"has {len(words)} fields: write five, {names}")
    found = [_field(word, each, text) for word, each in zip(words, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = found
    return Timetable(minutes[0], hours[0], days[0], months[0], weekdays[0], days[1], weekdays[1])


def _every_s(text: str) -> int:
    try:
        nanos = parse_duration_ns(text.removeprefix(_EVERY).strip())
    except DurationError as e:
        raise CronError(text, f"has no duration after @every: {e}") from e
    # robfig/cron rounds down to whole seconds, but never below one second.
    return max(1, nanos // _SECOND)


def _field(word: str, field: _Field, text: str) -> tuple[frozenset[int], bool]:
    """Return the numbers that a field of a timetable allows, and whether the field allows all."""
    parts = [_parse_field_part(part, field, text) for part in word.split(",")]
    return frozenset().union(*(numbers for numbers, _ in parts)), any(is_any for _, is_any in parts)


def _parse_field_part(part: str, field: _Field, text: str) -> tuple[frozenset[int], bool]:
    span, slash, step_text = part.partition("/")
    step = _number(step_text, (), field, text) if slash else 1
    if span in ("*", "?"):
        low, high = field.low, field.high
    else:
        first, dash, last = span.partition("-")
        low = _number(first, field.words, field, text)
        high = _number(last, field.words, field, text) if dash else low
        if slash and not dash:
            high = field.high
    if not field.low <= low <= high <= field.high or step < 1:
        raise _error(part, field, text)
    is_any = span in ("*", "?") and step == 1
    return frozenset(range(low, high + 1, step)), is_any


_SHOWN: Final = 60
_MAX_DIGITS: Final = 9
"""Maximum number of digits of a number, because Python refuses to parse thousands of digits."""


def _number(word: str, words: tuple[str, ...], field: _Field, text: str) -> int:
    if word.lower() in words:
        return words.index(word.lower()) + field.low
    if not is_decimal(word, _MAX_DIGITS):
        raise _error(word, field, text)
    return int(word)


def _error(part: str, field: _Field, text: str) -> CronError:
    names = f" or {field.words[0]} to {field.words[-1]}" if field.words else ""
    return CronError(
        text,
        f"names no {field.name} with {part[:_SHOWN]!r}: write {field.low} to {field.high}{names}, "
        "*, a list, a range or steps",
    )
