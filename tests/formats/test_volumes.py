from __future__ import annotations

from typing import Any

import pytest

from optsched.domain.cluster import Claim
from optsched.domain.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.formats.volumes import Storage, parse_claim
from tests.formats.objects import thing

ZONE_A = NodeSelector((NodeTerm((Requirement("zone", Operator.IN, ("a",)),)),))
IN_ZONE_A = {"key": "zone", "operator": "In", "values": ["a"]}


def storage(**classes: Any) -> Storage:
    required = {"nodeSelectorTerms": [{"matchExpressions": [IN_ZONE_A]}]}
    bad = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Is"}]}]}
    volumes = {
        "here": {"nodeAffinity": {"required": required}},
        "all": {},
        "bad": {"nodeAffinity": {"required": bad}},
    }
    return Storage(
        {name: thing("v1", "PersistentVolume", name, spec=spec) for name, spec in volumes.items()},
        {
            name: thing("storage.k8s.io/v1", "StorageClass", name, **each)
            for name, each in classes.items()
        },
    )


def claim(spec: Any, phase: str = "", where: Storage | None = None, **meta: Any) -> Claim:
    made = thing("v1", "PersistentVolumeClaim", "c", "ns", spec=spec, status={"phase": phase})
    made["metadata"].update(meta)
    found, errors = parse_claim(made, where or storage())
    assert found is not None
    assert errors == ()
    return found


@pytest.mark.parametrize("phase", ["Bound", ""])
def test_a_bound_claim_is_where_its_volume_is(phase: str):
    assert claim({"volumeName": "here"}, phase) == Claim("ns/c", nodes=ZONE_A)
    assert claim({"volumeName": "all"}, phase) == Claim("ns/c")


def test_a_volume_is_usable_once_binding_is_complete():
    annotations = {"pv.kubernetes.io/bind-completed": "yes"}
    assert claim({"volumeName": "here"}, "Pending", annotations=annotations).problem == ""
    assert claim({"volumeName": "here"}, "Pending").problem == (
        "is not bound: it waits for volume here"
    )


@pytest.mark.parametrize(
    ("spec", "phase", "problem"),
    [
        ({"volumeName": "gone"}, "Bound", "its volume gone does not exist"),
        ({"volumeName": "here"}, "Lost", "is lost: its volume is gone"),
        ({}, "Pending", "is not bound"),
        ({"storageClassName": ""}, "Pending", "is not bound"),
        ({"storageClassName": "fast"}, "Pending", "is not bound"),
        (
            {"storageClassName": "none"},
            "Pending",
            "is not bound, and its storage class none does not exist",
        ),
    ],
)
def test_why_a_claim_cannot_be_used(spec: Any, phase: str, problem: str):
    where = storage(fast={"volumeBindingMode": "Immediate"})
    assert claim(spec, phase, where) == Claim("ns/c", problem=problem)


def test_a_volume_that_cannot_be_read_makes_its_claim_unusable():
    problem = claim({"volumeName": "bad"}, "Bound").problem
    assert problem.startswith("its volume bad has no reading: spec.nodeAffinity.required")


LATE = {"volumeBindingMode": "WaitForFirstConsumer"}


def test_a_claim_that_waits_for_its_first_consumer():
    assert claim({"storageClassName": "late"}, "Pending", storage(late=LATE)) == Claim(
        "ns/c", waits_for_consumer=True
    )


def test_allowed_topologies_limit_where_it_may_be_made():
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    where = storage(late={**LATE, "allowedTopologies": topologies})
    assert claim({"storageClassName": "late"}, "Pending", where) == Claim(
        "ns/c", nodes=ZONE_A, waits_for_consumer=True
    )


def test_the_default_class_counts_only_where_no_class_is_named():
    where = storage(late=LATE)
    marks = {"storageclass.kubernetes.io/is-default-class": "true"}
    where.classes["late"]["metadata"]["annotations"] = marks
    assert claim({}, "Pending", where).waits_for_consumer
    assert claim({"storageClassName": ""}, "Pending", where).problem == "is not bound"


def test_a_claim_with_bad_fields_is_told():
    found, errors = parse_claim(thing("v1", "PersistentVolumeClaim", "c", "ns", spec=3), storage())
    assert found is not None
    assert [e.path for e in errors] == ["spec"]
