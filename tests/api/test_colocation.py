from __future__ import annotations

from optsched.api.colocation import ColocationCondition, MemoryQos, parse_colocation


def test_every_field_of_a_full_configuration():
    condition = {
        "type": "Available",
        "status": "True",
        "reason": "r",
        "message": "m",
        "observedGeneration": 2,
        "lastTransitionTime": "1970-01-01T00:00:01Z",
    }
    found, errors = parse_colocation(
        {
            "metadata": {"name": "c", "namespace": "ml"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "memoryQos": {"highRatio": 80}},
            "status": {"conditions": [condition]},
        }
    )
    assert errors == ()
    assert found is not None
    assert found.key == "ml/c"
    assert found.selector is not None
    assert found.selector.match_labels == {"a": "b"}
    assert found.memory == MemoryQos(80, 0, 0)
    assert found.conditions == (ColocationCondition("Available", "True", 2, 1000, "r", "m"),)


def test_nothing_written_and_something_wrong():
    bare, errors = parse_colocation({"metadata": {"name": "c"}})
    assert bare is not None
    assert (bare.selector, bare.memory, errors) == (None, None, ())
    _, errors = parse_colocation(
        {"metadata": {"name": "c"}, "spec": {"memoryQos": {"lowRatio": -1}}}
    )
    assert [str(error) for error in errors] == [
        "spec.memoryQos.lowRatio: -1 is out of range: write 0 to 100"
    ]
    assert parse_colocation({})[0] is None
