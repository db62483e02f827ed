"""Tests of the reasons of read errors, which contain no Python terms."""

from __future__ import annotations

import json

import pytest

from optsched.units.input_errors import why_unreadable


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1, column 1: a value is expected"),
        ("\n{", "line 2, column 2: a name in double quotes is expected"),
        ('{"a" 1}', "line 1, column 6: a colon is expected"),
        ("[1 2]", "line 1, column 4: a comma or the end is expected"),
        ("[] []", "line 1, column 4: unexpected text after the end of the document"),
        ('["a', "line 1, column 2: this string is not terminated"),
        ("\ufeff[]", "line 1, column 1: a byte order mark is not allowed"),
        ('["\\q"]', "line 1, column 3: invalid \\escape"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_mistakes_in_json(text: str, sentence: str) -> None:
    with pytest.raises((ValueError, RecursionError)) as caught:
        json.loads(text)
    assert why_unreadable(caught.value) == sentence


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FileNotFoundError(2, "No such file or directory", "a"), "No such file or directory"),
        (
            OSError(98, "error while attempting to bind on address ('::1', 80, 0, 0): in use"),
            "::1:80: in use",
        ),
        (OSError("odd"), "odd"),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
            "is not UTF-8 text",
        ),
        (KeyError("state"), "state is missing"),
        (KeyError(), "a field is missing"),
        (TypeError("'int' object"), "a value has the wrong type"),
        (ValueError("one\n two"), "one two"),
        (ValueError(), "ValueError"),
    ],
)
def test_other_errors(error: Exception, sentence: str) -> None:
    assert why_unreadable(error) == sentence
