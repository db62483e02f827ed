"""Tests of the due times of cron schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.units.cron import Timetable, last_due_ms, next_due_ms, parse_timetable

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def text(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat().removesuffix("+00:00")


@pytest.mark.parametrize(
    ("table", "after", "expected"),
    [
        ("* * * * *", "2026-11-21T15:00:30Z", "2026-11-21T15:01:00"),
        ("* * * * *", "2026-11-21T15:01:00Z", "2026-11-21T15:02:00"),
        ("*/15 * * * *", "2026-11-21T15:46:00Z", "2026-11-21T16:00:00"),
        ("0 0 * * *", "2026-11-21T15:46:00Z", "2026-11-22T00:00:00"),
        ("30 6-16/4 * * 1-5", "2026-11-20T14:31:00Z", "2026-11-23T06:30:00"),
        ("0 0 1 1 *", "2026-11-21T00:00:00Z", "2027-01-01T00:00:00"),
        ("0 12 29 2 *", "2026-03-01T00:00:00Z", "2028-02-29T12:00:00"),
        ("0 0 13 * 5", "2026-11-01T00:00:00Z", "2026-11-06T00:00:00"),
        ("0 0 13 * *", "2026-11-01T00:00:00Z", "2026-11-13T00:00:00"),
        ("0 0 * * 0", "2026-11-21T00:00:00Z", "2026-11-22T00:00:00"),
        ("59 23 31 2 *", "2026-11-21T00:00:00Z", ""),
        ("@hourly", "2026-11-21T00:00:00Z", "2026-11-21T01:00:00"),
        ("@every 90s", "2026-11-21T00:00:00.5Z", "2026-11-21T00:01:30"),
    ],
)
def test_the_next_time(table: str, after: str, expected: str) -> None:
    assert text(next_due_ms(parse_timetable(table), ms(after), UTC)) == expected


def test_the_clock_of_a_place_counts() -> None:
    table = parse_timetable("30 9 * * *")
    assert text(next_due_ms(table, ms("2026-07-01T00:00:00Z"), BERLIN)) == "2026-07-01T07:30:00"
    assert text(next_due_ms(table, ms("2026-12-01T00:00:00Z"), BERLIN)) == "2026-12-01T08:30:00"


def test_an_hour_that_is_left_out_is_left_out() -> None:
    # On 8 March 2026 New York's clocks move from 02:00 to 03:00.
    table = parse_timetable("30 2 * * *")
    after = ms("2026-03-07T12:00:00-05:00")
    assert text(next_due_ms(table, after, NEW_YORK)) == "2026-03-09T06:30:00"


def test_what_falls_into_an_hour_that_comes_twice_is_due_twice() -> None:
    # On 1 November 2026 the clocks move from 02:00 back to 01:00.
    table = parse_timetable("30 1 * * *")
    at, found = ms("2026-11-01T00:00:00-04:00"), []
    for _ in range(3):
        due = next_due_ms(table, at, NEW_YORK)
        assert due is not None
        found.append(text(due))
        at = due
    assert found == ["2026-11-01T05:30:00", "2026-11-01T06:30:00", "2026-11-02T06:30:00"]


@pytest.mark.parametrize(
    ("table", "after", "until", "expected"),
    [
        ("0 * * * *", "2026-11-21T10:00:00Z", "2026-11-21T10:59:59Z", ""),
        ("0 * * * *", "2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z", "2026-11-21T11:00:00"),
        ("0 * * * *", "2020-01-01T00:00:00Z", "2026-11-21T11:30:00Z", "2026-11-21T11:00:00"),
        ("0 0 1 1 *", "2020-01-01T00:00:00Z", "2026-11-21T11:30:00Z", "2026-01-01T00:00:00"),
        ("59 23 31 2 *", "2020-01-01T00:00:00Z", "2026-11-21T11:30:00Z", ""),
        ("@every 1h", "2026-11-21T10:10:00Z", "2026-11-21T12:30:00Z", "2026-11-21T12:10:00"),
        ("@every 1h", "2026-11-21T10:10:00Z", "2026-11-21T10:30:00Z", ""),
    ],
)
def test_the_last_time(table: str, after: str, until: str, expected: str) -> None:
    assert text(last_due_ms(parse_timetable(table), ms(after), ms(until), UTC)) == expected


TABLES = st.sampled_from(
    ["* * * * *", "*/7 3-5 * * *", "0 0 * * 1,3", "15 1,2 * * *", "5 4 1-7 * 2"]
)


@given(TABLES, st.integers(0, 365 * 24 * 60), st.integers(1, 9 * 24 * 60))
def test_nothing_is_due_in_between(table: str, minute: int, length: int) -> None:
    """The test compares the due times with a check of every minute."""
    timetable = parse_timetable(table)
    begin = ms("2026-01-01T00:00:00Z") + minute * 60_000
    end = begin + length * 60_000
    moments = [
        at
        for at in range(begin + 60_000, end + 1, 60_000)
        if _is_due(timetable, datetime.fromtimestamp(at / 1000, NEW_YORK))
    ]
    found = next_due_ms(timetable, begin, NEW_YORK)
    last = last_due_ms(timetable, begin, end, NEW_YORK)
    assert (found if found is not None and found <= end else None) == min(moments, default=None)
    assert last == max(moments, default=None)


def _is_due(table: Timetable, at: datetime) -> bool:
    day, weekday = at.day in table.days, (at.weekday() + 1) % 7 in table.weekdays
    is_day = (day and weekday) if table.any_day or table.any_weekday else (day or weekday)
    is_right_month = at.month in table.months
    return is_right_month and is_day and at.hour in table.hours and at.minute in table.minutes
