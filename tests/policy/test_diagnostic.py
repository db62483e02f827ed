from __future__ import annotations

import pytest

from optsched.policy.diagnostic import (
    Diagnostic,
    Findings,
    PolicyError,
    Position,
    Severity,
    nearest,
)

SPOT = Position("a.yaml", 3, 9, "tiers[0].name", "- name: gnag")


def test_problem_shows_place_line_caret_and_likely_word() -> None:
    findings = Findings()
    findings.error(SPOT, "there is no gnag", "gang")
    assert str(findings.problems[0]) == (
        "a.yaml:3:9: tiers[0].name: there is no gnag\n"
        "    - name: gnag\n"
        "            ^ did you mean `gang`?"
    )


def test_problem_of_a_whole_file_is_one_line() -> None:
    problem = Diagnostic("a.yaml", 0, 0, "", "is not there", "b.yaml")
    assert str(problem) == "a.yaml: is not there; did you mean `b.yaml`?"


def test_long_and_strange_lines_fit_a_terminal() -> None:
    line = "\t" + "x" * 500 + "\x85" + "y" * 500
    text = str(Diagnostic("a", 1, 502, "", "m", "", Severity.ERROR, line)).splitlines()
    assert len(text) == 3
    assert len(text[1]) < 110
    assert text[1].isprintable()
    assert text[1][text[2].index("^") - 1] == "x"
    assert text[1][text[2].index("^") + 1] == "y"


def test_warnings_stop_nothing_and_errors_bring_everything() -> None:
    findings = Findings()
    findings.warn(SPOT, "odd")
    assert [p.severity for p in findings.raise_errors()] == [Severity.WARNING]
    findings.error(Position("a.yaml", 1, 1), "wrong")
    findings.error(Position("a.yaml", 1, 1), "wrong too")
    with pytest.raises(PolicyError) as caught:
        findings.raise_errors()
    assert [p.message for p in caught.value.problems] == ["wrong", "wrong too", "odd"]
    assert str(caught.value).splitlines()[-1] == "2 errors, 1 warning"


def test_nearest_looks_past_case_and_typing_errors() -> None:
    assert nearest("gangPreempt", ["gangpreempt", "preempt"]) == "gangpreempt"
    assert nearest("binpcak", ["binpack", "gang"]) == "binpack"
    assert nearest("zzz", ["binpack", "gang"]) == ""
