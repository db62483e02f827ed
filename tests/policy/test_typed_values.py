from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.policy import located
from optsched.policy.diagnostic import Findings
from optsched.policy.located import read_tree

if TYPE_CHECKING:
    from collections.abc import Callable


def ask(read: Callable[..., Any], text: str, *args: Any) -> tuple[Any, list[tuple[str, str]]]:
    findings = Findings()
    node = read_tree(text, "f", findings)
    assert node is not None
    value = read(node, findings, *args)
    return value, [(p.message, p.likely) for p in findings.problems]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (located.read_string, "abc", "abc"),
        (located.read_flag, "TRUE", True),
        (located.read_whole_number, "-3", -3),
        (located.read_whole_number, "0x10", 16),
        (located.read_number, "1.5", 1.5),
        (located.read_number, "2", 2),
        (located.read_duration_ms, "1m30s", 90_000),
        (located.read_duration_ms, "1us", 1),
    ],
)
def test_good_values_pass(read: Callable[..., Any], text: str, value: object) -> None:
    assert ask(read, text) == (value, [])


@pytest.mark.parametrize(
    ("read", "text", "message", "likely"),
    [
        (located.read_string, "10", "must be text, not 10", '"10"'),
        (located.read_string, "", "must be text, not empty", ""),
        (located.read_string, "'  '", 'must be text, not the text "  "', ""),
        (located.read_string, "null", "must be text, not null", ""),
        (located.read_string, "[a]", "must be text, not a list", ""),
        (located.read_flag, "yes", 'must be true or false, not the text "yes"', "true"),
        (located.read_flag, "'false'", 'must be true or false, not the text "false"', "false"),
        (located.read_flag, "0", "must be true or false, not 0", "false"),
        (located.read_flag, "maybe", 'must be true or false, not the text "maybe"', ""),
        (located.read_whole_number, "1.5", "must be a whole number, not 1.5", ""),
        (located.read_whole_number, "true", "must be a whole number, not true", ""),
        (located.read_whole_number, "'7'", 'must be a whole number, not the text "7"', "7"),
        (
            located.read_whole_number,
            "1_000",
            'must be a whole number, not the text "1_000"',
            "1000",
        ),
        (
            located.read_whole_number,
            "010",
            "010 is 10 in some YAML parsers and octal in others",
            "10",
        ),
        (located.read_whole_number, "4294967296", "must be at most 2147483647, not 4294967296", ""),
        (located.read_number, ".nan", "must be a number, not .nan", ""),
        (located.read_number, "{a: b}", "must be a number, not a mapping", ""),
        (
            located.read_duration_ms,
            "3",
            "must be a duration such as 400ms, 1s or 1m30s, not 3",
            "3s",
        ),
        (located.read_duration_ms, "0s", "must be at least 1ms, not 0s", ""),
        (located.read_items, "a", 'must be a list, not the text "a"', ""),
    ],
)
def test_bad_values_become_problems(
    read: Callable[..., Any], text: str, message: str, likely: str
) -> None:
    value, problems = ask(read, text)
    assert not value
    assert problems == [(message, likely)]


def test_the_least_is_named() -> None:
    assert ask(located.read_whole_number, "1", 2) == (None, [("must be at least 2, not 1", "")])
    assert ask(located.read_number, "0.9", 1) == (None, [("must be at least 1, not 0.9", "")])


def test_choices_name_what_there_is_unless_one_is_near() -> None:
    def choose(node: Any, findings: Findings) -> str | None:
        return located.read_choice(node, ["cpsat", "none"], "solver", findings)

    assert ask(choose, "none") == ("none", [])
    assert ask(choose, "cpsta") == (None, [('there is no solver "cpsta"', "cpsat")])
    unknown = 'there is no solver "gurobi"; known are cpsat, none'
    assert ask(choose, "gurobi") == (None, [(unknown, "")])


def test_fields_report_the_unknown_and_the_missing() -> None:
    def fields(node: Any, findings: Findings) -> list[str]:
        return list(located.read_fields(node, ["name", "tiers"], findings, required=["name"]))

    assert ask(fields, "{tiers: [], name: x}") == (["name", "tiers"], [])
    value, problems = ask(fields, "{teirs: []}")
    assert value == []
    assert problems == [("the field name is missing", ""), ("there is no such field", "tiers")]
    assert ask(fields, "[]") == ([], [("must be a mapping, not a list", "")])


def test_quoted_numbers_can_be_read_as_numbers() -> None:
    def loose(node: Any, findings: Findings) -> int | None:
        return located.read_whole_number(located.unquote(node), findings)

    assert ask(loose, '"10"') == (10, [])
    assert ask(loose, "10") == (10, [])
    assert ask(loose, '"ten"')[0] is None
