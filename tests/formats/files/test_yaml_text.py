from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.formats.files.yaml_text import (
    Document,
    TextError,
    line_of,
    read_json,
    read_yaml,
    scalar,
    write_yaml,
)


def values(text: str) -> list[Any]:
    found = list(read_yaml(text))
    assert not [e for e in found if isinstance(e, TextError)]
    return [d.value for d in found if isinstance(d, Document)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("yes", True),
        ("Off", False),
        ("no", False),
        ("y", "y"),
        ("N", "N"),
        ("10", 10),
        ("-7", -7),
        ("+7", 7),
        ("010", 8),
        ("08", 8.0),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-1.5E-1", -0.15),
        (".inf", float("inf")),
        ("1.5Gi", "1.5Gi"),
        ("500m", "500m"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("1.2.3.4", "1.2.3.4"),
        ("-", "-"),
        ("_1", "_1"),
        ("None", "None"),
        ("١", "١"),
    ],
)
def test_plain_scalars_mean_what_kubectl_reads(text: str, value: Any):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_what_is_quoted_or_tagged_is_what_it_says():
    text = "[ '1', \"yes\", !!str 5, !!int '5', !mine 3 ]"
    assert values(text) == [["1", "yes", "5", 5, "3"]]
    assert values("a: |\n  1\n  ---\nb: >\n  x\n  y\n") == [{"a": "1\n---\n", "b": "x y\n"}]


def test_keys_are_texts():
    assert values("{1: a, true: b, null: c}") == [{"1": "a", "true": "b", "null": "c"}]


def test_documents_know_their_lines():
    text = "# first\n---\na: 1\n---\n# nothing\n--- # third\n\nb: 2\n...\n---\nc: 3"
    found = list(read_yaml(text))
    assert [(d.value, d.line) for d in found if isinstance(d, Document)] == [
        ({"a": 1}, 3),
        ({"b": 2}, 8),
        ({"c": 3}, 11),
    ]
    assert found[-1] == Document({"c": 3}, 11, (), len(text))


def test_items_know_their_lines():
    found = list(read_yaml("kind: List\nitems:\n- {a: 1}\n\n-\n  b: {items: [1]}\n"))
    assert isinstance(found[0], Document)
    assert found[0].item_lines == (3, 6)


def test_a_directive_is_no_document():
    assert values("%YAML 1.1\n---\na: 1\n") == [{"a": 1}]
    assert values("") == values("# only words\n") == values("---\n---\n") == []


def test_anchors_and_merges():
    text = "base: &b {x: 1, y: 1}\nmore: &m {y: 2}\nown: {<<: *b, x: 3}\nboth: {<<: [*m, *b]}\n"
    assert values(text)[0]["own"] == {"x": 3, "y": 1}
    assert values(text)[0]["both"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb: [1,\nc: }\n", 3, 4, "did not find expected node content"),
        ("a: 1\n\tb: 2\n", 2, 1, "a tab cannot indent: write spaces"),
        ("a:\n\tb: 2\n", 2, 1, "a tab cannot indent: write spaces"),
        ("a: b: c", 1, 5, "mapping values are not allowed in this context"),
        ("a: &x [*x]", 1, 8, "the alias x refers to an anchor that is missing or incomplete"),
        ("a: *y", 1, 4, "the alias y refers to an anchor that is missing or incomplete"),
        ("? [1]\n: 2", 1, 3, "a key must be a string"),
        ("a: {<<: 3}", 1, 5, "<< needs a mapping or a list of mappings"),
    ],
)
def test_a_broken_document_says_where_and_the_others_are_read(
    text: str, line: int, column: int, message: str
):
    found = list(read_yaml(f"first: 1\n---\n{text}\n---\nlast: 1\n"))
    assert [d.value for d in found if isinstance(d, Document)] == [{"first": 1}, {"last": 1}]
    error = found[1]
    assert isinstance(error, TextError)
    assert (error.line, error.column) == (line + 2, column)
    assert error.message.startswith("is not YAML: ")
    assert error.message.endswith(message)


@pytest.mark.parametrize("text", ["a: \x01", "a: " + "[" * 5000, "{a: " * 3000])
def test_what_no_parser_takes_is_told(text: str):
    found = list(read_yaml(f"{text}\n---\nlast: 1\n"))
    assert isinstance(found[0], TextError)
    assert isinstance(found[1], Document)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("\0", 1, 1), ("é: 1\nb: 'x\0y'\n", 2, 6), ("a: 1\n---\nb: 2\nc: \x07\n", 4, 4)],
)
def test_a_character_that_yaml_forbids_has_its_place(text: str, line: int, column: int):
    [error] = [found for found in read_yaml(text) if isinstance(found, TextError)]
    assert (error.line, error.column) == (line, column)
    assert error.message.endswith("control characters are not allowed")


def test_a_key_that_comes_twice_is_remarked():
    found = list(read_yaml("a: 1\nb: {c: 1, c: 2}\n"))
    assert found[0] == TextError(2, 11, "the key c occurs twice: write it once")
    assert isinstance(found[1], Document)
    assert found[1].value == {"a": 1, "b": {"c": 2}}


def test_json():
    assert list(read_json('{"a": [1, 0.5]}')) == [Document({"a": [1, 0.5]}, 1, (), 15)]
    assert list(read_json('{"a": 1,\n  b}')) == [
        TextError(2, 3, "is not JSON: a name in double quotes is expected")
    ]
    deep = list(read_json("[" * 100_000))
    assert isinstance(deep[0], TextError)


PLACES = """\
# two documents
a: 1
---
spec:
  tasks:
    - name: x
    - {name: y,
       size: 3}
  capability:
    nvidia.com/gpu: 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 4),
        ("spec", 4),
        ("spec.tasks", 5),
        ("spec.tasks[0].name", 6),
        ("spec.tasks[1].size", 8),
        ("spec.capability[nvidia.com/gpu]", 10),
        ("spec.tasks[7].name", 5),
        ("spec.queue", 4),
        ("spec.tasks[0].name.deeper", 6),
    ],
)
def test_a_field_has_a_line_and_one_that_is_missing_that_of_what_it_is_in(path: str, line: int):
    first, second = read_yaml(PLACES)
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert line_of(PLACES, first, "a") == 2
    assert line_of(PLACES, second, path) == line


def test_a_broken_text_has_the_lines_of_its_documents():
    text = "{\n---\na: {b: 1}\n"
    (document,) = (each for each in read_yaml(text) if isinstance(each, Document))
    assert line_of(text, document, "a.b") == document.line == 3


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(plain | st.sampled_from(["y", "off", "010", "1e3", "0o7", "~", ".inf", "1_0", "2026-01-01"]))
def test_what_is_written_is_read_again(value: Any):
    assert values(f"--- \n{write_yaml({'a': value})}") == [{"a": value}]


ascii_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text('aZ 0:-"{'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab:#"), inner),
    max_leaves=10,
)


@given(ascii_plain)
def test_json_is_yaml(value: Any):
    assert values(json.dumps({"a": value})) == [{"a": value}]


def test_aliases_that_multiply_are_refused() -> None:
    """Nine lists of nine lists of nine …: 31 billion values in one kilobyte."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 11)]
    text = "\n".join(lines)
    (error,) = read_yaml(text)
    assert isinstance(error, TextError)
    most = 100_000 + 20 * len(text)
    assert error.message == f"is not YAML: aliases expand to more than {most} values"
    (document,) = read_yaml("\n".join(lines[:4]))
    assert isinstance(document, Document)
