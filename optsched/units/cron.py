"""Parse schedules in cron notation and find their due times, like Go's robfig/cron/v3.

A schedule has five fields: minute, hour, day of the month, month and day of the week. A field
accepts lists, ranges, steps and names; `?` means `*`. In the field for the day of
the week, Sunday is 0, and 7 is an error. Instead of five fields, a schedule may be a word such as
`@daily`, or `@every` with a duration.

Source: `ParseStandard` and `SpecSchedule.Next` of robfig/cron. If the clock skips an hour, the
scheduled times in that hour are never due. If the clock repeats an hour, the scheduled times in
that hour are due twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

from optsched.units.duration import DurationError, parse_duration_ns
from optsched.units.input_errors import UnitError
from optsched.units.quantity import is_decimal

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
    """Raised for a string that is not a valid cron schedule."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One of the five fields of a cron schedule: the bounds and names that the field accepts."""

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

    `any_day` is True if the field for the day of the month is `*` or `?`, and `any_weekday` is True
    if the field for the day of the week is `*` or `?`. If `any_day` or `any_weekday` is True, a job
    is due on days that match both fields, and otherwise on days that match at least one of these
    fields. `every_s` is the interval in seconds, or 0 for clock times.
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
    """Parse a cron schedule; `CronError` names the invalid field and the accepted values."""
    if text.startswith(_EVERY):
        try:
            nanos = parse_duration_ns(text.removeprefix(_EVERY).strip())
        except DurationError as e:
            raise CronError(text, f"has no duration after @every: {e}") from e
        # robfig/cron rounds an interval down to whole seconds, but never below one second.
        return Timetable(every_s=max(1, nanos // _SECOND))
    words = _WORDS.get(text, text).split()
    if text.startswith("@") and text not in _WORDS:
        known = ", ".join([*_WORDS, "@every <duration>"])
        raise CronError(text, f"is not a cron schedule: known words are {known}")
    if len(words) != len(_FIELDS):
        names = ", ".join(each.name for each in _FIELDS)
        raise CronError(text, f"has {len(words)} fields: write five, {names}")
    allowed: list[frozenset[int]] = []
    allows_all: list[bool] = []
    for word, field in zip(words, _FIELDS, strict=True):
        parts = [_parse_field_part(part, field, text) for part in word.split(",")]
        allowed.append(frozenset().union(*(numbers for numbers, _ in parts)))
        allows_all.append(any(is_any for _, is_any in parts))
    minutes, hours, days, months, weekdays = allowed
    _, _, any_day, _, any_weekday = allows_all
    return Timetable(minutes, hours, days, months, weekdays, any_day, any_weekday)


def _parse_field_part(part: str, field: _Field, text: str) -> tuple[frozenset[int], bool]:
    """Return the numbers that a term such as `1-5/2` allows, and whether it is `*` or `?`."""
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
"""Maximum number of digits in a number; Python's `int` refuses to parse thousands of digits."""


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


# --- due times ------------------------------------------------------------------------------------

_MINUTE_MS: Final = 60_000
_HORIZON: Final = timedelta(days=5 * 366)
"""Length of the period in which `next_due_ms` searches for the next due time of a schedule.

A schedule that is not due within five years, such as a schedule for February 31, counts as never
due.
"""


def next_due_ms(table: Timetable, after_ms: int, zone: tzinfo) -> int | None:
    """Return the first due time after `after_ms`, both in ms since 1970; None if there is none."""
    if table.every_s:
        return (after_ms // 1000 + table.every_s) * 1000
    at = datetime.fromtimestamp((after_ms // _MINUTE_MS + 1) * 60, zone)
    end_s = at.timestamp() + _HORIZON.total_seconds()
    while at.timestamp() < end_s:
        step = _step(table, at)
        if step is None:
            return round(at.timestamp()) * 1000
        at = step
    return None


def last_due_ms(table: Timetable, after_ms: int, until_ms: int, zone: tzinfo) -> int | None:
    """Return the last due time after `after_ms` and up to `until_ms`, in ms since 1970, or None."""
    if table.every_s:
        times = (until_ms // 1000 - after_ms // 1000) // table.every_s
        return (after_ms // 1000 + times * table.every_s) * 1000 if times > 0 else None
    first = next_due_ms(table, after_ms, zone)
    if first is None or first > until_ms:
        return None
    # A later start time never has an earlier next due time, so a binary search finds the last due
    # time.
    low, high = after_ms // _MINUTE_MS, until_ms // _MINUTE_MS
    while low < high:
        middle = (low + high + 1) // 2
        found = next_due_ms(table, middle * _MINUTE_MS - 1, zone)
        if found is not None and found <= until_ms:
            low = middle
        else:
            high = middle - 1
    return next_due_ms(table, max(after_ms, low * _MINUTE_MS - 1), zone)


def _step(table: Timetable, at: datetime) -> datetime | None:
    """Return the next time at which the schedule may be due, or None if it is due at `at`."""
    if at.month not in table.months:
        is_last = at.month == 12
        month = 1 if is_last else at.month + 1
        return _midnight(at, at.replace(year=at.year + is_last, month=month, day=1))
    matches = (at.day in table.days, at.isoweekday() % 7 in table.weekdays)
    is_due_day = all(matches) if table.any_day or table.any_weekday else any(matches)
    if not is_due_day:
        return _midnight(at, at + timedelta(days=1))
    if at.hour not in table.hours:
        return _add_minutes(at, 60 - at.minute)
    if at.minute not in table.minutes:
        later = [minute for minute in table.minutes if minute > at.minute]
        return _add_minutes(at, min(later, default=60) - at.minute)
    return None


def _midnight(at: datetime, day: datetime) -> datetime:
    """Return the first time on `day` that is after `at`, even if the clock changes at midnight."""
    begins = day.replace(hour=0, minute=0, fold=0)
    begins = datetime.fromtimestamp(begins.timestamp(), at.tzinfo)
    return begins if begins.timestamp() > at.timestamp() else _add_minutes(at, 60)


def _add_minutes(at: datetime, minutes: int) -> datetime:
    """Return the time after `minutes` elapsed minutes, regardless of clock changes."""
    return datetime.fromtimestamp(at.timestamp() + minutes * 60, at.tzinfo)
