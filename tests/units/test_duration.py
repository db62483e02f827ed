from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.units.duration import (
    DurationError,
    TimestampError,
    format_duration_ms,
    format_duration_ns,
    format_micro_time,
    format_time,
    parse_duration_ms,
    parse_duration_ns,
    parse_time_ms,
)

GOLDEN = Path(__file__).with_name("quantity_golden.tsv")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def golden(answer: str) -> list[tuple[str, str, str]]:
    rows = (line.split("\t") for line in GOLDEN.read_text(encoding="utf-8").splitlines())
    return [(json.loads(row[0]), row[2], row[3]) for row in rows if row[1] == answer]


@pytest.mark.parametrize(("text", "canonical", "nanos"), golden("duration"))
def test_durations_read_and_print_as_in_go(text: str, canonical: str, nanos: str):
    assert parse_duration_ns(text) == int(nanos)
    assert format_duration_ns(int(nanos)) == canonical


@pytest.mark.parametrize(("text", "_canonical", "_nanos"), golden("reject duration"))
def test_what_go_rejects_is_rejected(text: str, _canonical: str, _nanos: str):
    with pytest.raises(DurationError):
        parse_duration_ns(text)


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], "1" * 300 + "s"])
def test_other_values_are_no_duration(value: object):
    with pytest.raises(DurationError):
        parse_duration_ns(value)


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_printing_and_parsing_a_duration_is_a_round_trip(nanos: int):
    assert parse_duration_ns(format_duration_ns(nanos)) == nanos


def test_milliseconds_never_lose_a_short_wait():
    assert parse_duration_ms("1m14s") == 74_000
    assert parse_duration_ms("1ns") == 1
    assert parse_duration_ms("-1ns") == -1
    assert format_duration_ms(74_000) == "1m14s"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-21T05:38:00Z", 1795239480000),
        ("2026-11-21T13:38:00+08:00", 1795239480000),
        ("2026-11-21T00:08:00-05:30", 1795239480000),
        ("2026-11-21T05:38:00.123456Z", 1795239480123),
        ("2026-11-21T05:38:00.9Z", 1795239480900),
        ("2026-11-21T05:38:00.1234567899Z", 1795239480123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01T00:00:00Z", -62135596800000),
    ],
)
def test_times_are_milliseconds_since_1970(text: str, milliseconds: int):
    assert parse_time_ms(text) == milliseconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "2026-11-21",
        "2026-11-21T05:38Z",
        "2026-11-21T05:38:00",
        "2026-11-21 05:38:00Z",
        "2026-11-21t05:38:00z",
        "2026-02-30T00:00:00Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T05:38:60Z",
        "2026-11-21T05:38:00.Z",
        "2026-11-21T05:38:00+0800",
        "2026-11-21T05:38:00+24:00",
        "2026-W47-6T05:38:00Z",
        "٢026-11-21T05:38:00Z",
        " 2026-11-21T05:38:00Z",
        "2026-11-21T05:38:00Z\n",
        1795239480,
        None,
        [],
    ],
)
def test_what_is_no_time_is_refused(value: object):
    with pytest.raises(TimestampError) as caught:
        parse_time_ms(value)
    assert "2026-11-21T05:38:00Z" in caught.value.message


moments = st.integers(min_value=-62135596800000, max_value=253402300799999)


@given(moments)
def test_printing_and_parsing_a_time_is_a_round_trip(milliseconds: int):
    assert parse_time_ms(format_micro_time(milliseconds)) == milliseconds
    assert parse_time_ms(format_time(milliseconds)) == milliseconds // 1000 * 1000


offsets = st.integers(min_value=-1439, max_value=1439).map(lambda m: timezone(timedelta(minutes=m)))


@given(st.datetimes(timezones=offsets, min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))  # noqa: DTZ001 the strategy wants naive bounds
def test_times_agree_with_the_standard_library(moment: datetime):
    exact = (moment - EPOCH) // timedelta(milliseconds=1)
    assert parse_time_ms(moment.isoformat(timespec="microseconds")) == exact


def test_times_print_with_all_their_digits():
    assert format_time(-62135596800000) == "0001-01-01T00:00:00Z"
    assert format_time(1795239480999) == "2026-11-21T05:38:00Z"
    assert format_micro_time(1795239480123) == "2026-11-21T05:38:00.123000Z"
