from __future__ import annotations

import json
import math
import pickle
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.units.quantity import (
    MAX_BASE,
    Quantity,
    QuantityError,
    parse_quantity,
    parse_quantity_field,
)

GOLDEN = Path(__file__).with_name("quantity_golden.tsv")


class Row(NamedTuple):
    text: str
    answer: str
    canonical: str
    nanos: str
    value: str
    milli: str
    note: str


def golden(*answers: str) -> list[Row]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()[1:]
    rows = (Row(*line.split("\t")) for line in lines)
    return [row._replace(text=json.loads(row.text)) for row in rows if row.answer in answers]


def test_the_table_is_worth_comparing_with():
    assert len(golden("quantity")) >= 400
    assert len(golden("reject")) >= 80
    assert any("milli:wraps" in row.note for row in golden("quantity"))


@pytest.mark.parametrize("row", golden("reject"), ids=repr)
def test_what_go_rejects_is_rejected(row: Row):
    with pytest.raises(QuantityError):
        parse_quantity(row.text)


@pytest.mark.parametrize("row", golden("quantity"), ids=lambda row: row.text)
def test_what_go_accepts_has_the_same_amount(row: Row):
    ours = parse_quantity(row.text)
    if "capped" in row.note:
        assert abs(ours.value()) > MAX_BASE
        return
    assert ours.nanos == int(row.nanos)
    if "canonical:" not in row.note:
        assert parse_quantity(row.canonical) == ours
    if "value:" not in row.note:
        assert ours.value() == int(row.value)
    if "milli:" not in row.note:
        assert ours.milli() == int(row.milli)


@pytest.mark.parametrize("row", golden("quantity"), ids=lambda row: row.text)
def test_where_go_leaves_the_exact_amount_we_do_not(row: Row):
    exact = Fraction(parse_quantity(row.text).nanos, 10**9)
    assert parse_quantity(row.text).value() == away_from_zero(exact)
    assert parse_quantity(row.text).milli() == away_from_zero(exact * 1000)
    if "value:wraps" in row.note:
        assert parse_quantity(row.text).value() != int(row.value)


def away_from_zero(number: Fraction) -> int:
    return math.ceil(number) if number >= 0 else math.floor(number)


amounts = st.integers(min_value=-(10**40), max_value=10**40).map(Quantity)


@given(amounts)
def test_printing_and_parsing_is_a_round_trip(quantity: Quantity):
    assert parse_quantity(str(quantity)) == quantity


plain = st.from_regex(r"[+-]?[0-9]{1,25}(\.[0-9]{0,9})?", fullmatch=True)


@given(plain, plain)
def test_order_and_arithmetic_agree_with_fractions(a: str, b: str):
    ours = parse_quantity(a), parse_quantity(b)
    exact = Fraction(a.removesuffix(".")), Fraction(b.removesuffix("."))
    assert (ours[0] < ours[1]) == (exact[0] < exact[1])
    assert (ours[0] == ours[1]) == (exact[0] == exact[1])
    assert Fraction((ours[0] + ours[1]).nanos, 10**9) == exact[0] + exact[1]
    assert Fraction((ours[0] - ours[1]).nanos, 10**9) == exact[0] - exact[1]


@given(st.text(alphabet="0123456789.+-eEinumkKMGTP \n٣", max_size=12))
def test_any_text_is_a_quantity_or_a_quantity_error(text: str):
    with suppress(QuantityError):
        assert parse_quantity(str(parse_quantity(text))) == parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "nanos"),
    [(2, 2 * 10**9), (0, 0), (0.5, 5 * 10**8), (1e16, 10**25), (1e-7, 100), ("2Ki", 2048 * 10**9)],
)
def test_json_numbers_count_as_their_decimal_text(value: object, nanos: int):
    assert parse_quantity_field(value).nanos == nanos


@pytest.mark.parametrize(
    "value", [None, True, False, [], {}, math.nan, math.inf, b"1", 10**500, object]
)
def test_other_values_are_refused(value: object):
    with pytest.raises(QuantityError):
        parse_quantity_field(value)


@pytest.mark.parametrize("text", ["1e401", "1e999999999999", "9" * 257, "0" * 257])
def test_numbers_no_cluster_has_are_refused_at_once(text: str):
    with pytest.raises(QuantityError):
        parse_quantity(text)


def test_tiny_amounts_are_one_nano_however_tiny():
    assert parse_quantity("1e-999999999999") == Quantity(1)
    assert parse_quantity("-1e-999999999999") == Quantity(-1)
    assert parse_quantity("0e999999999999") == Quantity(0)


def test_the_error_names_the_text_and_what_would_do():
    with pytest.raises(QuantityError) as caught:
        parse_quantity("1 Gi")
    assert str(caught.value) == (
        '"1 Gi" is not a quantity: '
        "write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
