"""Find the due times of a timetable in a time zone with daylight saving time.

The rules are those of Go's robfig/cron/v3 (`SpecSchedule.Next`). A time in an hour that the clock
skips is not due. A time in an hour that the clock repeats is due twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from optsched.units.cron import Timetable

_MINUTE_MS: Final = 60_000
_HORIZON: Final = timedelta(days=5 * 366)
"""The time span in which a due time is searched.

A timetable without a due time within this span, such as February 31, is never due.
"""


def next_due_ms(table: Timetable, after_ms: int, zone: tzinfo) -> int | None:
    """Return the first due time after `after_ms`, in milliseconds since 1970, or None."""
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
    """Return the last due time after `after_ms` and up to `until_ms`, or None if no time is due."""
    if table.every_s:
        times = (until_ms // 1000 - after_ms // 1000) // table.every_s
        return (after_ms // 1000 + times * table.every_s) * 1000 if times > 0 else None
    first = next_due_ms(table, after_ms, zone)
    if first is None or first > until_ms:
        return None
    # The next due time never decreases with a later start, so binary search finds the last due
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
    """Return the next candidate time after `at`, or None if the timetable is due at `at`."""
    if at.month not in table.months:
        return _midnight(at, _next_month(at))
    if not _is_right_day(table, at):
        return _midnight(at, at + timedelta(days=1))
    if at.hour not in table.hours:
        return _add_minutes(at, 60 - at.minute)
    if at.minute not in table.minutes:
        later = [minute for minute in table.minutes if minute > at.minute]
        return _add_minutes(at, min(later, default=60) - at.minute)
    return None


def _is_right_day(table: Timetable, at: datetime) -> bool:
    by_number = at.day in table.days
    by_weekday = at.isoweekday() % 7 in table.weekdays
    if table.any_day or table.any_weekday:
        return by_number and by_weekday
    return by_number or by_weekday


def _next_month(at: datetime) -> datetime:
    is_last = at.month == 12
    return at.replace(year=at.year + is_last, month=1 if is_last else at.month + 1, day=1)


def _midnight(at: datetime, day: datetime) -> datetime:
    """Return the first time on `day`.

    The result is after `at`, even if the clock changes at midnight.
    """
    begins = day.replace(hour=0, minute=0, fold=0)
    begins = datetime.fromtimestamp(begins.timestamp(), at.tzinfo)
    return begins if begins.timestamp() > at.timestamp() else _add_minutes(at, 60)


def _add_minutes(at: datetime, minutes: int) -> datetime:
    """Return the time after `minutes` elapsed minutes, regardless of clock changes."""
    return datetime.fromtimestamp(at.timestamp() + minutes * 60, at.tzinfo)
