from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.api.kinds import NODE, POD, RESOURCE_CLAIMS, Ref
from optsched.cluster.decisions import Allocate, Certificate, Enqueue, Plan
from optsched.cluster.dra_devices import DeviceGrant, DeviceId
from optsched.cluster.node_resources import GpuShare, NumaPart
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.reflector import Changed
from optsched.kube.client.errors import (
    Forbidden,
    KubeError,
    NotFound,
    ServerFault,
    TooMany,
    Unreachable,
)
from optsched.kube.scheduler.binder import FAULTS, HOLDS, BinderContext, LiveBinder
from optsched.kube.scheduler.outcomes import Bind, Failure
from tests.formats.objects import (
    DRIVER,
    allocated,
    device_claim,
    device_slice,
    group,
    node,
    pod,
)
from tests.kube.fakes import FakeApi, FakeClock, running, waiting
from tests.support.effort import num_examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LOST = Unreachable("connection reset")
FAULT = ServerFault(500, "InternalError", "something broke")
NO = Forbidden(403, "Forbidden", "you may not")


class World:
    """Two nodes, gangs of two pods each, and a binder."""

    def __init__(self, *gangs: str) -> None:
        names = [f"{gang}-{i}" for gang in gangs for i in range(2)]
        self.api = FakeApi(node("n1"), node("n2"), *map(group, gangs), *map(pod_of, names))
        self.cache = ClusterCache()
        self.api.tell(self.cache)
        self.clock = FakeClock()
        self.slept: list[float] = []
        self.leads = True
        self.bound_tasks: list[str] = []
        self.failures: dict[str, Failure] = {}
        around = BinderContext(
            self.clock, self, lambda: self.leads, waiting(self.clock, self.slept)
        )
        self.binder = LiveBinder(self.api, self.cache, around)

    def bound(self, bind: Bind, seconds: float) -> None:
        self.bound_tasks.append(bind.task)

    def failed(self, bind: Bind, failure: Failure) -> None:
        assert bind.task not in self.failures
        self.failures[bind.task] = failure

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with running(self.binder.run()):
            yield

    def begin(self, made: Plan) -> None:
        """Start to carry out a plan on the current snapshot of the cache."""
        self.binder.carry_out(made, self.cache.snapshot(0))

    async def carry_out(self, *tasks: str, at: str = "n1") -> None:
        """Bind tasks and wait until the binder is idle."""
        self.begin(plan(*tasks, at=at))
        async with self.at_work():
            await self.binder.until_idle()

    def node_of(self, task: str) -> str:
        return str(self.api.objects[ref(task)]["spec"].get("nodeName", ""))

    def cards_of(self, task: str) -> tuple[GpuShare, ...]:
        residents = (t for n in self.cache.snapshot(0).nodes for t in n.residents)
        return next(t.shared_gpus for t in residents if t.key == task)

    def counts_as_bound(self, task: str) -> bool:
        snapshot = self.cache.snapshot(0)
        return task in {t.key for n in snapshot.nodes for t in n.residents}

    def problem(self, gang: str) -> str:
        found = self.cache.snapshot(0).gang_by_key[f"ns/{gang}"].problem
        return "" if found is None else f"{found.code}: {found.message}"


def pod_of(name: str) -> dict[str, object]:
    mark = {"scheduling.k8s.io/group-name": name.partition("-")[0]}
    return pod(name, uid=f"uid-{name}", annotations=mark)


def ref(task: str) -> Ref:
    return Ref(POD, *task.split("/"))


def plan(*tasks: str, at: str = "n1") -> Plan:
    gang = lambda task: task.partition("-")[0]  # noqa: E731
    actions = [Enqueue("ns/a"), *(Allocate(task, at, gang(task)) for task in tasks)]
    return Plan(tuple(actions), Certificate((), "greedy", 0.0, ""))


BIND = "bind Pod ns/a-0 n1"


@pytest.mark.asyncio
async def test_what_is_planned_counts_as_bound_at_once_and_is_then() -> None:
    world = World("a")
    world.begin(plan("ns/a-0", "ns/a-1"))
    assert world.counts_as_bound("ns/a-0")
    assert world.binder.num_waiting == 2
    async with world.at_work():
        await world.binder.until_idle()
    assert world.bound_tasks == ["ns/a-0", "ns/a-1"]
    assert (world.node_of("ns/a-0"), world.node_of("ns/a-1")) == ("n1", "n1")
    assert world.binder.num_waiting == 0
    assert world.failures == {}


@pytest.mark.asyncio
async def test_a_pod_is_told_the_queue_that_admitted_it() -> None:
    world = World("a")
    world.cache.snapshot(0)
    allocate = Allocate("ns/a-0", "n1", "ns/a")
    world.begin(Plan((allocate,), Certificate((), "greedy", 0.0, "")))
    async with world.at_work():
        await world.binder.until_idle()
    annotations = world.api.objects[ref("ns/a-0")]["metadata"]["annotations"]
    assert annotations["optsched.io/admitted-queue"] == "default"


@pytest.mark.asyncio
async def test_a_lost_answer_is_asked_for_again_and_found_done() -> None:
    world = World("a")
    world.api.lose("bind", LOST)
    await world.carry_out("ns/a-0")
    assert world.api.calls == [BIND, BIND, "read Pod ns/a-0"]
    assert world.bound_tasks == ["ns/a-0"]
    assert world.slept == [0.1]


@pytest.mark.asyncio
async def test_a_lost_request_is_sent_again_for_as_long_as_it_takes() -> None:
    world = World("a")
    world.api.refuse("bind", *[LOST] * 8)
    await world.carry_out("ns/a-0")
    assert world.bound_tasks == ["ns/a-0"]
    assert world.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


@pytest.mark.asyncio
async def test_a_busy_server_says_how_long_to_wait() -> None:
    world = World("a")
    world.api.refuse("bind", TooMany(429, "TooManyRequests", "", 7.0), TooMany(429, "", ""))
    await world.carry_out("ns/a-0")
    assert world.bound_tasks == ["ns/a-0"]
    assert world.slept == [7.0, 0.1]


@pytest.mark.asyncio
async def test_a_pod_that_is_elsewhere_by_now_is_not_bound() -> None:
    world = World("a")
    world.api.put({**pod_of("a-0"), "spec": {"nodeName": "n2"}})
    await world.carry_out("ns/a-0")
    assert world.failures["ns/a-0"] == Failure("Conflict", "the pod is already bound to n2")
    assert not world.counts_as_bound("ns/a-0")


@pytest.mark.asyncio
async def test_a_pod_of_the_same_name_is_another_pod() -> None:
    world = World("a")
    world.api.put({**pod_of("a-0"), "metadata": {**pod("a-0")["metadata"], "uid": "new"}})
    await world.carry_out("ns/a-0")
    assert world.failures["ns/a-0"].message == "another pod has the same name"
    assert world.node_of("ns/a-0") == ""


@pytest.mark.parametrize(
    ("error", "word"), [(NO, "Forbidden"), (NotFound(404, "NotFound", "gone"), "NotFound")]
)
@pytest.mark.asyncio
async def test_what_is_refused_for_good_is_asked_for_once(error: KubeError, word: str) -> None:
    world = World("a")
    world.api.refuse("bind", error)
    await world.carry_out("ns/a-0")
    assert world.api.calls == [BIND]
    assert world.failures["ns/a-0"].reason == word
    assert not world.counts_as_bound("ns/a-0")


@pytest.mark.asyncio
async def test_a_server_that_keeps_breaking_is_left_in_peace() -> None:
    world = World("a")
    world.api.refuse("bind", *[FAULT] * (FAULTS + 1))
    await world.carry_out("ns/a-0")
    assert world.api.calls == [*[BIND] * (FAULTS + 1), "read Pod ns/a-0"]
    assert world.failures["ns/a-0"] == Failure("InternalError", "something broke")


@pytest.mark.asyncio
async def test_a_pod_that_can_not_be_read_is_asked_about_again() -> None:
    world = World("a")
    world.api.lose("bind", LOST)
    world.api.refuse("read", LOST)
    await world.carry_out("ns/a-0")
    assert world.api.calls == [BIND, BIND, "read Pod ns/a-0", BIND, "read Pod ns/a-0"]
    assert world.bound_tasks == ["ns/a-0"]


# --- gangs ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_after_a_failure_the_rest_of_the_gang_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("optsched.kube.scheduler.binder.MAX_CONCURRENT", 1)
    world = World("a", "b")
    world.api.refuse("bind", NO)
    await world.carry_out("ns/a-0", "ns/a-1", "ns/b-0")
    assert "bind Pod ns/a-1 n1" not in world.api.calls
    assert not world.counts_as_bound("ns/a-1")
    assert list(world.failures) == ["ns/a-0"]
    assert world.bound_tasks == ["ns/b-0"]
    assert world.problem("b") == ""


@pytest.mark.asyncio
async def test_a_gang_is_held_longer_after_each_failure() -> None:
    world = World("a")
    for pause_s in (1.0, 2.0, 4.0):
        world.failures.clear()
        world.api.refuse("bind", NO)
        await world.carry_out("ns/a-0")
        told = f"pod ns/a-0 could not be bound to n1: you may not; next attempt in {pause_s:.0f} s"
        assert world.problem("a") == f"{ReasonCode.NOT_BOUND}: {told}"
        world.clock.seconds += pause_s - 0.1
        world.binder.gang_backoff.release_due()
        assert world.problem("a") != ""
        world.clock.seconds += 0.1
        world.binder.gang_backoff.release_due()
        assert world.problem("a") == ""


@pytest.mark.asyncio
async def test_binds_that_fail_together_are_one_failure_of_the_gang() -> None:
    world = World("a")
    world.api.refuse("bind", NO, NO)
    await world.carry_out("ns/a-0", "ns/a-1")
    assert set(world.failures) == {"ns/a-0", "ns/a-1"}
    assert "next attempt in 1 s" in world.problem("a")


@pytest.mark.asyncio
async def test_old_failures_are_forgotten() -> None:
    world = World("a")
    for _ in range(2):
        world.failures.clear()
        world.api.refuse("bind", NO)
        await world.carry_out("ns/a-0")
        assert "in 1 s" in world.problem("a")
        world.clock.seconds += 1 + HOLDS.max_s
        world.binder.gang_backoff.release_due()


@pytest.mark.asyncio
async def test_a_success_ends_the_hold_that_an_earlier_plan_caused() -> None:
    world = World("a")
    world.api.refuse("bind", NO)
    await world.carry_out("ns/a-0")
    await world.carry_out("ns/a-1")
    assert world.bound_tasks == ["ns/a-1"]
    assert world.problem("a") == ""


@pytest.mark.asyncio
async def test_a_gang_that_has_changed_is_left_to_the_next_session_as_a_whole() -> None:
    world = World("a", "b")
    world.api.objects.pop(ref("ns/a-1"))
    world.api.tell(world.cache)
    await world.carry_out("ns/a-0", "ns/a-1", "ns/b-0")
    assert world.bound_tasks == ["ns/b-0"]
    assert not world.counts_as_bound("ns/a-0")


# --- leadership ----------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_who_does_not_lead_binds_nothing_more() -> None:
    world = World("a")
    world.begin(plan("ns/a-0", "ns/a-1"))
    world.leads = False
    async with world.at_work():
        await world.binder.until_idle()
    assert world.api.calls == []
    assert world.failures == {}
    assert not world.counts_as_bound("ns/a-0")
    assert world.problem("a") == ""


@pytest.mark.asyncio
async def test_a_bind_without_an_answer_is_not_sent_again_by_who_does_not_lead() -> None:
    world = World("a")
    world.api.lose("bind", LOST)
    world.begin(plan("ns/a-0"))
    async with world.at_work():
        while not world.api.calls:
            await asyncio.sleep(0)
        world.leads = False
        await world.binder.until_idle()
    assert world.api.calls == [BIND]
    assert not world.counts_as_bound("ns/a-0")
    world.api.tell(world.cache)
    assert world.counts_as_bound("ns/a-0")


@pytest.mark.asyncio
async def test_what_has_not_begun_can_be_withdrawn() -> None:
    world = World("a")
    world.begin(plan("ns/a-0", "ns/a-1"))
    world.binder.withdraw()
    await world.binder.until_idle()
    assert world.binder.num_waiting == 0
    assert not world.counts_as_bound("ns/a-0")


# --- whatever happens ----------------------------------------------------------------------------

TASKS = ("ns/a-0", "ns/a-1", "ns/b-0", "ns/b-1")
ERRORS = st.sampled_from([None, LOST, FAULT, TooMany(429, "", "", 1.0), NO])


class Events:
    """Events that happen during a bind, one after each request."""

    def __init__(self, world: World, happenings: list[str]) -> None:
        self._world = world
        self._happenings = happenings

    async def happen(self) -> None:
        world, seen = self._world, 0
        for what in self._happenings:
            while len(world.api.calls) == seen and world.binder.num_waiting:
                await asyncio.sleep(0)
            seen = len(world.api.calls)
            self._do(what)

    def _do(self, what: str) -> None:
        world = self._world
        verb, _, task = what.partition(" ")
        match verb:
            case "lead":
                world.leads = not world.leads
            case "close":
                closed = {**node("n1"), "spec": {"unschedulable": True}}
                world.cache.apply(NODE, Changed(world.api.put(closed)))
            case "delete":
                world.api.objects.pop(ref(task), None)
            case "steal" if ref(task) in world.api.objects and not world.node_of(task):
                known = world.api.objects[ref(task)]
                world.api.put({**known, "spec": {**known["spec"], "nodeName": "n2"}})
            case _:
                pass


@settings(max_examples=num_examples(100), deadline=None)
@given(
    st.lists(ERRORS, max_size=12),
    st.lists(ERRORS, max_size=4),
    st.lists(
        st.sampled_from(
            ["lead", "rest", "close", *(f"{v} {t}" for v in ("delete", "steal") for t in TASKS)]
        ),
        max_size=4,
    ),
)
def test_nothing_is_lost_or_doubled(
    before: list[KubeError | None], after: list[KubeError | None], happenings: list[str]
) -> None:
    world = World("a", "b")
    world.api.refuse("bind", *before)
    world.api.lose("bind", *after)
    world.begin(plan(*TASKS))

    async def play() -> None:
        async with world.at_work():
            await asyncio.gather(Events(world, happenings).happen(), world.binder.until_idle())

    asyncio.run(play())
    assert world.binder.num_waiting == 0
    assert len(world.bound_tasks) == len(set(world.bound_tasks))
    assert not set(world.bound_tasks) & set(world.failures)
    assert {call.split()[-1] for call in world.api.calls if call.startswith("bind")} <= {"n1"}
    for task in TASKS:
        assert world.counts_as_bound(task) is (task in world.bound_tasks)
        if task in world.bound_tasks and ref(task) in world.api.objects:
            assert world.node_of(task) == "n1"
    held = {gang for gang in "ab" if world.problem(gang)}
    assert held == {task[3] for task in world.failures}

    world.api.tell(world.cache)
    tasks = {t.key: t for g in world.cache.snapshot(0).gangs for t in g.tasks}
    assert {task: tasks[task].node for task in tasks} == {t: world.node_of(t) for t in tasks}
    assert all((t.status is TaskStatus.PENDING) is (not t.node) for t in tasks.values())


@pytest.mark.asyncio
async def test_cells_are_told_with_the_node_and_count_at_once() -> None:
    world = World("a")
    meant = (NumaPart(1, 4, 1),)
    allocated = Allocate("ns/a-0", "n1", "ns/a", numa=meant)
    world.begin(replace(plan("ns/a-0"), actions=(allocated,)))
    assert {t.numa for n in world.cache.snapshot(0).nodes for t in n.residents} == {meant}
    async with world.at_work():
        await world.binder.until_idle()
    told = world.api.objects[ref("ns/a-0")]["metadata"]["annotations"]
    assert told["volcano.sh/topology-decision"] == (
        '{"numa":{"1":{"cpu":"4","nvidia.com/gpu":"1"}}}'
    )


@pytest.mark.asyncio
async def test_shared_gpus_are_told_with_the_node_and_count_at_once() -> None:
    world = World("a")
    shared = (GpuShare("GPU-x", 3000, 50),)
    allocated = Allocate("ns/a-0", "n1", "ns/a", shared)
    world.begin(replace(plan("ns/a-0"), actions=(allocated,)))
    assert world.cards_of("ns/a-0") == shared
    async with world.at_work():
        await world.binder.until_idle()
    told = world.api.objects[ref("ns/a-0")]["metadata"]["annotations"]
    assert told["volcano.sh/vgpu-ids-new"] == "GPU-x,NVIDIA,3000,50:"
    assert told["volcano.sh/vgpu-node"] == "n1"
    assert world.cards_of("ns/a-0") == shared


# --- claims --------------------------------------------------------------------------------------

GATE = "scheduling.volcano.sh/queue-allocation-gate"
GRANT = DeviceGrant("ns/c", (("gpu", DeviceId(DRIVER, "n1", "d0")),))
CLAIM = Ref(RESOURCE_CLAIMS[0], "ns", "c")


def claiming_world() -> tuple[World, Plan]:
    """Return a world and a plan that binds one task, whose claim gets a device."""
    world = World("a")
    for obj in (device_claim("c"), device_slice("n1", "d0")):
        world.api.put(obj)
    world.api.tell(world.cache)
    action = Allocate("ns/a-0", "n1", "ns/a", devices=(GRANT,))
    return world, Plan((action,), Certificate((), "greedy", 0.0, ""))


def allocation(world: World) -> object:
    return world.api.objects[CLAIM].get("status", {}).get("allocation")


@pytest.mark.asyncio
async def test_a_claim_has_its_devices_before_its_pod_has_its_node() -> None:
    world, made = claiming_world()
    world.begin(made)
    devices = world.cache.snapshot(0).devices
    assert devices.claim_by_device == {DeviceId(DRIVER, "n1", "d0"): "ns/c"}
    async with world.at_work():
        await world.binder.until_idle()
    assert [call.split()[0] for call in world.api.calls] == ["read", "patch", "patch", "bind"]
    assert world.bound_tasks == ["ns/a-0"]
    assert allocation(world)
    world.api.tell(world.cache)
    assert world.cache.snapshot(0).devices.claim_by_device == devices.claim_by_device


@pytest.mark.asyncio
async def test_a_bind_that_fails_gives_the_devices_back() -> None:
    world, made = claiming_world()
    world.api.refuse("bind", NO)
    world.begin(made)
    async with world.at_work():
        await world.binder.until_idle()
    assert set(world.failures) == {"ns/a-0"}
    assert not allocation(world)
    assert world.cache.snapshot(0).devices.claim_by_device == {}


@pytest.mark.asyncio
async def test_a_claim_that_others_took_keeps_its_pod_unbound() -> None:
    world, made = claiming_world()
    world.api.put(device_claim("c", status=allocated("d7", node_name="n2", uids=("x",))))
    world.begin(made)
    async with world.at_work():
        await world.binder.until_idle()
    assert world.failures["ns/a-0"].reason == "ClaimNotReserved"
    assert "is allocated to other devices" in world.problem("a")
    assert world.node_of("ns/a-0") == ""
    assert allocation(world)


@pytest.mark.asyncio
async def test_a_gate_goes_before_the_pod_is_bound() -> None:
    world, made = gated_world()
    world.begin(made)
    async with world.at_work():
        await world.binder.until_idle()
    assert world.api.calls[-2:] == ["patch Pod ns/a-0", "bind Pod ns/a-0 n1"]
    found = world.api.objects[ref("ns/a-0")]["spec"]
    assert (found["nodeName"], "schedulingGates" in found) == ("n1", False)


# --- nodes that are closed meanwhile -------------------------------------------------------------


def close(world: World, how: str) -> None:
    """Make a node unschedulable and update the cache."""
    closed = node("n1")
    if how == "cordoned":
        closed["spec"] = {**closed.get("spec", {}), "unschedulable": True}
    ready = {"type": "Ready", "status": "False" if how == "not ready" else "True"}
    closed["status"] = {**closed["status"], "conditions": [ready]}
    world.api.put(closed)
    if how == "gone":
        del world.api.objects[Ref(NODE, "", "n1")]
    world.api.tell(world.cache)


@pytest.mark.parametrize("how", ["cordoned", "not ready", "gone"])
@pytest.mark.asyncio
async def test_no_pod_is_bound_to_a_node_that_was_closed_since_the_plan(how: str) -> None:
    world = World("a")
    world.begin(plan("ns/a-0"))
    close(world, how)
    async with world.at_work():
        await world.binder.until_idle()
    assert BIND not in world.api.calls
    assert world.bound_tasks == []
    assert f"the node is {how} by now" in world.problem("a")


@pytest.mark.asyncio
async def test_no_pod_is_bound_to_a_node_that_was_cordoned_while_the_session_ran() -> None:
    world = World("a")
    snapshot = world.cache.snapshot(0)
    close(world, "cordoned")
    world.binder.carry_out(plan("ns/a-0"), snapshot)
    async with world.at_work():
        await world.binder.until_idle()
    assert world.api.calls == []
    assert "the node is cordoned by now" in world.problem("a")


class Step:
    """An event that happens while a request before a bind waits for its response."""

    def __init__(self, world: World, happens: Callable[[], None]) -> None:
        self._patch, self._happens = world.api.patch, happens
        world.api.patch = self  # type: ignore[method-assign]

    async def __call__(self, *arguments: Any) -> Any:
        found = await self._patch(*arguments)
        self._happens()
        return found


def gated_world() -> tuple[World, Plan]:
    """Return a world and a plan that removes the gate of a pod before the bind."""
    world = World("a")
    held = pod_of("a-0")
    held["metadata"]["annotations"][GATE] = "true"
    held["spec"]["schedulingGates"] = [{"name": GATE}]
    world.api.put(held)
    world.api.tell(world.cache)
    return world, plan("ns/a-0")


def recorded_world() -> tuple[World, Plan]:
    """Return a world and a plan that records the devices of a pod before the bind."""
    world = World("a")
    allocate = Allocate("ns/a-0", "n1", "ns/a", (GpuShare("GPU-x", 3000, 50),))
    return world, replace(plan("ns/a-0"), actions=(allocate,))


WORLDS = [claiming_world, gated_world, recorded_world]


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.asyncio
async def test_no_bind_follows_a_slow_request_during_which_the_node_was_cordoned(
    make: Callable[[], tuple[World, Plan]],
) -> None:
    world, made = make()
    Step(world, lambda: close(world, "cordoned"))
    world.begin(made)
    async with world.at_work():
        await world.binder.until_idle()
    assert BIND not in world.api.calls
    assert world.failures["ns/a-0"].reason == "NodeClosed"


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.asyncio
async def test_no_bind_follows_a_slow_request_during_which_the_lease_was_lost(
    make: Callable[[], tuple[World, Plan]],
) -> None:
    world, made = make()
    Step(world, lambda: setattr(world, "leads", False))
    world.begin(made)
    async with world.at_work():
        await world.binder.until_idle()
    assert BIND not in world.api.calls
    assert (world.bound_tasks, world.failures) == ([], {})


@pytest.mark.asyncio
async def test_a_bind_whose_answer_was_lost_keeps_its_devices_on_a_node_that_was_cordoned() -> None:
    world, made = claiming_world()
    world.api.lose("bind", LOST)
    world.begin(made)
    async with world.at_work():
        while BIND not in world.api.calls:
            await asyncio.sleep(0)
        close(world, "cordoned")
        await world.binder.until_idle()
    assert world.api.calls.count(BIND) == 1
    assert (world.bound_tasks, world.failures) == (["ns/a-0"], {})
    assert allocation(world)


@pytest.mark.asyncio
async def test_a_pod_that_tolerates_a_cordoned_node_is_bound_to_it() -> None:
    world = World("a")
    close(world, "cordoned")
    await world.carry_out("ns/a-0")
    assert world.bound_tasks == ["ns/a-0"]
