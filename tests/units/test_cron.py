from __future__ import annotations

import pytest

from optsched.units.cron import CronError, Timetable, parse_timetable


def test_five_fields_with_lists_ranges_steps_and_names():
    found = parse_timetable("*/15 8-10,22 1-31/10 jan,Mar-APR sun,5")
    assert found.minutes == {0, 15, 30, 45}
    assert found.hours == {8, 9, 10, 22}
    assert found.days == {1, 11, 21, 31}
    assert found.months == {1, 3, 4}
    assert found.weekdays == {0, 5}
    assert (found.any_day, found.any_weekday, found.every_s) == (False, False, 0)


def test_a_step_from_a_number_goes_to_the_end_and_a_question_mark_is_a_star():
    found = parse_timetable("50/5 ? ? * ?")
    assert found.minutes == {50, 55}
    assert found.hours == set(range(24))
    assert (found.any_day, found.any_weekday) == (True, True)


@pytest.mark.parametrize(
    ("word", "same"),
    [("@daily", "0 0 * * *"), ("@weekly", "0 0 * * sun"), ("@annually", "0 0 1 1 *")],
)
def test_words(word: str, same: str):
    assert parse_timetable(word) == parse_timetable(same)


@pytest.mark.parametrize(("text", "seconds"), [("@every 1h30m", 5400), ("@every 1ms", 1)])
def test_every_so_often(text: str, seconds: int):
    assert parse_timetable(text) == Timetable(every_s=seconds)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has 0 fields: write five, minute, hour, day of the month, month, day of the week"),
        ("* * * * * *", "has 6 fields"),
        ("60 * * * *", "names no minute with '60': write 0 to 59, *, a list, a range or steps"),
        ("* * 0 * *", "names no day of the month with '0'"),
        ("* * * foo *", "names no month with 'foo': write 1 to 12 or jan to dec"),
        ("* * * * 7", "names no day of the week with '7'"),
        ("5-1 * * * *", "names no minute with '5-1'"),
        ("*/0 * * * *", "names no minute with '*/0'"),
        ("*/x * * * *", "names no minute with 'x'"),
        ("-1 * * * *", "names no minute with ''"),
        ("@often", "is not a cron schedule: known words are @yearly"),
        ("@every day", "has no duration after @every"),
    ],
)
def test_what_is_no_timetable(text: str, complaint: str):
    with pytest.raises(CronError) as caught:
        parse_timetable(text)
    assert caught.value.message.startswith(complaint)
