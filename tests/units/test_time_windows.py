from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.units import Hours, HoursError, parse_hours

DAY_MS = 24 * 3600 * 1000


def at(text: str) -> int:
    """Return the milliseconds of a time HH:MM:SS on a fixed day in UTC."""
    hour, minute, second = map(int, text.split(":"))
    return 20_000 * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("8:30-18:00", Hours(30_600, 64_800)),
        ("08:30-18:00", Hours(30_600, 64_800)),
        (" 0:00-23:59 ", Hours(0, 86_340)),
        ("22:00-6:00", Hours(79_200, 21_600)),
    ],
)
def test_hours_are_two_times(text: str, hours: Hours) -> None:
    assert parse_hours(text) == hours


@pytest.mark.parametrize(
    "text", ["", "8:30", "8-18", "8:30-24:00", "8:3-9:00", "8:30 - 9:00", "8:30-9:00-10:00", 830]
)
def test_anything_else_is_refused_with_what_would_do(text: object) -> None:
    with pytest.raises(HoursError, match=r"write two times such as 8:30-18:00"):
        parse_hours(text)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("8:30-18:00", ["8:30:00", "12:00:00", "18:00:00"], ["8:29:59", "18:00:01", "0:00:00"]),
        ("22:00-6:00", ["22:00:00", "0:00:00", "6:00:00"], ["21:59:59", "6:00:01", "12:00:00"]),
    ],
)
def test_both_ends_count_and_midnight_may_be_between_them(
    text: str, inside: list[str], outside: list[str]
) -> None:
    hours = parse_hours(text)
    assert all(at(moment) in hours for moment in inside)
    assert not any(at(moment) in hours for moment in outside)


@given(st.integers(0, 23), st.integers(0, 10**14))
def test_equal_times_are_the_whole_day(hour: int, moment_ms: int) -> None:
    assert moment_ms in parse_hours(f"{hour}:00-{hour}:00")


@given(st.integers(0, 86_399), st.integers(0, 86_399), st.integers(0, 10**14))
def test_every_moment_is_in_some_hours_or_in_those_that_are_left(
    start_s: int, end_s: int, moment_ms: int
) -> None:
    assert moment_ms in Hours(start_s, end_s) or moment_ms in Hours(end_s, start_s)
