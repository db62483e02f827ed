from __future__ import annotations

from optsched.api.hypernode import parse_nodeshard


def test_every_field_of_a_full_shard():
    status = {
        "nodesInUse": ["a"],
        "nodesToAdd": ["b"],
        "nodesToRemove": ["c"],
        "lastUpdateTime": "1970-01-01T00:00:01Z",
    }
    obj = {"metadata": {"name": "s"}, "spec": {"nodesDesired": ["a", "b"]}, "status": status}
    found, errors = parse_nodeshard(obj)
    assert found is not None
    assert errors == found.errors == ()
    assert (found.name, found.wanted, found.in_use) == ("s", ("a", "b"), ("a",))
    assert (found.to_add, found.to_remove, found.updated_ms) == (("b",), ("c",), 1000)


def test_what_has_no_reading_is_named_and_the_rest_is_read():
    obj = {"metadata": {"name": "s"}, "spec": {"nodesDesired": ["a", 7]}}
    found, errors = parse_nodeshard(obj)
    assert found is not None
    assert found.wanted == ("a",)
    assert [str(e) for e in errors] == [
        "spec.nodesDesired[1]: 7 is not a string: write it in quotes"
    ]
    assert parse_nodeshard({"metadata": {"name": "s"}, "spec": {}})[1] != ()
    assert parse_nodeshard({"spec": {}})[0] is None
