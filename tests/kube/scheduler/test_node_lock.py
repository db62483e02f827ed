"""One pod at a time gets vGPUs of a node: acquiring, waiting for, releasing and expiring locks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from optsched.api.kinds import NODE, Ref
from optsched.cluster.decisions import Allocate
from optsched.cluster.node_resources import GpuShare
from optsched.kube.client.errors import Conflict, Forbidden
from optsched.kube.scheduler.bind_preparation import LOCK, PATIENCE_S, NodeLocks
from optsched.kube.scheduler.binder import BinderContext, LiveBinder
from optsched.units import format_time
from tests.formats.objects import node
from tests.kube.fakes import FakeApi, FakeClock, waiting
from tests.kube.scheduler.test_binder import World, plan
from tests.support.sizes import container_sizes

N1 = Ref(NODE, "", "n1")


def locked(since: str) -> dict[str, Any]:
    made = node("n1")
    made["metadata"]["annotations"] = {LOCK: since}
    return made


def lock_of(api: FakeApi) -> str | None:
    return (api.objects[N1]["metadata"].get("annotations") or {}).get(LOCK)


def take(api: FakeApi, clock: FakeClock) -> str:
    return asyncio.run(NodeLocks(api, clock, waiting(clock)).acquire("n1"))


def test_a_free_node_is_locked_from_now_on() -> None:
    api, clock = FakeApi(node("n1")), FakeClock()
    assert take(api, clock) == ""
    assert lock_of(api) == format_time(clock.now_ms())


@pytest.mark.parametrize("since", ["2025-06-15T14:50:00Z", "2025-06-15T22:50:00+08:00", "soon"])
def test_a_lock_that_is_over_or_has_no_reading_is_nobodys(since: str) -> None:
    api, clock = FakeApi(locked(since)), FakeClock()
    assert take(api, clock) == ""
    assert lock_of(api) == format_time(clock.now_ms())


def test_a_lock_of_somebody_else_is_waited_for_and_left_alone() -> None:
    clock = FakeClock()
    since = format_time(clock.now_ms() - 60_000)
    api = FakeApi(locked(since))
    begin = clock.seconds
    assert f"node n1 is locked ({LOCK}) since {since}" in take(api, clock)
    assert PATIENCE_S <= clock.seconds - begin <= PATIENCE_S + 1
    assert lock_of(api) == since


def test_who_is_faster_has_it() -> None:
    api, clock = FakeApi(node("n1")), FakeClock()
    api.refuse("patch", Conflict(409, "Conflict", "the object has been modified"))
    assert take(api, clock) == ""
    assert [call.split()[0] for call in api.calls] == ["read", "patch", "read", "patch"]


def test_nodes_without_binds_are_forgotten() -> None:
    """The queue for a node's lock is dropped after its last bind, even if a bind was cancelled."""
    api, clock = FakeApi(*(node(f"n{number}") for number in range(20))), FakeClock()
    locks = NodeLocks(api, clock, waiting(clock))

    async def bind() -> None:
        for number in range(20):
            first = asyncio.create_task(locks.acquire(f"n{number}"))
            second = asyncio.create_task(locks.acquire(f"n{number}"))
            await asyncio.sleep(0)
            assert container_sizes(locks)["NodeLocks._mutexes"] == 1
            second.cancel()
            assert await first == ""
        await asyncio.sleep(0)

    asyncio.run(bind())
    assert container_sizes(locks)["NodeLocks._mutexes"] == 0


class Locking(World):
    """A world in which pods with vGPUs are bound one after another."""

    def __init__(self, *gangs: str) -> None:
        super().__init__(*gangs)
        wait = waiting(self.clock, self.slept)
        around = BinderContext(self.clock, self, lambda: True, wait, lambda: True)
        self.binder = LiveBinder(self.api, self.cache, around)

    async def bind(self, *tasks: str, **fields: Any) -> None:
        actions = tuple(Allocate(task, "n1", "ns/a", **fields) for task in tasks)
        self.begin(replace(plan(*tasks), actions=actions))
        async with self.at_work():
            await self.binder.until_idle()


CARDS = (GpuShare("GPU-x", 3000),)


@pytest.mark.asyncio
async def test_the_second_pod_is_bound_when_the_device_plugin_gives_the_node_free() -> None:
    world = Locking("a")
    bind = world.api.bind

    async def bound_and_served(*args: Any, **more: Any) -> None:
        assert lock_of(world.api)
        await bind(*args, **more)
        served.append(args[1])
        await world.api.patch(N1, {"metadata": {"annotations": {LOCK: None}}})

    served: list[str] = []
    world.api.bind = bound_and_served  # type: ignore[method-assign]
    await world.bind("ns/a-0", "ns/a-1", shared_gpus=CARDS)
    assert sorted(served) == ["a-0", "a-1"]
    assert world.failures == {}


@pytest.mark.asyncio
async def test_a_bind_that_fails_gives_the_lock_back() -> None:
    world = Locking("a")
    world.api.refuse("bind", Forbidden(403, "Forbidden", "you may not"))
    await world.bind("ns/a-0", shared_gpus=CARDS)
    assert world.failures["ns/a-0"].reason == "Forbidden"
    assert lock_of(world.api) is None


@pytest.mark.asyncio
async def test_a_pod_whose_node_stays_locked_is_pending_again() -> None:
    world = Locking("a")
    world.api.put(locked(format_time(world.clock.now_ms())))
    await world.bind("ns/a-0", shared_gpus=CARDS)
    assert world.failures["ns/a-0"].reason == "NodeLocked"
    assert world.node_of("ns/a-0") == ""
    assert lock_of(world.api) is not None


@pytest.mark.asyncio
async def test_who_gets_no_vgpus_needs_no_lock() -> None:
    world = Locking("a")
    await world.bind("ns/a-0", shared_gpus=(GpuShare("npu-0", 3000, npu="Ascend310P"),))
    await world.bind("ns/a-1")
    assert lock_of(world.api) is None
    assert world.node_of("ns/a-0") == world.node_of("ns/a-1") == "n1"
