from __future__ import annotations

import pickle

from optsched.api.fields import FieldError, InvalidObject

ERRORS = (
    FieldError("spec.weight", 70000, "is out of range: write 1 to 65535"),
    FieldError("spec.capability[cpu]", "1 Gi", "is not a quantity"),
)


def test_an_invalid_object_reads_as_one_line_for_each_error():
    assert str(InvalidObject("Queue", "", "lab-a", ERRORS)).splitlines() == [
        "Queue lab-a: spec.weight: 70000 is out of range: write 1 to 65535",
        'Queue lab-a: spec.capability[cpu]: "1 Gi" is not a quantity',
    ]


def test_the_namespace_is_part_of_the_name():
    assert str(InvalidObject("PodGroup", "ml", "job", ERRORS[:1])).startswith("PodGroup ml/job: ")


def test_an_invalid_object_crosses_processes():
    error = pickle.loads(pickle.dumps(InvalidObject("Queue", "", "lab-a", ERRORS)))
    assert (error.kind, error.name, error.errors) == ("Queue", "lab-a", ERRORS)
