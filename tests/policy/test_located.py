from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from optsched.policy import located
from optsched.policy.diagnostic import Findings
from optsched.policy.located import MOST_DEPTH, MOST_VALUES, core_scalar, read_tree

if TYPE_CHECKING:
    from optsched.policy.located import Node


def plain(node: Node) -> Any:
    value = node.value
    if isinstance(value, tuple):
        return [plain(n) for n in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {name: plain(field.node) for name, field in value.items()}


def read(text: str) -> tuple[Any, list[str]]:
    findings = Findings()
    node = read_tree(text, "f", findings)
    found = [f"{p.line}:{p.column}: {p.path}: {p.message}" for p in findings.problems]
    return None if node is None else plain(node), found


@pytest.fixture(params=["C", "Python"], autouse=True)
def _either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test of this module with and without libyaml."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CBaseLoader")
        monkeypatch.setattr(located, "_LOADER", located._loader())


def test_every_value_has_its_place() -> None:
    node = read_tree("a:\n  - x\n  - {b: 'y'}\n", "f", Findings())
    assert node is not None
    items = node.value["a"].node  # type: ignore[index, call-overload]
    assert [(n.spot.line, n.spot.column, n.spot.path) for n in items.value] == [
        (2, 5, "a[0]"),
        (3, 5, "a[1]"),
    ]
    key, value = items.value[1].value["b"]
    assert (key.line, key.column, key.path, key.excerpt) == (3, 6, "a[1].b", "  - {b: 'y'}")
    assert (value.spot.column, value.value, value.text) == (9, "y", "y")


def test_columns_count_characters() -> None:
    findings = Findings()
    read_tree("größe: {你: 1, 你: 2}", "f", findings)
    assert [(p.line, p.column) for p in findings.problems] == [(1, 15)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(t, None) for t in ("", "~", "null", "Null", "NULL")],
        *[(t, True) for t in ("true", "True", "TRUE")],
        *[(t, False) for t in ("false", "False", "FALSE")],
        *[(t, t) for t in ("no", "No", "off", "y", "yes", "on", "tRue", "nUll")],
        *[("014", 14), ("0o14", 12), ("0xAf", 175), ("-7", -7), ("+7", 7), ("00", 0)],
        *[(t, t) for t in ("1_000", "1:30", "0b11", "0O14", "0o9", "0xg", "--1", "1,5")],
        *[("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("-1.5E-1", -0.15)],
        *[(t, t) for t in (".", "e3", "1e", "1.2.3", "1_0.5", "190:20:30.15", "+-1")],
        *[(".inf", math.inf), ("-.INF", -math.inf), ("inf", "inf"), ("nan", "nan")],
        *[(t, t) for t in ("2001-12-14", "<<", "=", "9" * 5000)],
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = core_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(core_scalar(".nan"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'no'", "no"),
        ('"10"', "10"),
        ("!!str 10", "10"),
        ("!!int 0x10", 16),
        ("!!float 1", 1),
        ("!!null ''", None),
        ("!!bool true", True),
        ("!!map {a: !!seq [1]}", {"a": [1]}),
        ("- |\n  1\n- >-\n  2\n", ["1\n", "2"]),
        ("a: &x [1, {b: 2}]\nc: *x\n", {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}),
        ("1: a\ntrue: b\n", {"1": "a", "true": "b"}),
        ("%YAML 1.2\n---\na: b\n...\n", {"a": "b"}),
        ("", None),
        ("# nothing\n", None),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_accepted(text: str, value: object) -> None:
    assert read(text) == (value, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "3:1: a: appears twice; first in line 1"),
        ("l: [{a: 1, 'a': 2}]", "1:12: l[0].a: appears twice; first in line 1"),
        ("a: 1\n---\nb: 2\n", "2:1: : one document is expected; another one begins here"),
        ("a:\n\tb: 1\n", "2:1: : a tab cannot indent in YAML; use spaces"),
        ("a: !!int x", "1:4: a: 'x' does not match its tag !!int"),
        ("a: !!int true", "1:4: a: 'true' does not match its tag !!int"),
        ("a: !!bool 1", "1:4: a: '1' does not match its tag !!bool"),
        ("a: !secret x", "1:4: a: the tag !secret is not accepted here"),
        ("a: !!set {x, y}", "1:4: a: the tag !!set is not accepted here"),
        ("a: !!python/name:os.system ''", "1:4: a: the tag !!python/name:os.system is not"),
        ("<<: {a: 1}", "1:1: <<: merge keys are not part of YAML 1.2; repeat the fields"),
        ("[1]: a", "1:1: : the name of a field must be a word, not a list or mapping"),
        ("a: &x [*x]", "1:4: a[0]: aliases nest deeper than"),
        ("a: *x", "1:4: : not YAML: found undefined alias"),
        ("a: [1", ": : not YAML: "),
        ("a: 'x", "1:6: : not YAML: found unexpected end of stream"),
        ("a: b: c", "1:5: : not YAML: mapping values are not allowed"),
        ("a: x\ny", ": : not YAML: "),
        ("a: \x07", "1:4: : the character U+0007 is not allowed in YAML"),
        ("a: 1\nb: \ud800", "2:4: : the character U+D800 is not allowed in YAML"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "1:1: : nests deeper than 40 levels"),
        ("[" * 200_000, ": : nests deeper than 40 levels"),
        ("- " * 200_000, ": : nests deeper than 40 levels"),
        ("[" + "1," * MOST_VALUES + "]", f"the file has more than {MOST_VALUES} values"),
    ],
)
def test_refused(text: str, problem: str) -> None:
    _, found = read(text)
    assert len(found) == 1
    assert problem in found[0]


def test_aliases_do_not_multiply_without_end() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    _, found = read("\n".join(lines))
    assert [f.split(": ")[-1] for f in found] == [f"the file has more than {MOST_VALUES} values"]


def test_aliases_do_not_pile_up_where_values_are_skipped() -> None:
    lines = ["a: 1", "a: &x0 [1]"] + [f"a: &x{i} [*x{i - 1}]" for i in range(1, 3000)]
    _, found = read("\n".join([*lines, "b: *x2999"]))
    assert sum("aliases nest deeper than" in f for f in found) == 1


# Names stay short, because YAML limits a key of a flow mapping to 1024 characters.
LETTERS = st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff")
WORDS = st.text(LETTERS, max_size=20)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@example({"<": "<", "a b": [None, -0.0, "\n\t"]})
def test_agrees_with_json(value: object) -> None:
    if "<<" in json.dumps(value):
        return
    assert read(json.dumps(value, ensure_ascii=False)) == (value, [])


@given(st.text() | st.text("ab: -[]{}&*!|>'\"%#?,\n\t<0.~"))
@example("&a [*a]")
@example("!<tag:yaml.org,2002:int> 1")
@example("? [a]\n: b")
@example("%TAG ! x\n---\n!a b")
def test_any_text_is_read_or_refused(text: str) -> None:
    findings = Findings()
    node = read_tree(text, "f", findings)
    assert node is not None or findings.has_errors
    lines = len(re.split("\r\n|[\n\r\x85\u2028\u2029]", text))
    assert all(0 < p.line <= lines and p.column > 0 for p in findings.problems)
