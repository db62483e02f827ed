from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.units.input_errors import FieldError
from optsched.units.quantity import (
    MAX_BASE,
    QuantityError,
    Unit,
    format_quantity,
    format_resource_list,
    parse_amount,
    parse_resource_list,
    unit_of,
)

NAMES = ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "nvidia.com/gpu"]


@pytest.mark.parametrize(
    ("resource", "unit"),
    [
        ("cpu", Unit.MILLI_CPU),
        ("requests.cpu", Unit.MILLI_CPU),
        ("limits.cpu", Unit.MILLI_CPU),
        ("memory", Unit.BYTE),
        ("limits.memory", Unit.BYTE),
        ("ephemeral-storage", Unit.BYTE),
        ("storage", Unit.BYTE),
        ("requests.storage", Unit.BYTE),
        ("hugepages-1Gi", Unit.BYTE),
        ("gold.storageclass.storage.k8s.io/requests.storage", Unit.BYTE),
        ("pods", Unit.PIECE),
        ("nvidia.com/gpu", Unit.PIECE),
        ("requests.nvidia.com/gpu", Unit.PIECE),
        ("volcano.sh/vgpu-memory", Unit.PIECE),
    ],
)
def test_each_resource_has_one_unit(resource: str, unit: Unit):
    assert unit_of(resource) is unit


@pytest.mark.parametrize(
    ("resource", "value", "base"),
    [
        ("cpu", "1500m", 1500),
        ("cpu", "0.0001", 1),
        ("cpu", 2, 2000),
        ("cpu", 0.1, 100),
        ("memory", "1.5Gi", 1610612736),
        ("memory", "100m", 1),
        ("memory", "1e3", 1000),
        ("pods", "110", 110),
        ("nvidia.com/gpu", "500m", 1),
        ("memory", str(MAX_BASE), MAX_BASE),
    ],
)
def test_amounts_are_base_units_rounded_up(resource: str, value: object, base: int):
    assert parse_amount(resource, value) == base


def test_a_cached_one_does_not_answer_for_true():
    assert parse_amount("nvidia.com/gpu", 1) == 1
    with pytest.raises(QuantityError):
        parse_amount("nvidia.com/gpu", True)


@pytest.mark.parametrize(
    ("resource", "value", "message"),
    [
        ("cpu", "-1", '"-1" is negative: write an amount of zero or more'),
        (
            "memory",
            "8Ei",
            '"8Ei" is above the largest amount that can be counted, 9223372036854775807 bytes',
        ),
        (
            "cpu",
            "9223372036854776",
            '"9223372036854776" is above the largest amount that can be counted, '
            "9223372036854775807 milli-CPU",
        ),
    ],
)
def test_amounts_out_of_range_say_which_end(resource: str, value: object, message: str):
    with pytest.raises(QuantityError) as caught:
        parse_amount(resource, value)
    assert str(caught.value) == message


def test_a_list_keeps_the_good_and_reports_every_bad_entry():
    amounts, errors = parse_resource_list(
        {"cpu": "16", "memory": "64 Gi", "pods": None, "nvidia.com/gpu": 4, 7: "1"}, "spec.deserved"
    )
    assert amounts == {"cpu": 16000, "nvidia.com/gpu": 4}
    assert [error.path for error in errors] == [
        "spec.deserved[memory]",
        "spec.deserved[pods]",
        "spec.deserved[7]",
    ]
    assert str(errors[0]).startswith('spec.deserved[memory]: "64 Gi" is not a quantity: ')
    assert str(errors[1]).startswith("spec.deserved[pods]: null is not a quantity: ")


def test_no_list_is_an_empty_list():
    assert parse_resource_list(None, "status.allocated") == ({}, [])


@pytest.mark.parametrize("obj", ["cpu: 1", ["cpu"], 3])
def test_what_is_no_list_is_one_error(obj: object):
    amounts, errors = parse_resource_list(obj, "spec.capability")
    assert amounts == {}
    assert [(error.path, error.value) for error in errors] == [("spec.capability", obj)]


def test_a_long_value_is_cut_in_the_message():
    error = FieldError("spec", "x" * 1000, "is too long")
    assert len(str(error)) < 100


@pytest.mark.parametrize(
    ("base", "resource", "text"),
    [
        (1500, "cpu", "1500m"),
        (2000, "cpu", "2"),
        (0, "cpu", "0"),
        (-500, "cpu", "-500m"),
        (64 * 2**30, "memory", "64Gi"),
        (1536 * 2**20, "memory", "1536Mi"),
        (1000, "memory", "1000"),
        (0, "memory", "0"),
        (2**60, "hugepages-2Mi", "1Ei"),
        (-2048, "memory", "-2Ki"),
        (1024, "pods", "1024"),
        (8, "nvidia.com/gpu", "8"),
    ],
)
def test_amounts_print_short(base: int, resource: str, text: str):
    assert format_quantity(base, resource) == text


@given(st.integers(min_value=0, max_value=MAX_BASE), st.sampled_from(NAMES))
def test_printing_and_parsing_an_amount_is_a_round_trip(base: int, resource: str):
    assert parse_amount(resource, format_quantity(base, resource)) == base


def test_a_printed_list_is_in_order():
    amounts = {"pods": 9, "cpu": 32000, "memory": 108 * 2**30}
    assert list(format_resource_list(amounts).items()) == [
        ("cpu", "32"),
        ("memory", "108Gi"),
        ("pods", "9"),
    ]
