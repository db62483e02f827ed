"""Tests of the steps for claims that wait for a node, before their pods are bound."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, Ref
from optsched.cluster.decisions import Allocate, Certificate, Plan
from optsched.cluster.reasons import ReasonCode
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.client.errors import Forbidden, Unreachable
from optsched.kube.scheduler.binder import BinderContext, LiveBinder
from optsched.kube.scheduler.outcomes import Bind, Failure
from tests.formats.objects import group, node, pod, thing
from tests.kube.fakes import FakeApi, FakeClock, running, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

pytestmark = pytest.mark.asyncio

SELECTED = "volume.kubernetes.io/selected-node"
MADE = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": "csi.example.com"}
LOCAL = {**MADE, "provisioner": "kubernetes.io/no-provisioner"}


def on(*nodes: str) -> dict[str, Any]:
    names = {"key": "metadata.name", "operator": "In", "values": list(nodes)}
    return {"required": {"nodeSelectorTerms": [{"matchFields": [names]}]}}


def volume(name: str, *nodes: str) -> dict[str, Any]:
    spec = {"storageClassName": "local", "capacity": {"storage": "1Gi"}}
    where = {"nodeAffinity": on(*nodes)} if nodes else {}
    return thing("v1", "PersistentVolume", name, spec={**spec, **where})


def claim(name: str, storage_class: str) -> dict[str, Any]:
    spec = {
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    status = {"phase": "Pending"}
    return thing("v1", "PersistentVolumeClaim", name, "ns", spec=spec, status=status)


def using(name: str, *claims: str) -> dict[str, Any]:
    made = pod(name, uid=f"uid-{name}", annotations={"scheduling.k8s.io/group-name": "g"})
    made["spec"]["volumes"] = [
        {"name": f"v{i}", "persistentVolumeClaim": {"claimName": each}}
        for i, each in enumerate(claims)
    ]
    return made


class World:
    """Two nodes, a gang with claims, and a binder that waits for one minute."""

    def __init__(self, *objects: dict[str, Any], patience_s: float | None = 60) -> None:
        classes = [
            thing("storage.k8s.io/v1", "StorageClass", "made", **MADE),
            thing("storage.k8s.io/v1", "StorageClass", "local", **LOCAL),
        ]
        self.api = FakeApi(node("n1"), node("n2"), group("g"), *classes, *objects)
        self.cache = ClusterCache()
        self.clock = FakeClock()
        self.leads = True
        self.failures: dict[str, Failure] = {}
        self.happens: Callable[[], None] = lambda: None
        around = BinderContext(
            self.clock,
            self,
            lambda: self.leads,
            waiting(self.clock),
            patience_s=lambda: patience_s,
        )
        self.binder = LiveBinder(self.api, self.cache, around)
        self.api.tell(self.cache)

    def bound(self, bind: Bind, seconds: float) -> None:
        pass

    def failed(self, bind: Bind, failure: Failure) -> None:
        self.failures[bind.task] = failure

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with running(self.binder.run()):
            yield

    async def carry_out(self, **node_of: str) -> None:
        """Bind pods and apply the scripted events until the binder is idle."""
        self.plan(**node_of)
        async with self.at_work():
            for _ in range(2000):
                if not self.binder.num_waiting:
                    return
                self.happens()
                self.api.tell(self.cache)
                await asyncio.sleep(0)
        raise AssertionError("it never ends")

    def begin(self, actions: Sequence[Allocate]) -> None:
        made = Plan(tuple(actions), Certificate((), "test", 0.0, ""))
        self.binder.carry_out(made, self.cache.snapshot(0))

    def plan(self, **node_of: str) -> None:
        actions = [
            Allocate(f"ns/{name.replace('_', '-')}", at, gang="ns/g")
            for name, at in node_of.items()
        ]
        self.begin(actions)

    def nodes(self) -> dict[str, str]:
        """Return the node of each bound pod."""
        found = {p["metadata"]["name"]: p["spec"].get("nodeName") for p in self.api.of(POD)}
        return {name: at for name, at in found.items() if at}

    def claim(self, name: str) -> dict[str, Any]:
        return self.api.objects[Ref(PERSISTENT_VOLUME_CLAIM, "ns", name)]

    def volume(self, name: str) -> dict[str, Any]:
        return self.api.objects[Ref(PERSISTENT_VOLUME, "", name)]

    def selected(self, name: str) -> str | None:
        return (self.claim(name)["metadata"].get("annotations") or {}).get(SELECTED)

    # --- controllers of volumes ------------------------------------------------------------------

    def provide(self) -> None:
        """Create volumes for claims with a selected node, and bind claims that have a volume."""
        for each in self.api.of(PERSISTENT_VOLUME_CLAIM):
            name = each["metadata"]["name"]
            if not each["spec"].get("volumeName") and self.selected(name):
                made = volume(f"for-{name}", self.selected(name) or "")
                self.api.put(made)
                self.bind(each, f"for-{name}")
        for each in self.api.of(PERSISTENT_VOLUME):
            ref = each["spec"].get("claimRef")
            if ref:
                self.bind(self.claim(ref["name"]), each["metadata"]["name"])

    def bind(self, obj: dict[str, Any], to: str) -> None:
        obj = {**obj, "spec": {**obj["spec"], "volumeName": to}, "status": {"phase": "Bound"}}
        self.api.put(obj)


async def test_a_claim_is_told_its_node_and_the_pod_waits_for_its_volume():
    world = World(claim("c", "made"), using("p", "c"))
    world.plan(p="n2")
    async with world.at_work():
        for _ in range(20):
            await asyncio.sleep(0)
        world.api.tell(world.cache)
        assert (world.selected("c"), world.nodes()) == ("n2", {})
        assert world.binder.num_waiting == 1
        assert world.cache.snapshot(0).nodes[1].residents[0].name == "p"
        world.provide()
        world.api.tell(world.cache)
        for _ in range(20):
            await asyncio.sleep(0)
    assert world.nodes() == {"p": "n2"}


async def test_a_volume_is_kept_for_its_claim():
    world = World(volume("v1", "n1"), volume("v2", "n2"), claim("c", "local"), using("p", "c"))
    world.happens = world.provide
    await world.carry_out(p="n2")
    kept = world.volume("v2")
    assert kept["spec"]["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "ns",
        "name": "c",
        "uid": "uid-c",
    }
    assert kept["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
    assert "claimRef" not in world.volume("v1")["spec"]
    assert (world.selected("c"), world.nodes()) == (None, {"p": "n2"})


async def test_no_pod_of_a_gang_is_bound_before_all_claims_are():
    world = World(claim("a", "made"), claim("b", "made"), using("p", "a"), using("q", "b"))
    bound_with: list[int] = []

    def happens() -> None:
        if not world.nodes():
            bound_with.append(len(world.nodes()))
        if world.clock.seconds > 1030:
            world.provide()

    world.happens = happens
    await world.carry_out(p="n1", q="n2")
    assert world.nodes() == {"p": "n1", "q": "n2"}
    assert (world.selected("a"), world.selected("b")) == ("n1", "n2")


async def test_after_a_while_the_gang_is_pending_again_and_the_claim_free():
    world = World(claim("c", "made"), claim("d", "made"), using("p", "c"), using("q", "d"))
    await world.carry_out(p="n1", q="n2")
    message = "claim ns/c was not bound within 60 s"
    assert world.failures == {"ns/p": Failure("VolumeNotBound", message)}
    assert (world.selected("c"), world.selected("d"), world.nodes()) == (None, None, {})
    (gang,) = world.cache.snapshot(0).gangs
    assert gang.problem is not None
    assert gang.problem.code is ReasonCode.NOT_BOUND
    assert message in gang.problem.message
    assert all(not n.residents for n in world.cache.snapshot(0).nodes)


async def test_a_provisioner_that_gives_a_claim_back_ends_the_wait():
    world = World(claim("c", "made"), using("p", "c"))

    def gives_back() -> None:
        if world.clock.seconds > 1005 and world.selected("c"):
            del world.claim("c")["metadata"]["annotations"][SELECTED]
            world.api.put(world.claim("c"))

    world.happens = gives_back
    await world.carry_out(p="n1")
    assert world.failures["ns/p"].message == "no volume for claim ns/c on n1"
    assert world.clock.seconds < 1020


async def test_who_comes_after_a_restart_goes_on():
    begun = claim("c", "made")
    begun["metadata"]["annotations"] = {SELECTED: "n1"}
    kept = volume("v", "n1")
    ref = {"namespace": "ns", "name": "d", "uid": "uid-d"}
    kept["spec"]["claimRef"] = ref
    world = World(begun, kept, claim("d", "local"), using("p", "c", "d"))
    before = len(world.api.writes)
    world.happens = world.provide
    await world.carry_out(p="n1")
    assert world.nodes() == {"p": "n1"}
    assert not [ref for ref, _ in world.api.writes[before:] if ref.kind != POD]


async def test_pods_of_a_gang_may_share_a_claim():
    world = World(claim("c", "made"), using("p", "c"), using("q", "c"))

    def provide() -> None:
        if world.selected("c") and not world.claim("c")["spec"].get("volumeName"):
            world.api.put(volume("everywhere"))
            world.bind(world.claim("c"), "everywhere")

    world.happens = provide
    await world.carry_out(p="n1", q="n2")
    assert world.selected("c") == "n1"
    assert world.nodes() == {"p": "n1", "q": "n2"}


async def test_a_volume_that_some_pod_can_not_reach_keeps_the_gang_whole():
    world = World(claim("c", "made"), using("p", "c"), using("q", "c"))
    world.happens = world.provide
    await world.carry_out(p="n1", q="n2")
    (failure,) = world.failures.values()
    assert failure.message == "claim ns/c is bound to a volume that node n2 cannot reach"
    assert world.nodes() == {}


async def test_two_gangs_never_get_the_same_volume():
    world = World(volume("v"), claim("c", "local"), claim("d", "local"), using("p", "c"))
    other = using("q", "d")
    other["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "h"}
    world.api.put(group("h"))
    world.api.put(other)
    world.api.tell(world.cache)
    gangs = {"p": "ns/g", "q": "ns/h"}
    actions = [Allocate(f"ns/{name}", "n1", gang=g) for name, g in gangs.items()]
    world.begin(actions)
    assert world.binder.num_waiting == 1
    world.happens = world.provide
    await world.carry_out()
    assert world.nodes() == {"p": "n1"}


async def test_what_can_not_be_written_is_told_and_undone():
    world = World(claim("c", "made"), using("p", "c"))
    world.api.refuse("patch", Forbidden(403, "Forbidden", "you may not"))
    await world.carry_out(p="n1")
    assert "you may not" in world.failures["ns/p"].message
    assert world.nodes() == {}


async def test_a_server_that_is_away_is_asked_again():
    world = World(claim("c", "made"), using("p", "c"))
    world.api.refuse("patch", Unreachable("connection reset"))
    world.happens = world.provide
    await world.carry_out(p="n1")
    assert world.nodes() == {"p": "n1"}


async def test_a_pod_that_goes_ends_the_wait():
    world = World(claim("c", "made"), using("p", "c"))

    def goes() -> None:
        world.api.objects.pop(Ref(POD, "ns", "p"), None)

    world.happens = goes
    await world.carry_out(p="n1")
    assert world.failures["ns/p"].message == "pod ns/p no longer exists"


async def test_who_does_not_lead_any_more_leaves_claims_as_they_are():
    world = World(claim("c", "made"), using("p", "c"))

    def loses() -> None:
        world.leads = world.selected("c") is None

    world.happens = loses
    await world.carry_out(p="n1")
    assert (world.selected("c"), world.failures, world.nodes()) == ("n1", {}, {})


async def test_stopping_waits_for_no_volume():
    world = World(claim("c", "made"), using("p", "c"))
    world.plan(p="n1")
    async with world.at_work():
        await asyncio.sleep(0)
        await asyncio.wait_for(world.binder.until_idle(), 10)
        world.binder.withdraw()
        assert world.binder.num_waiting == 0
    assert all(not n.residents for n in world.cache.snapshot(0).nodes)


@pytest.mark.parametrize("patience_s", [None])
async def test_without_the_rule_volumes_are_none_of_our_business(patience_s: float | None):
    world = World(claim("c", "made"), using("p", "c"), patience_s=patience_s)
    await world.carry_out(p="n1")
    assert (world.selected("c"), world.nodes()) == (None, {"p": "n1"})
