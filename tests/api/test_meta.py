from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.api.meta import ObjectMeta, OwnerReference, parse_meta

if TYPE_CHECKING:
    from optsched.units import FieldError

FULL = {
    "name": "job-worker-0",
    "namespace": "ml",
    "uid": "u-1",
    "resourceVersion": "42",
    "labels": {"volcano.sh/job-name": "job"},
    "annotations": {"scheduling.k8s.io/group-name": "job-1"},
    "creationTimestamp": "2026-11-21T05:38:00Z",
    "deletionTimestamp": "2026-11-21T05:39:00Z",
    "ownerReferences": [
        {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u-2"},
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "name": "job",
            "uid": "u-3",
            "controller": True,
        },
    ],
}


def parse(meta: object) -> tuple[ObjectMeta | None, list[FieldError]]:
    errors: list[FieldError] = []
    return parse_meta({"metadata": meta}, errors), errors


def test_everything_a_scheduler_looks_at_is_read():
    meta, errors = parse(FULL)
    assert not errors
    assert meta is not None
    assert meta.key == "ml/job-worker-0"
    assert (meta.uid, meta.resource_version) == ("u-1", "42")
    assert meta.creation_ms == 1795239480000
    assert meta.deletion_ms == 1795239540000
    assert meta.controller == OwnerReference("batch.volcano.sh/v1alpha1", "Job", "job", "u-3", True)
    assert [owner.kind for owner in meta.owners] == ["Node", "Job"]


@pytest.mark.parametrize("absent", [{}, dict.fromkeys(FULL.keys() - {"name"})])
def test_a_name_is_enough_and_null_is_absent(absent: dict[str, None]):
    assert parse({"name": "a", **absent}) == (ObjectMeta(name="a"), [])


def test_a_key_without_a_namespace_is_the_name():
    assert ObjectMeta(name="a").key == "a"
    assert ObjectMeta(name="a").controller is None


MISSING = "metadata.name is missing: every object needs a name"


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        (None, MISSING),
        ([], "metadata: [] is not a mapping of field names to values"),
        ("a", 'metadata: "a" is not a mapping of field names to values'),
        ({}, MISSING),
        ({"name": ""}, 'metadata.name: "" is missing: every object needs a name'),
        ({"name": 3}, "metadata.name: 3 is not a string: write it in quotes"),
    ],
)
def test_an_object_without_a_name_is_none(meta: object, sentence: str):
    found, errors = parse(meta)
    assert found is None
    assert [str(error) for error in errors] == [sentence]


@pytest.mark.parametrize("obj", [None, [], "Queue"])
def test_what_is_no_object_is_none(obj: object):
    errors: list[FieldError] = []
    assert parse_meta(obj, errors) is None
    assert len(errors) == 1


def test_a_bad_part_costs_only_itself():
    meta, errors = parse(
        {
            "name": "a",
            "namespace": 5,
            "labels": ["x"],
            "annotations": {"volcano.sh/preemptable": True, "kept": "yes", "empty": None},
            "creationTimestamp": "yesterday",
        }
    )
    assert meta == ObjectMeta(name="a", annotations={"kept": "yes", "empty": ""})
    assert [error.path for error in errors] == [
        "metadata.namespace",
        "metadata.labels",
        "metadata.annotations[volcano.sh/preemptable]",
        "metadata.creationTimestamp",
    ]
    assert str(errors[2]).endswith("true is not a string: write it in quotes")
