from __future__ import annotations

from typing import Any

import pytest

from optsched.formats.codec.pod_limits import PreemptionPolicy, parse_priority_class


def test_a_class_is_a_value_with_a_name():
    found, errors = parse_priority_class(
        {
            "metadata": {"name": "high"},
            "value": 1000,
            "globalDefault": True,
            "preemptionPolicy": "Never",
            "description": "for deadlines",
        }
    )
    assert errors == ()
    assert found is not None
    assert (found.name, found.value, found.global_default) == ("high", 1000, True)
    assert found.preemption_policy is PreemptionPolicy.NEVER
    assert found.description == "for deadlines"


def test_a_class_preempts_unless_it_says_otherwise():
    found, errors = parse_priority_class({"metadata": {"name": "low"}, "value": -5})
    assert errors == ()
    assert found is not None
    assert found.value == -5
    assert not found.global_default
    assert found.preemption_policy is PreemptionPolicy.LOWER


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({}, "value"),
        ({"value": "high"}, "value"),
        ({"value": 2**31}, "value"),
        ({"value": 1, "globalDefault": "yes"}, "globalDefault"),
        ({"value": 1, "preemptionPolicy": "Always"}, "preemptionPolicy"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], path: str):
    found, errors = parse_priority_class({"metadata": {"name": "a"}, **fields})
    assert found is not None
    assert found.errors == errors
    assert [error.path for error in errors] == [path]


def test_without_a_name_there_is_no_class():
    assert parse_priority_class({"value": 1})[0] is None
