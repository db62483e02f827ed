"""Pods with GPU shares or NUMA cells get a record of them before the bind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import POD, Ref
from optsched.cluster.decisions import Allocate, Certificate, Plan
from optsched.cluster.node_resources import GpuShare, NumaPart
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.client.errors import Conflict, Forbidden, KubeError, Unreachable
from optsched.kube.scheduler.binder import BinderContext, LiveBinder
from tests.formats.objects import node, pod
from tests.kube.fakes import FakeApi, FakeClock, running, waiting

if TYPE_CHECKING:
    from optsched.kube.client.listing import Raw
    from optsched.kube.scheduler.outcomes import Bind, Failure

REF = Ref(POD, "ns", "p")
RECORD = "optsched.io/BoundDevices"
SHARE = GpuShare("GPU-a", 1000)
CHANGED = Conflict(409, "Conflict", "the object has been modified")
OTHER = {"type": "example.com/mine", "status": "True"}


class World:
    """A node, a pod, and a binder that binds the pod."""

    def __init__(self, **status: Any) -> None:
        self.api = FakeApi(node("n1"), pod("p", uid="u") | {"status": status})
        self.cache = ClusterCache()
        self.api.tell(self.cache)
        self.failures: list[Failure] = []
        clock = FakeClock()
        context = BinderContext(clock, self, lambda: True, waiting(clock, []))
        self.binder = LiveBinder(self.api, self.cache, context)

    def bound(self, bind: Bind, seconds: float) -> None:
        assert bind.uid == "u"

    def failed(self, bind: Bind, failure: Failure) -> None:
        self.failures.append(failure)

    async def bind(self, *shares: GpuShare, numa: tuple[NumaPart, ...] = ()) -> None:
        action = Allocate("ns/p", "n1", "ns/p", shares, numa=numa)
        plan = Plan((action,), Certificate((), "greedy", 0.0, ""))
        self.binder.carry_out(plan, self.cache.snapshot(0))
        async with running(self.binder.run()):
            await self.binder.until_idle()

    @property
    def pod(self) -> Raw:
        return self.api.objects[REF]

    def records(self) -> list[Any]:
        conditions = self.pod["status"].get("conditions", ())
        return [json.loads(c["message"]) for c in conditions if c["type"] == RECORD]


@pytest.mark.asyncio
async def test_node_and_devices_are_recorded_before_the_bind() -> None:
    world = World(conditions=[OTHER])
    await world.bind(SHARE, numa=(NumaPart(0, 4),))
    assert world.failures == []
    assert [c for c in world.api.calls if REF.name in c] == [
        "read Pod ns/p",
        "patch Pod ns/p status",
        "bind Pod ns/p n1",
    ]
    assert world.pod["status"]["conditions"][0] == OTHER
    (record,) = world.records()
    assert record["node"] == "n1"
    known = {key: world.pod["metadata"]["annotations"][key] for key in record["annotations"]}
    assert record["annotations"] == known
    assert sorted(known) == ["volcano.sh/topology-decision", "volcano.sh/vgpu-ids-new"]


@pytest.mark.asyncio
async def test_a_plain_pod_costs_no_further_request() -> None:
    world = World()
    await world.bind()
    assert [c for c in world.api.calls if REF.name in c] == ["bind Pod ns/p n1"]


@pytest.mark.asyncio
async def test_a_later_bind_replaces_the_record_of_one_that_failed() -> None:
    world = World(conditions=[OTHER, {"type": RECORD, "status": "True", "message": '"n0"'}])
    await world.bind(SHARE)
    (record,) = world.records()
    assert record["node"] == "n1"


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [CHANGED, Unreachable("connection reset")])
async def test_a_refused_record_is_written_again(error: KubeError) -> None:
    world = World()
    world.api.refuse("patch", error)
    await world.bind(SHARE)
    assert len(world.records()) == 1
    assert world.pod["spec"]["nodeName"] == "n1"


@pytest.mark.asyncio
@pytest.mark.parametrize("errors", [[Forbidden(403, "Forbidden", "no")], [CHANGED] * 3])
async def test_without_its_record_no_pod_is_bound(errors: list[KubeError]) -> None:
    world = World()
    for error in errors:
        world.api.refuse("patch", error)
    await world.bind(SHARE)
    assert [failure.reason for failure in world.failures] == [type(errors[0]).__name__]
    assert "nodeName" not in world.pod["spec"]


@pytest.mark.asyncio
@pytest.mark.parametrize("change", [{"spec": {"nodeName": "n2"}}, {"metadata": {"uid": "v"}}])
async def test_a_pod_of_another_bind_or_name_gets_no_record(change: Raw) -> None:
    world = World()
    await world.api.patch(REF, change)
    await world.bind(SHARE)
    assert world.records() == []
    assert len(world.failures) == 1
