"""Claims get devices and reservations before a bind, despite writes of other clients."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import POD, RESOURCE_CLAIMS, Ref
from optsched.cluster.dra_devices import DeviceClass, DeviceGrant, DeviceId
from optsched.formats.codec.resource_claims import FINALIZER
from optsched.formats.snapshots.assembly import assemble
from optsched.kube.client.errors import Conflict, Rejected, Unreachable
from optsched.kube.scheduler.bind_preparation import (
    ClaimDeallocation,
    ClaimReserver,
    deallocate_claim,
    find_stranded_claims,
)
from tests.formats.objects import DRIVER, allocated, claiming, device_claim, node, pod
from tests.kube.fakes import FakeApi

if TYPE_CHECKING:
    from optsched.kube.client.listing import Raw

KIND = RESOURCE_CLAIMS[0]
CLAIM = Ref(KIND, "ns", "c")
GRANT = DeviceGrant("ns/c", (("gpu", DeviceId(DRIVER, "n1", "d0")),))
SHARE = DeviceGrant("ns/c")
CLASSES: dict[str, DeviceClass] = {}


def reserve(api: FakeApi, grant: DeviceGrant = GRANT, uid: str = "u1") -> str:
    reserver = ClaimReserver(api, {"ns/c": KIND}.get, CLASSES.get)
    return asyncio.run(reserver.reserve(grant, Ref(POD, "ns", "p"), uid, "n1"))


def release(api: FakeApi, uid: str = "u1") -> None:
    asyncio.run(ClaimReserver(api, {"ns/c": KIND}.get, CLASSES.get).release(GRANT, uid))


def status(api: FakeApi) -> Raw:
    return dict(api.objects[CLAIM].get("status", {}))


def users(api: FakeApi) -> list[str]:
    return [each["uid"] for each in status(api).get("reservedFor") or ()]


def has(uids: tuple[str, ...] = (), device: str = "d0") -> dict[str, Any]:
    return device_claim("c", status=allocated(device, node_name="n1", uids=uids))


def test_a_claim_gets_devices_pod_and_finalizer() -> None:
    api = FakeApi(device_claim("c"))
    assert reserve(api) == ""
    allocation = status(api)["allocation"]
    assert allocation["devices"] == allocated("d0", node_name="n1")["allocation"]["devices"]
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["n1"]
    assert users(api) == ["u1"]
    assert api.objects[CLAIM]["metadata"]["finalizers"] == [FINALIZER]
    written = len(api.writes)
    assert reserve(api) == ""
    assert len(api.writes) == written


def test_the_version_of_a_reserved_claim_is_reported() -> None:
    api, found = FakeApi(device_claim("c")), []
    reserver = ClaimReserver(
        api, {"ns/c": KIND}.get, CLASSES.get, lambda *reserved: found.append(reserved)
    )
    for uid in ("u1", "u1"):
        assert asyncio.run(reserver.reserve(GRANT, Ref(POD, "ns", "p"), uid, "n1")) == ""
    assert found == [("ns/c", api.objects[CLAIM]["metadata"]["resourceVersion"])] * 2


def test_drivers_are_told_what_class_and_claim_have_for_them() -> None:
    def opaque(text: str) -> dict[str, Any]:
        return {"opaque": {"driver": DRIVER, "parameters": {"mode": text}}}

    CLASSES["big"] = DeviceClass("big", config=(json.dumps(opaque("class")),))
    tolerations = [{"key": "k", "operator": "Exists"}]
    first = {"name": "a", "deviceClassName": "big", "tolerations": tolerations}
    other = {"name": "b", "deviceClassName": "small"}
    claim = device_claim("c")
    claim["spec"]["devices"] = {
        "requests": [{"name": "gpu", "firstAvailable": [first, other]}],
        "config": [
            opaque("all"),
            {"requests": ["gpu/a"], **opaque("big")},
            {"requests": ["gpu/b"], **opaque("small")},
        ],
    }
    api = FakeApi(claim)
    grant = DeviceGrant("ns/c", (("gpu/a", DeviceId(DRIVER, "n1", "d0")),))
    assert reserve(api, grant) == ""
    devices = status(api)["allocation"]["devices"]
    (result,) = devices["results"]
    assert (result["request"], result["tolerations"]) == ("gpu/a", tolerations)
    assert devices["config"] == [
        {"source": "FromClass", "requests": ["gpu/a"], **opaque("class")},
        {"source": "FromClaim", **opaque("all")},
        {"source": "FromClaim", "requests": ["gpu/a"], **opaque("big")},
    ]


def test_a_claim_that_nobody_can_change_is_named() -> None:
    no = Rejected(422, "Invalid", "spec: field is immutable")
    claim = device_claim("c")
    api = FakeApi(claim)
    api.refuse("patch", no)
    with pytest.raises(Rejected):
        reserve(api)
    claim["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}]
    api = FakeApi(claim)
    api.refuse("patch", no)
    why = reserve(api)
    assert "resource claim ns/c cannot be changed by JSON clients" in why
    assert "spec: field is immutable" in why


def test_a_second_pod_is_added() -> None:
    api = FakeApi(has(("u1",)))
    assert reserve(api, SHARE, "u2") == ""
    assert reserve(api, GRANT, "u3") == ""
    assert users(api) == ["u1", "u2", "u3"]


@pytest.mark.parametrize(
    ("claim", "grant", "why"),
    [
        (has(device="d1"), GRANT, "is allocated to other devices"),
        (device_claim("c"), SHARE, "is no longer allocated"),
        (None, GRANT, "no longer exists"),
    ],
)
def test_claims_that_are_not_as_planned(
    claim: dict[str, Any] | None, grant: DeviceGrant, why: str
) -> None:
    api = FakeApi(*([claim] if claim else []))
    assert why in reserve(api, grant)
    assert not api.writes


def test_who_writes_at_the_same_time_is_waited_for() -> None:
    api = FakeApi(device_claim("c"))
    taken = Conflict(409, "Conflict", "modified")
    api.refuse("patch", None, taken)
    assert reserve(api) == ""
    assert users(api) == ["u1"]
    api.refuse("patch", *[taken] * 8)
    assert "other clients keep changing resource claim" in reserve(api, GRANT, "u2")


def test_a_lost_answer_is_asked_for_again() -> None:
    api = FakeApi(device_claim("c"))
    api.lose("patch", None, Unreachable("cut"))
    with pytest.raises(Unreachable):
        reserve(api)
    assert reserve(api) == ""
    assert users(api) == ["u1"]


def test_what_was_reserved_for_nothing_is_given_back() -> None:
    api = FakeApi(device_claim("c"))
    reserve(api)
    release(api, "another")
    assert users(api) == ["u1"]
    reserve(api, GRANT, "u2")
    release(api)
    assert users(api) == ["u2"]
    release(api, "u2")
    assert "allocation" not in status(api)


# --- deallocation --------------------------------------------------------------------------------


def stranded(*objects: Raw) -> list[ClaimDeallocation]:
    snapshot = assemble([node("n2"), *objects]).snapshot
    return list(find_stranded_claims(snapshot, {"ns/c": KIND}.get))


def waiting(name: str, uid: str, **spec: Any) -> Raw:
    found = pod(name, {**claiming("c"), **spec})
    found["metadata"]["uid"] = uid
    return found


def test_a_claim_is_stranded_if_no_node_and_no_other_pod_has_its_devices() -> None:
    p = waiting("p", "u1")
    assert [each.ref for each in stranded(has(("u1",)), p)] == [CLAIM]
    assert [each.ref for each in stranded(has(), p)] == [CLAIM]
    assert stranded(has(("u1",)), p, node("n1")) == []
    assert stranded(has(("u1", "u2")), p) == []
    assert stranded(has(("u1", "u2")), p, waiting("q", "u2", nodeName="n1")) == []
    assert stranded(device_claim("c"), p) == []
    assert stranded(has(("u1",))) == []


def test_a_stranded_claim_is_deallocated() -> None:
    api = FakeApi(has(("u1",)))
    (found,) = stranded(has(("u1",)), waiting("p", "u1"))
    asyncio.run(deallocate_claim(api, found))
    assert not status(api).get("allocation")
    assert users(api) == []


@pytest.mark.parametrize("now", [has(("u1", "u2")), has(("u1",), "d1"), device_claim("c")])
def test_a_claim_that_has_changed_is_not_deallocated(now: Raw) -> None:
    api = FakeApi(now)
    (found,) = stranded(has(("u1",)), waiting("p", "u1"))
    asyncio.run(deallocate_claim(api, found))
    assert not api.writes
