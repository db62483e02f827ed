"""Every parser raises only documented errors, with steps proportional to its input."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

import pytest

from optsched.controllers.job.plugin_interface import read_flags
from optsched.units.cron import CronError, parse_timetable
from tests.fuzz.mutations import MOST, mutate_object, mutate_text
from tests.fuzz.parsers import PARSERS, Parser, as_json, of_text, texts
from tests.fuzz.run import COUNTED, StepsError, check, check_many, input_of
from tests.support.effort import num_examples

if TYPE_CHECKING:
    from pathlib import Path

NUM_INPUTS = num_examples(2 * COUNTED)
SEED = 0


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_only_documented_errors_come_out(parser: Parser) -> None:
    assert "\n".join(map(str, check_many(parser, SEED, range(NUM_INPUTS)))) == ""


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_inputs_begin_with_what_is_read(parser: Parser, tmp_path: Path) -> None:
    """Each parser accepts some of its seeds, because mutations of invalid
    inputs find few mistakes.
    """
    seeds = parser.seeds()
    assert seeds
    read = 0
    for value in seeds[:3]:
        try:
            parser.read(value, tmp_path)
        except parser.errors:
            continue
        read += 1
    assert read


def test_inputs_follow_from_their_numbers() -> None:
    parser = PARSERS[0]
    first, second = ([input_of(parser, SEED, index) for index in range(200)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 150
    assert first != [input_of(parser, SEED + 1, index) for index in range(200)]


def test_mutations_stay_within_their_size() -> None:
    random = Random(0)
    for _ in range(50):
        assert len(mutate_text("x" * MOST, random, ["y" * MOST])) <= MOST
    json.dumps([mutate_object({"a": [1, {"b": "c"}]}, random, [{"d": 0}]) for _ in range(50)])


def broken(text: str) -> None:
    if "1" in text:
        raise KeyError(text)


def slow(text: str) -> int:
    found = 0
    for one in text:
        for other in text:
            found += one == other
    return found


def test_what_is_not_documented_is_found(tmp_path: Path) -> None:
    """A planted error of another type and planted quadratic work are found."""
    strange = Parser("strange", of_text(broken), (ValueError,), texts("1"))
    (finding,) = check_many(strange, SEED, range(1))
    assert str(finding).splitlines() == [
        "strange: KeyError: '1'",
        "  make fuzz SEED=0 PARSER='strange' ONLY=0",
        "  input: '1'",
    ]
    assert check(Parser("known", of_text(broken), (KeyError,), texts("1")), 0, 0, tmp_path) is None
    square = Parser("square", of_text(slow), (), texts("x" * 2000), (200, 5000))
    (finding,) = check_many(square, SEED, range(1))
    assert isinstance(finding.error, StepsError)
    assert list(check_many(Parser("short", of_text(slow), (), texts("x" * 20)), 0, range(1))) == []


def test_objects_become_texts(tmp_path: Path) -> None:
    assert as_json(of_text(json.loads))({"a": [1]}, tmp_path) == {"a": [1]}


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    """Python itself raises ValueError for integers with thousands of digits."""
    for text in (f"{'9' * 5000} * * * *", f"*/{'9' * 5000} * * * *", f"1-{'9' * 5000} * * * *"):
        with pytest.raises(CronError, match="names no minute"):
            parse_timetable(text)
    assert read_flags((f"--port={'9' * 5000}",), (("port", 22),)).problems
