"""Tests that the scheduler's role contains exactly the rights that the scheduler uses."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from optsched.api.kinds import (
    KINDS,
    NODE_SHARD,
    POD,
    POD_GROUP,
    RESOURCE_CLAIMS,
    SCHEDULING_POD_GROUPS,
    Ref,
)
from optsched.api.meta import EventType
from optsched.cluster.amounts import Usage
from optsched.cluster.dra_devices import DeviceGrant, DeviceId
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.formats.snapshots.assembly import READ_KINDS
from optsched.kube.cache.follower import GeometryReader
from optsched.kube.client.errors import Unreachable
from optsched.kube.runtime.events import EventRecorder, Note
from optsched.kube.runtime.leader_election import Election, Elector
from optsched.kube.scheduler.bind_preparation import ClaimReserver, GateOpening, NodeLocks
from optsched.kube.scheduler.status import StatusPatch, usage_patch
from optsched.kube.scheduler.status_writer import BUILTIN_QUEUES, make_writer
from optsched.local.assets import shipped
from tests.formats.objects import device_claim, group, pod, thing
from tests.kube.fakes import FakeApi, FakeClock, running, waiting
from tests.kube.scheduler.test_binder import World
from tests.kube.scheduler.test_evictor import EVICT, NOMINATE, REFUSED, guaranteed
from tests.kube.scheduler.test_volume_binder import World as ClaimWorld
from tests.kube.scheduler.test_volume_binder import claim, using, volume
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from optsched.api.kinds import Kind

Access = tuple[str, str, str]
"""API group, resource, verb."""

VERBS: Final = {
    "read": "get",
    "create": "create",
    "patch": "patch",
    "bind": "create",
    "evict": "create",
    "delete": "delete",
}
KIND_OF: Final = {kind.kind: kind for kind in KINDS if kind not in SCHEDULING_POD_GROUPS}
CLAIM_BINDING: Final = ("resource.k8s.io", "resourceclaims/binding", "patch")
"""Asked of whoever writes allocations (gate DRAResourceClaimGranularStatusAuthorization)."""
LOCK: Final = ("volcano-system", "volcano")


def objects(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a manifest by kind."""
    found = read_yaml(shipped("manifests", name).read_text())
    return {part.value["kind"]: part.value for part in found if isinstance(part, Document)}


RBAC: Final = objects("scheduler-rbac.yaml")
DEPLOYMENT: Final = objects("scheduler.yaml")["Deployment"]


FEATURES: Final = {
    name: objects(f"scheduler-{name}-rbac.yaml")
    for name in ("gates", "node-lock", "budget-override")
}
"""Rights for features that policies or webhooks switch on."""


def granted(role: str, where: dict[str, dict[str, Any]] | None = None) -> list[Access]:
    return [
        (api_group, resource, verb)
        for rule in (where or RBAC)[role]["rules"]
        for api_group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def access(kind: Kind, verb: str, subresource: str = "") -> Access:
    resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
    return (kind.group, resource, verb)


_SUBRESOURCE: Final = {"bind": "binding", "evict": "eviction"}


def asked(api: FakeApi) -> Iterator[Access]:
    """Yield the rights that the calls of a fake API would have needed."""
    for call in api.calls:
        method, kind, _, *rest = call.split()
        subresource = _SUBRESOURCE.get(method) or "".join(rest)
        yield access(KIND_OF[kind], VERBS[method], subresource)


# --- everything that is written, each way that it can go -----------------------------------------


async def binds() -> FakeApi:
    world = World("a")
    world.api.lose("bind", Unreachable("cut"))
    await world.carry_out("ns/a-0")
    return world.api


async def claims() -> FakeApi:
    api = FakeApi(device_claim("c"))
    reserver = ClaimReserver(api, {"ns/c": RESOURCE_CLAIMS[0]}.get, lambda _: None)
    grant = DeviceGrant("ns/c", (("gpu", DeviceId("d", "p", "0")),))
    assert not await reserver.reserve(grant, Ref(POD, "ns", "a"), "uid-a", "n")
    await reserver.release(grant, "uid-a")
    return api


async def volumes() -> FakeApi:
    world = ClaimWorld(
        volume("v", "n1"), claim("c", "local"), claim("d", "made"), using("p", "c", "d")
    )
    await world.carry_out(p="n1")
    return world.api


async def geometries() -> FakeApi:
    world = World("a")
    where = ("kube-system", "volcano-vgpu-device-config")
    around = waiting(FakeClock())
    reader = GeometryReader(world.api, world.cache, around, lambda: where, lambda: None)
    await reader.step()
    return world.api


async def locks() -> FakeApi:
    world = World("a")
    nodes = NodeLocks(world.api, FakeClock(), waiting(FakeClock()))
    assert not await nodes.acquire("n1")
    await nodes.release("n1")
    return world.api


async def evictions() -> FakeApi:
    api = FakeApi(pod("a"))
    await api.evict("ns", "a", "uid-a")
    write = make_writer(api, lambda: True)
    nomination = StatusPatch(Ref(POD, "ns", "a"), {"status": {}}, "status")
    await write(nomination.ref, nomination)
    return api


async def overrides() -> FakeApi:
    world = guaranteed()
    world.api.refuse("evict", REFUSED)
    await world.carry_out(NOMINATE, EVICT)
    assert world.gone == ["ns/old-0"]
    return world.api


async def gates() -> FakeApi:
    made = pod("a")
    made["spec"]["schedulingGates"] = [{"name": "g"}]
    api = FakeApi(made)
    opening = GateOpening(Ref(POD, "ns", "a"), "uid-a", 0, "no node has room")
    await make_writer(api, lambda: True)(opening.ref, opening)
    return api


async def writes() -> FakeApi:
    api = FakeApi(group("g"), thing("shard.volcano.sh/v1alpha1", "NodeShard", "volcano"))
    write = make_writer(api, lambda: True)
    for creation in BUILTIN_QUEUES:
        await write(creation.ref, creation)
        await write(creation.ref, StatusPatch(creation.ref, {"status": {}}, "status"))
        await write(creation.ref, usage_patch(creation.ref.name, Usage()))
    patch = StatusPatch(Ref(POD_GROUP, "ns", "g"), {"status": {}}, "")
    await write(patch.ref, patch)
    shard = StatusPatch(Ref(NODE_SHARD, "", "volcano"), {"status": {}}, "status")
    await write(shard.ref, shard)
    return api


async def events() -> FakeApi:
    api = FakeApi()
    for _ in range(2):
        recorder = EventRecorder(api, FakeClock(), waiting(FakeClock()))
        recorder.note(Note(Ref(POD, "ns", "p"), "u", EventType.WARNING, "Unschedulable", "no"))
        async with running(recorder.queue.run()):
            await recorder.queue.until_idle()
    return api


async def election() -> FakeApi:
    api, clock = FakeApi(), FakeClock()
    for name in ("a", "b"):
        elector = Elector(api, Election(*LOCK), name, clock, waiting(clock))
        for _ in range(2):
            await elector.step()
        await elector.release()
    return api


def needed(*parts: Callable[[], Awaitable[FakeApi]]) -> set[Access]:
    async def together() -> set[Access]:
        return {each for part in parts for each in asked(await part())}

    return asyncio.run(together())


# --- the manifests -------------------------------------------------------------------------------


def test_the_cluster_role_is_what_is_asked_for() -> None:
    reads = {access(kind, verb) for kind in READ_KINDS for verb in ("list", "watch")}
    found = granted("ClusterRole")
    parts = (binds, claims, volumes, geometries, evictions, writes, events)
    written = needed(*parts)
    assert set(found) == reads | written | {CLAIM_BINDING}
    assert len(found) == len(set(found))


def test_each_feature_has_the_rights_that_it_asks_for_and_the_rest_does_not() -> None:
    base = set(granted("ClusterRole"))
    for name, part in (("gates", gates), ("node-lock", locks), ("budget-override", overrides)):
        found = granted("ClusterRole", FEATURES[name])
        assert set(found) == needed(part) - base
        (subject,) = FEATURES[name]["ClusterRoleBinding"]["subjects"]
        assert subject == {"kind": "ServiceAccount", **RBAC["ServiceAccount"]["metadata"]}


def test_the_role_is_for_the_lease_alone() -> None:
    assert set(granted("Role")) == needed(election)
    named = [rule for rule in RBAC["Role"]["rules"] if rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in named] == [[LOCK[1]]]
    assert RBAC["Role"]["metadata"]["namespace"] == LOCK[0]


def test_there_is_no_other_way_to_write() -> None:
    folders = (ROOT / "optsched/kube" / name for name in ("scheduler", "runtime"))
    sources = [path.read_text() for folder in folders for path in folder.glob("*.py")]
    methods = {name for text in sources for name in re.findall(r"\bapi\.(\w+)\(", text)}
    methods |= {name for text in sources for name in re.findall(r"\b_api\.(\w+)\(", text)}
    assert methods == VERBS.keys()


@pytest.mark.parametrize(
    ("binding", "role"), [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")]
)
def test_roles_are_bound_to_the_account(binding: str, role: str) -> None:
    account = RBAC["ServiceAccount"]["metadata"]
    subject = {"kind": "ServiceAccount", **account}
    assert RBAC[binding]["subjects"] == [subject]
    assert RBAC[binding]["roleRef"]["kind"] == role
    assert RBAC[binding]["roleRef"]["name"] == RBAC[role]["metadata"]["name"]
    assert account["namespace"] == RBAC["Namespace"]["metadata"]["name"]


def test_the_deployment_runs_as_that_account_with_that_lease() -> None:
    meta, spec = DEPLOYMENT["metadata"], DEPLOYMENT["spec"]["template"]["spec"]
    account = {"name": spec["serviceAccountName"], "namespace": meta["namespace"]}
    assert account == RBAC["ServiceAccount"]["metadata"]
    flags = dict(arg.split("=", 1) for arg in spec["containers"][0]["args"][1:])
    assert (flags["--lock-namespace"], flags["--lock-name"]) == LOCK
