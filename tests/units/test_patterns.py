"""Regular expressions have the same meaning as in Go, and take linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.units.patterns import PatternError, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        ("^gpu-[0-9]+$", "gpu-12", True),
        ("^gpu-[0-9]+$", "gpu-x", False),
        ("pu-1", "gpu-12", True),
        ("", "gpu", True),
        ("^a.b$", "a\ud800b", True),
        ("^ab$", "a\ud800b", False),
        ("(?i)GPU", "gpu", True),
        (r"[[:alpha:]]+-\d{2}", "gpu-12", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        (r"\Q\C\E", r"\C", True),
        (r"(?P<rack>a)|(?<row>b)", "b", True),
        (r"a\z", "a", True),
        (r"\\C", r"\C", True),
        # Python reads these braces as a repetition count, and Go as literal text.
        ("^a{,2}$", "a{,2}", True),
        ("^a{,2}$", "aa", False),
    ],
)
def test_patterns_are_looked_for_as_go_does(pattern: str, text: str, is_found: bool) -> None:
    assert parse_pattern(pattern).matches(text) is is_found


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("gpu-(?=1)", "invalid perl operator: (?="),
        ("\ud800", "invalid UTF-8"),
        ("(?!gpu)", "invalid perl operator: (?!"),
        ("(?<=a)b", "invalid perl operator: (?<"),
        ("(?<!a)b", "invalid perl operator: (?<"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        ("(?P<n>a)(?P=n)", "invalid perl operator: (?P"),
        ("a*+", "bad repetition operator: *+"),
        ("(?>a)", "invalid perl operator: (?>"),
        ("(?(1)a|b)", "invalid perl operator: (?("),
        ("(?#a)", "invalid perl operator: (?#"),
        (r"a\Z", r"invalid escape sequence: \Z"),
        (r"a\C", r"invalid escape sequence: \C"),
        ("a{1001}", "invalid repetition size: {1001}"),
        ("(?:a{1000}){1000}", "invalid repetition size"),
        ("(", "missing )"),
        ("[", "missing ]"),
    ],
)
def test_what_go_does_not_read_is_refused_with_what_it_reads(pattern: str, problem: str) -> None:
    with pytest.raises(PatternError) as raised:
        parse_pattern(pattern)
    said = str(raised.value)
    assert said.startswith(f"is not a regular expression: {problem}")
    assert "write one that Go reads (RE2): no look-around" in said


def test_no_pattern_takes_long() -> None:
    began = time.perf_counter()
    for pattern in ("(a+)+$", "(a|aa)+$", "(.*a){20}", "(a?){30}a{30}"):
        parse_pattern(pattern).matches("a" * 5000 + "!")
    assert time.perf_counter() - began < 5.0


def test_patterns_with_the_same_text_are_the_same() -> None:
    assert parse_pattern("a+") == parse_pattern("a+")
    assert len({parse_pattern("a+"), parse_pattern("a+"), parse_pattern("b")}) == 2


@given(
    st.lists(st.sampled_from(["a", "b", "^", "$", ".", "a*", "(b|a)+", "[^a]", "b?"]), max_size=6),
    st.text("ab-", max_size=8),
)
def test_simple_patterns_mean_what_they_mean_everywhere(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    assert parse_pattern(pattern).matches(text) is (re.search(pattern, text) is not None)
