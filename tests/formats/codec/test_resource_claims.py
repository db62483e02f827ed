"""ResourceClaims, DeviceClasses and ResourceSlices: decoded fields, and effects on pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optsched.cluster.dra_devices import DeviceId, DeviceNeed, Version, is_class_quota
from optsched.formats.codec.resource_claims import (
    ClaimBook,
    collect_devices,
    parse_device_claim,
    parse_device_class,
    parse_slice,
)
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from tests.formats.objects import (
    DRIVER,
    allocated,
    claiming,
    device_claim,
    device_class,
    device_slice,
    node,
    pod,
    thing,
)


def read(obj: dict[str, Any]) -> Any:
    claim, errors = parse_device_claim(obj)
    assert claim is not None
    assert not errors
    return claim


# --- claims --------------------------------------------------------------------------------------


def test_what_a_claim_asks_for_and_counts_for() -> None:
    more = {
        "selectors": [{"cel": {"expression": "true"}}],
        "capacity": {"requests": {"memory": "10Gi"}},
    }
    (need,) = read(device_claim("c", 2, exactly=more)).needs
    whole = f"deviceclass/{DRIVER}"
    assert dict(need.queue_amounts) == {whole: 2, f"memory.{whole}": 20 * 2**30}
    assert (need.name, need.device_class, need.number) == ("gpu", DRIVER, 2)
    assert need.selectors == ("true",)
    assert all(is_class_quota(name) for name, _ in need.queue_amounts)
    assert not is_class_quota("example.com/deviceclass")


def test_alternatives_constraints_and_capacity_of_a_claim() -> None:
    claim = device_claim("c")
    first = {"name": "big", "deviceClassName": "large", "count": 2}
    other = {"name": "small", "deviceClassName": "any", "allocationMode": "All"}
    claim["spec"]["devices"] = {
        "requests": [
            {"name": "gpu", "firstAvailable": [first, other]},
            {
                "name": "nic",
                "exactly": {"deviceClassName": "n", "capacity": {"requests": {"m": 1500}}},
            },
        ],
        "constraints": [
            {"matchAttribute": "d/numa"},
            {"distinctAttribute": "d/slot", "requests": ["gpu/big", "nic"]},
        ],
    }
    found = read(claim)
    gpu, nic = found.needs
    assert gpu.alternatives == (
        DeviceNeed("gpu/big", "large", 2),
        DeviceNeed("gpu/small", "any", is_all=True),
    )
    assert dict(gpu.queue_amounts) == {}
    assert nic.capacity == (("m", "1500"),)
    match, distinct = found.constraints
    assert (match.attribute, match.is_distinct) == ("d/numa", False)
    assert (distinct.attribute, distinct.is_distinct) == ("d/slot", True)
    assert [match.binds(r) for r in ("gpu/big", "nic")] == [True, True]
    assert [distinct.binds(r) for r in ("gpu/big", "gpu/small", "nic")] == [True, False, True]


def test_v1beta1_writes_requests_and_devices_flat() -> None:
    request = {"name": "r", "deviceClassName": DRIVER, "count": 3}
    claim = thing(
        "resource.k8s.io/v1beta1",
        "ResourceClaim",
        "c",
        "ns",
        spec={"devices": {"requests": [request]}},
    )
    counted = ((f"deviceclass/{DRIVER}", 3),)
    assert read(claim).needs == (DeviceNeed("r", DRIVER, 3, queue_amounts=counted),)
    inner = {"attributes": {"ecc": {"bool": True}}, "capacity": {"m": {"value": "1Gi"}}}
    found = parse_slice(device_slice("n", {"name": "d", "basic": inner}))[0]
    assert found is not None
    assert found.devices[0].attributes == ((f"{DRIVER}/ecc", True),)
    assert found.devices[0].properties.attributes == {DRIVER: {"ecc": True}}


def test_what_a_claim_has() -> None:
    claim = read(device_claim("c", status=allocated("d0", node_name="n1", uids=("u1",))))
    assert claim.allocation.devices == (("gpu", DeviceId(DRIVER, "n1", "d0")),)
    assert claim.allocation.nodes.matches("n1", {})
    assert not claim.allocation.nodes.matches("n2", {})
    assert claim.reserved_for == ("u1",)


def test_devices_for_administrators_stay_free() -> None:
    status = allocated("d0", node_name="n1")
    status["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert read(device_claim("c", status=status)).allocation.devices == ()


def test_as_many_pods_as_may_share_a_claim() -> None:
    uids = tuple(f"u{i}" for i in range(256))
    claim = read(device_claim("c", status=allocated("d0", node_name="n1", uids=uids)))
    assert claim.problem == "is in use by 256 pods, which is the maximum number"


@pytest.mark.parametrize(
    ("request_part", "path"),
    [
        ({"exactly": {"deviceClassName": 3}}, "exactly.deviceClassName"),
        ({"exactly": {"deviceClassName": "c", "count": 0}}, "exactly.count"),
        ({"exactly": {"allocationMode": "Some"}}, "exactly.allocationMode"),
        ({"exactly": {"selectors": [{"cel": {"expression": 1}}]}}, "cel.expression"),
        ({"exactly": []}, "exactly"),
    ],
)
def test_fields_without_a_reading_keep_pods_away(request_part: dict[str, Any], path: str) -> None:
    body = {"devices": {"requests": [{"name": "r", **request_part}]}}
    obj = thing("resource.k8s.io/v1", "ResourceClaim", "c", "ns", spec=body)
    claim, errors = parse_device_claim(obj)
    assert claim is not None
    assert claim.problem.startswith("has invalid fields: spec.devices.requests[0]")
    assert path in errors[0].path


@pytest.mark.parametrize("obj", [None, {}, {"metadata": {}}, []])
def test_what_has_no_name_is_nothing(obj: object) -> None:
    for parse in (parse_device_claim, parse_device_class, parse_slice):
        found, errors = parse(obj)
        assert found is None
        assert errors


# --- slices --------------------------------------------------------------------------------------


def test_pools_count_when_they_are_complete_in_their_newest_generation() -> None:
    def part(name: str, generation: int, of_pool: int, *devices: str) -> Any:
        pool = {"name": "p", "generation": generation, "resourceSliceCount": of_pool}
        made = device_slice("n", *devices, pool=pool)
        return parse_slice({**made, "metadata": {"name": name}})[0]

    old, new = part("old", 1, 1, "d0"), part("new", 2, 2, "d1")
    assert collect_devices([old, new]) == ({}, (), {"n"})
    both = collect_devices([old, new, part("more", 2, 2, "d2")])
    assert [d.id.device for d in both.on_node["n"]] == ["d1", "d2"]
    assert not both.in_flux
    everywhere = parse_slice(device_slice("n", "d0", nodeName=None, allNodes=True))[0]
    assert everywhere is not None
    found = collect_devices([everywhere])
    assert (found.on_node, [d.id.device for d in found.elsewhere]) == ({}, ["d0"])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, ""),
        ({"consumesCounters": [{"counterSet": "s"}]}, "shares counters with other devices"),
        ({"allowMultipleAllocations": True}, "is shared by several claims"),
        ({"bindsToNode": True}, "has conditions for binding"),
        ({"bindingConditions": ["c"]}, "has conditions for binding"),
        ({"capacity": {"m": {"value": "much"}}}, "has invalid fields"),
        ({"attributes": {"v": {"version": "1.0.0"}, "list": {"ints": [1]}}}, ""),
    ],
)
def test_devices_that_are_left_to_others(fields: dict[str, Any], problem: str) -> None:
    found = parse_slice(device_slice("n", {"name": "d", **fields}))[0]
    assert found is not None
    assert found.devices[0].problem == problem
    if "attributes" in fields:
        assert found.devices[0].attributes == ((f"{DRIVER}/v", Version("1.0.0")),)


def test_taints_that_keep_requests_away() -> None:
    taints = [
        {"key": "a", "value": "x", "effect": "NoSchedule"},
        {"key": "b", "effect": "NoExecute"},
        {"key": "c", "effect": "None"},
    ]
    found = parse_slice(device_slice("n", {"name": "d", "taints": taints}))[0]
    assert found is not None
    assert list(map(str, found.devices[0].taints)) == ["a=x:NoSchedule", "b:NoExecute"]
    tolerations = [{"key": "a", "value": "x"}, {"operator": "Exists", "effect": "NoExecute"}]
    (need,) = read(device_claim("c", exactly={"tolerations": tolerations})).needs
    for taint in found.devices[0].taints:
        assert any(t.tolerates(taint) for t in need.tolerations)


# --- pods ----------------------------------------------------------------------------------------


def test_a_claim_counts_for_one_of_its_pods() -> None:
    book = ClaimBook({"ns/c": read(device_claim("c"))})
    assert book.record_claims("ns/b", "ub", ("ns/c",)) == set()
    assert book.counts_for("ns/c", "ns/b")
    assert book.record_claims("ns/a", "ua", ("ns/c",)) == {"ns/b"}
    assert book.counts_for("ns/c", "ns/a")
    book.claims["ns/c"] = replace(book.claims["ns/c"], reserved_for=("ub",))
    assert book.counts_for("ns/c", "ns/b")
    assert not book.counts_for("ns/c", "ns/a")
    assert book.record_claims("ns/b", "ub", ()) == {"ns/a"}
    assert book.counts_for("ns/c", "ns/a")
    assert book.record_claims("ns/a", "ua", ("ns/c",)) == set()


def test_pods_with_claims_of_their_own_are_alike() -> None:
    marks = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    made = [device_claim(f"c{i}", annotations=marks) for i in range(2)]
    pods = [pod(f"p{i}", claiming(f"c{i}")) for i in range(2)]
    gangs = assemble([*made, *pods]).snapshot.gangs
    first, second = (g.tasks[0] for g in gangs)
    assert first.shape is second.shape
    assert first.device_claims != second.device_claims
    assert dict(first.shape.request)[f"deviceclass/{DRIVER}"] == 1


def test_claims_of_templates_are_found_by_the_status_of_the_pod() -> None:
    template = {
        "resourceClaims": [
            {"name": "a", "resourceClaimTemplateName": "t"},
            {"name": "b", "resourceClaimTemplateName": "t"},
            {"name": "c", "resourceClaimTemplateName": "t"},
        ]
    }
    told = [{"name": "a", "resourceClaimName": "made"}, {"name": "b"}]
    snapshot = assemble([pod("p", template, {"resourceClaimStatuses": told})]).snapshot
    (task,) = snapshot.gangs[0].tasks
    assert task.device_claims == ("ns/made", "ns/p-c (of template t)")


# --- the way back --------------------------------------------------------------------------------


def test_a_dump_comes_back_as_it_was() -> None:
    marks = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    devices = [
        {"name": "d0", "attributes": {"a": {"int": 3}, "b": {"bool": False}}},
        {"name": "d1", "attributes": {"a.com/v": {"version": "1.0.0"}, "s": {"string": "x"}}},
        {"name": "d2", "taints": [{"key": "k", "effect": "NoExecute"}]},
        {"name": "d3", "capacity": {"m": {"value": "1.5Gi"}}},
    ]
    alternatives = device_claim("alternatives")
    large = {"name": "large", "deviceClassName": DRIVER, "capacity": {"requests": {"m": "1.5Gi"}}}
    every = {"name": "all", "deviceClassName": "odd", "allocationMode": "All"}
    alternatives["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": [large, every]}]
    constrained = device_claim("constrained")
    constrained["spec"]["devices"]["constraints"] = [
        {"matchAttribute": "a.com/v"},
        {"distinctAttribute": "a.com/w", "requests": ["gpu"]},
        {"requests": ["gpu"]},
    ]
    apart = device_slice("n1", "far", nodeName=None, allNodes=True, pool={"name": "net"})
    apart["metadata"]["name"] = "net"
    partial = device_slice("n2", "half", pool={"name": "half", "resourceSliceCount": 2})
    partial["metadata"]["name"] = "half"
    objects = [
        node("n1"),
        node("n2"),
        {**device_class(), "spec": {"config": [{"opaque": {"driver": DRIVER, "parameters": {}}}]}},
        device_class("odd", "device.x"),
        device_slice("n1", *devices),
        device_slice("n2", "d0", "d1"),
        device_claim("own", annotations=marks),
        device_claim("held", status=allocated("d0", node_name="n1", uids=("u",))),
        device_claim("all", exactly={"allocationMode": "All"}),
        device_claim("part", 2, exactly={"capacity": {"requests": {"m": "1Gi"}}}),
        device_claim("bad", exactly={"count": "x"}),
        device_claim("brave", exactly={"tolerations": [{"key": "k", "effect": "NoExecute"}]}),
        device_claim("gone", deletionTimestamp="2026-01-01T00:00:00Z"),
        alternatives,
        constrained,
        apart,
        partial,
        pod("p", claiming("own", "held", "missing"), uid="u"),
        pod("q", claiming("part")),
    ]
    once = assemble(objects).snapshot
    assert once.devices.in_flux == {"n2"}
    assert [d.id.device for d in once.devices.elsewhere] == ["far"]
    again = assemble(encode(once)).snapshot
    assert again.devices == once.devices
    assert again == once
