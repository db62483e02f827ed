from __future__ import annotations

from typing import Any

import pytest

from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import Claim
from optsched.formats.codec.volumes import Storage, parse_claim, parse_csi_node
from tests.formats.objects import CSI, csi_node, thing, volume

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
        ({"volumeName": "here"}, "Lost", "is lost: its volume no longer exists"),
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
    assert problem.startswith("its volume bad has invalid fields: spec.nodeAffinity.required")


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


# --- volumes that are there ----------------------------------------------------------------------

LOCAL = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": "kubernetes.io/no-provisioner"}
WISH = {
    "storageClassName": "local",
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "10Gi"}},
}


def offered(name: str, size: str = "10Gi", **more: Any) -> dict[str, Any]:
    meta = {key: more.pop(key) for key in ("labels", "deletionTimestamp") if key in more}
    phase = more.pop("phase", "Available")
    spec = {
        "storageClassName": "local",
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        **more,
    }
    made = thing("v1", "PersistentVolume", name, spec=spec, status={"phase": phase})
    made["metadata"].update(meta)
    return made


def choice(*volumes: dict[str, Any], **spec: Any) -> tuple[list[str], bool]:
    """Return the volumes that a claim may get, and whether a new one can be provisioned."""
    classes = {"local": thing("storage.k8s.io/v1", "StorageClass", "local", **LOCAL)}
    where = Storage({v["metadata"]["name"]: v for v in volumes}, classes)
    found = claim({**WISH, **spec}, "Pending", where)
    assert found.waits_for_consumer
    assert found.size_bytes == 10 * 2**30
    return [volume.name for volume in found.volumes], found.provisions


def test_volumes_that_do_come_smallest_first():
    volumes = [offered("big", "30Gi"), offered("b"), offered("a"), offered("small", "9Gi")]
    assert choice(*volumes) == (["a", "b", "big"], False)


@pytest.mark.parametrize(
    "more",
    [
        {"storageClassName": "other"},
        {"accessModes": ["ReadOnlyMany"]},
        {"volumeMode": "Block"},
        {"phase": "Released"},
        {"phase": "Pending"},
        {"claimRef": {"namespace": "ns", "name": "other"}},
        {"claimRef": {"namespace": "ns", "name": "c", "uid": "another"}},
        {"deletionTimestamp": "2025-06-15T15:00:00Z"},
    ],
    ids=str,
)
def test_a_volume_that_is_not_for_the_claim(more: Any):
    made = offered("a", **more)
    classes = {"local": thing("storage.k8s.io/v1", "StorageClass", "local", **LOCAL)}
    found = claim(WISH, "Pending", Storage({"a": made}, classes), uid="mine")
    assert found.volumes == ()


def test_a_selector_chooses_by_labels():
    volumes = [offered("a", labels={"disk": "ssd"}), offered("b", labels={"disk": "hdd"})]
    assert choice(*volumes, selector={"matchLabels": {"disk": "hdd"}}) == (["b"], False)


def test_a_volume_that_is_kept_for_the_claim_is_the_only_one():
    ref = {"namespace": "ns", "name": "c"}
    volumes = [offered("a"), offered("kept", "20Gi", claimRef=ref, phase="Bound")]
    assert choice(*volumes) == (["kept"], False)
    too_small = offered("kept", "1Gi", claimRef=ref)
    assert choice(offered("a"), too_small) == (["a"], False)


def test_who_has_a_node_gets_a_volume_made_there():
    made = {**LOCAL, "provisioner": "csi.example.com"}
    where = Storage(
        {"a": offered("a")}, {"local": thing("storage.k8s.io/v1", "StorageClass", "local", **made)}
    )
    marks = {"volume.kubernetes.io/selected-node": "n1"}
    found = claim(WISH, "Pending", where, annotations=marks)
    assert (found.selected_node, found.volumes, found.provisions) == ("n1", (), True)
    assert found.is_reachable("n1", {})
    assert not found.is_reachable("n2", {})


# --- drivers, zones and limits -------------------------------------------------------------------

ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


def with_volume(made: dict[str, Any]) -> Storage:
    return Storage({made["metadata"]["name"]: made}, {})


def test_a_volume_is_known_by_its_driver_and_handle():
    where = with_volume(volume("pv", handle="h"))
    assert claim({"volumeName": "pv"}, "Bound", where) == Claim("ns/c", driver=CSI, handle="h")


@pytest.mark.parametrize("csi", [None, {}, {"driver": CSI}, {"volumeHandle": "h"}])
def test_what_no_driver_knows_is_attached_by_none(csi: Any):
    where = with_volume(thing("v1", "PersistentVolume", "pv", spec={"csi": csi}))
    assert claim({"volumeName": "pv"}, "Bound", where).attachment is None


def test_a_volume_is_attached_for_those_who_have_it_whatever_is_wrong_with_the_claim():
    found = claim({"volumeName": "pv"}, "Pending", with_volume(volume("pv", {ZONE: "a"})))
    assert found.problem
    assert (found.attachment, found.zones) == ((CSI, "pv"), ())


def test_an_unbound_claim_counts_for_the_provisioner_of_its_class():
    where = storage(late={**LATE, "provisioner": CSI}, now={"provisioner": CSI})
    late = claim({"storageClassName": "late"}, "Pending", where)
    now = claim({"storageClassName": "now"}, "Pending", where)
    assert late == Claim("ns/c", waits_for_consumer=True, driver=CSI)
    assert now == Claim("ns/c", problem="is not bound", driver=CSI)
    assert late.attachment == now.attachment == (CSI, "claim ns/c")


@pytest.mark.parametrize(
    ("labels", "zones"),
    [
        ({ZONE: "a"}, ((ZONE, ("a",)),)),
        ({ZONE: "b__a__b"}, ((ZONE, ("a", "b")),)),
        ({ZONE: "a", OLD_ZONE: " b "}, ((OLD_ZONE, ("b",)), (ZONE, ("a",)))),
        ({ZONE: "a____b", "zone": "x"}, ()),
        ({ZONE: 7}, ()),
        (7, ()),
        (None, ()),
    ],
)
def test_zones_of_a_volume(labels: Any, zones: Any):
    where = with_volume(volume("pv", labels))
    assert claim({"volumeName": "pv"}, "Bound", where).zones == zones


def test_how_many_volumes_a_node_attaches():
    made = csi_node("n1", csi=3, b=0, c=None)
    made["spec"]["drivers"].append({"name": "d"})
    assert parse_csi_node(made) == ("n1", (("b", 0), (CSI, 3)), ())
    assert parse_csi_node(csi_node("n1")) == ("n1", (), ())


@pytest.mark.parametrize("count", ["many", "3", -1, 1.5, True])
def test_a_number_without_a_reading_lets_none_in_and_is_named(count: Any):
    name, limits, (error,) = parse_csi_node(csi_node("n1", csi=count, other=2))
    assert (name, limits) == ("n1", ((CSI, 0), ("other", 2)))
    assert error.path == "spec.drivers[0].allocatable.count"


def test_a_driver_without_a_name_is_named():
    made = thing("storage.k8s.io/v1", "CSINode", "n1", spec={"drivers": [{}, 7]})
    _, limits, errors = parse_csi_node(made)
    assert limits == ()
    assert {e.path for e in errors} >= {"spec.drivers[0].name", "spec.drivers[1]"}
