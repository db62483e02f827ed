from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optsched.api import kinds
from optsched.api.crds import schema_of, unknown_fields
from optsched.api.fields import Fields, Schema, non_negative, record, text
from optsched.api.podgroup import parse_podgroup
from optsched.api.queue import parse_queue

if TYPE_CHECKING:
    from optsched.units import FieldError

patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("1")
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3) | st.integers(), inner)
    ),
    max_leaves=5,
)


def near(schema: Schema) -> st.SearchStrategy[Any]:
    """Return a strategy of values that mostly follow a schema, so that they reach deep fields."""
    if "properties" in schema:
        fields = {name: near(inner) for name, inner in schema["properties"].items()}
        return st.fixed_dictionaries({}, optional=fields) | SCALARS
    if "additionalProperties" in schema:
        keys = st.sampled_from(["cpu", "memory", "x"])
        return st.dictionaries(keys, near(schema["additionalProperties"])) | SCALARS
    if "items" in schema:
        return st.lists(near(schema["items"]), max_size=2) | SCALARS
    return st.sampled_from(schema.get("enum", ["a", ""])) | ANYTHING


@patiently
@given(near(schema_of(kinds.QUEUE)))
def test_any_queue_is_read_or_complained_about(obj: Any):
    named = obj | {"metadata": {"name": "a"}} if isinstance(obj, dict) else obj
    found, errors = parse_queue(named)
    assert found is not None or errors
    assert all(str(error).startswith(error.path) for error in errors)
    assert all(error.message for error in unknown_fields(kinds.QUEUE, named))


@patiently
@given(near(schema_of(kinds.POD_GROUP)), ANYTHING)
def test_any_podgroup_is_read_or_complained_about(obj: Any, metadata: Any):
    odd = obj | {"metadata": metadata} if isinstance(obj, dict) else obj
    found, errors = parse_podgroup(odd)
    assert found is not None or errors
    assert all(str(error).startswith(error.path) for error in errors)
    assert all(error.message for error in unknown_fields(kinds.POD_GROUP, odd))


SMALL = record("", size=non_negative("", maximum=9), mode=text("", enum=["a", "b"], default="a"))


def fields(obj: Any) -> tuple[Fields, list[FieldError]]:
    errors: list[FieldError] = []
    return Fields(obj, SMALL, "spec", errors), errors


def test_absence_and_null_mean_the_default():
    for obj in (None, {}, {"size": None, "mode": None}):
        found, errors = fields(obj)
        assert (found.integer("size"), found.optional_integer("size")) == (0, None)
        assert found.text("mode") == "a"
        assert errors == []


def test_a_value_that_does_not_fit_is_named_and_read_as_the_default():
    found, errors = fields({"size": 10, "mode": "c"})
    assert (found.integer("size"), found.text("mode")) == (0, "a")
    assert [str(error) for error in errors] == [
        "spec.size: 10 is out of range: write 0 to 9",
        'spec.mode: "c" is not one of a, b',
    ]


@pytest.mark.parametrize("read", ["raw", "text", "integer", "boolean", "record", "amounts"])
def test_reading_a_field_that_the_schema_does_not_know_is_our_mistake(read: str):
    with pytest.raises(KeyError):
        getattr(fields({})[0], read)("sizes")
