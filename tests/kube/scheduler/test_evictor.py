from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import POD, POD_GROUP, Ref
from optsched.api.wellknown import EVICTED
from optsched.cluster.decisions import Allocate, Certificate, Evict, Nominate, Plan
from optsched.cluster.relocation import MOVES, read_moves
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.client.errors import (
    Conflict,
    Forbidden,
    NotFound,
    ServerFault,
    TooMany,
    Unreachable,
)
from optsched.kube.runtime.work_queues import WriteQueue
from optsched.kube.scheduler.binder import GangBackoff
from optsched.kube.scheduler.evictor import PATIENCE_S, POLL_S, Evictor, EvictorContext
from optsched.kube.scheduler.outcomes import evicted
from optsched.kube.scheduler.status import StatusPatch
from optsched.kube.scheduler.status_writer import make_writer
from tests.formats.objects import group, node, pod, queue
from tests.kube.fakes import FakeApi, FakeClock, running, waiting

if TYPE_CHECKING:
    from optsched.cluster.decisions import Action
    from optsched.cluster.task import Task
    from optsched.kube.client.errors import KubeError
    from optsched.kube.scheduler.outcomes import Victim
    from optsched.kube.scheduler.status_writer import Write

EVICT = Evict("ns/old-0", "n1", "reclaim", "ns/new")
NOMINATE = Nominate("ns/new-0", "n1", "ns/new")
BUDGET = TooMany(429, "TooManyRequests", "Cannot evict pod as it would violate the budget", 10.0)


def member(name: str, **spec: Any) -> dict[str, Any]:
    mark = {"scheduling.k8s.io/group-name": name.partition("-")[0]}
    status = {"phase": "Running"} if spec else {}
    return pod(name, spec, status, annotations=mark)


class World:
    """A running gang, a waiting gang, and an evictor."""

    def __init__(self) -> None:
        gangs = (group("old"), group("new"))
        self.api = FakeApi(node("n1"), *gangs, member("old-0", nodeName="n1"), member("new-0"))
        self.cache = ClusterCache()
        self.api.tell(self.cache)
        self.leads = True
        self.gone: list[str] = []
        self.victims: list[Victim] = []
        self.stays: dict[str, str] = {}
        self.kept: dict[str, str] = {}
        self.slept: list[float] = []
        ways = waiting(FakeClock(), self.slept)
        self.writes = WriteQueue(make_writer(self.api, lambda: self.leads), ways, on_failure=print)
        self.holds = GangBackoff(self.cache, FakeClock())
        around = EvictorContext(self, ways, self.holds, lambda: self.leads)
        self.evictor = Evictor(self.api, self.cache, self.writes, around)

    def evicted(self, victim: Victim) -> None:
        self.victims.append(victim)
        self.gone.append(victim.eviction.task)

    def not_evicted(self, victim: Victim, error: KubeError) -> None:
        self.stays[victim.eviction.task] = str(error)

    def spared(self, victim: Victim, why: str) -> None:
        self.kept[victim.eviction.task] = why

    def begin(self, *actions: Action) -> None:
        snapshot = self.cache.snapshot(0)
        self.evictor.carry_out(Plan(actions, Certificate((), "greedy", 0.0, "")), snapshot)

    async def carry_out(self, *actions: Action) -> None:
        self.begin(*actions)
        async with running(self.evictor.run(), self.writes.run()):
            await self.evictor.until_idle()
            await self.writes.until_idle()

    def task(self, key: str) -> Task:
        """Return a task as the next session sees it."""
        tasks = {task.key: task for gang in self.cache.snapshot(0).gangs for task in gang.tasks}
        return tasks[key]

    @property
    def nominated(self) -> str | None:
        """Return the nominated node of the pod on the server."""
        status = self.api.objects[Ref(POD, "ns", "new-0")]["status"]
        return status.get("nominatedNodeName")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("own_s", "max_s", "granted_s"),
    [(10**9, 600, 600), (600, 600, 600), (5, 600, 5), (0, 600, 0), (10**9, None, 10**9)],
)
async def test_a_victim_takes_no_longer_than_the_administrator_grants(
    own_s: int, max_s: int | None, granted_s: int
) -> None:
    """A pod with a shorter grace period keeps its period."""
    world = World()
    ref = Ref(POD, "ns", "old-0")
    slow = member("old-0", nodeName="n1", terminationGracePeriodSeconds=own_s)
    world.api.put(slow)
    world.api.tell(world.cache)
    ways = waiting(FakeClock(), world.slept)
    around = EvictorContext(world, ways, world.holds, lambda: True, max_s)
    world.evictor = Evictor(world.api, world.cache, world.writes, around)
    await world.carry_out(NOMINATE, EVICT)
    assert world.api.objects[ref]["metadata"]["deletionGracePeriodSeconds"] == granted_s


@pytest.mark.asyncio
async def test_what_is_planned_counts_at_once() -> None:
    world = World()
    world.begin(NOMINATE, EVICT)
    assert world.task("ns/old-0").status is TaskStatus.RELEASING
    assert world.task("ns/new-0").nominated_node == "n1"
    assert world.api.calls == []


@pytest.mark.asyncio
async def test_the_room_is_nominated_before_it_is_made() -> None:
    world = World()
    await world.carry_out(NOMINATE, EVICT)
    assert world.api.calls == [
        "patch Pod ns/new-0 status",
        "patch PodGroup ns/old",
        "evict Pod ns/old-0",
    ]
    assert world.nominated == "n1"
    assert world.gone == ["ns/old-0"]


@pytest.mark.asyncio
async def test_a_gang_is_told_first_which_of_its_pods_go() -> None:
    world = World()
    uid = world.task("ns/old-0").uid
    await world.carry_out(EVICT)
    assert world.api.calls == ["patch PodGroup ns/old", "evict Pod ns/old-0"]
    annotations = world.api.objects[Ref(POD_GROUP, "ns", "old")]["metadata"]["annotations"]
    assert annotations[EVICTED] == f"old-0={uid}"


@pytest.mark.asyncio
async def test_a_nomination_that_stands_is_not_written_again() -> None:
    world = World()
    await world.carry_out(NOMINATE)
    await world.carry_out(NOMINATE)
    assert len(world.api.writes) == 1


@pytest.mark.asyncio
async def test_a_nomination_ends_when_its_gang_has_no_place_any_more() -> None:
    world = World()
    await world.carry_out(NOMINATE)
    await world.carry_out(Allocate("ns/new-0", "n1", "ns/new"))
    assert world.nominated == "n1"
    await world.carry_out()
    assert world.nominated is None
    assert world.task("ns/new-0").nominated_node == ""


@pytest.mark.asyncio
async def test_a_pod_that_is_gone_is_not_evicted() -> None:
    world = World()
    world.api.refuse("evict", NotFound(404, "NotFound", ""))
    await world.carry_out(EVICT)
    assert (world.gone, world.kept) == ([], {"ns/old-0": "ended"})


@pytest.mark.asyncio
async def test_a_pod_that_is_gone_after_a_lost_answer_was_evicted() -> None:
    world = World()
    world.api.lose("evict", Unreachable("cut"))
    await world.carry_out(EVICT)
    assert (world.gone, world.kept) == (["ns/old-0"], {})


@pytest.mark.asyncio
async def test_a_lost_request_is_sent_again() -> None:
    world = World()
    world.api.refuse("evict", Unreachable("cut"))
    await world.carry_out(EVICT)
    assert world.gone == ["ns/old-0"]
    assert [seconds for seconds in world.slept if seconds != POLL_S] == [0.5]


@pytest.mark.parametrize("error", [BUDGET, Forbidden(403, "Forbidden", "you may not")])
@pytest.mark.asyncio
async def test_a_pod_that_may_not_go_counts_as_running_again(error: KubeError) -> None:
    world = World()
    world.api.refuse("evict", error)
    await world.carry_out(EVICT)
    assert world.stays == {"ns/old-0": str(error)}
    assert world.gone == []
    assert world.task("ns/old-0").status is TaskStatus.RUNNING


@pytest.mark.asyncio
async def test_a_pod_that_is_elsewhere_by_now_is_left_alone() -> None:
    world = World()
    await world.carry_out(Evict("ns/old-0", "n2", "reclaim", "ns/new"))
    await world.carry_out(Evict("ns/none", "n1", "reclaim", "ns/new"))
    assert world.api.calls == []


@pytest.mark.asyncio
async def test_who_does_not_lead_evicts_nobody() -> None:
    world = World()
    world.leads = False
    await world.carry_out(EVICT)
    assert world.api.calls == []
    assert world.task("ns/old-0").status is TaskStatus.RUNNING


@pytest.mark.asyncio
async def test_what_has_not_begun_can_be_withdrawn() -> None:
    world = World()
    world.begin(EVICT)
    world.evictor.withdraw()
    await world.carry_out()
    assert world.gone == []
    assert world.task("ns/old-0").status is TaskStatus.RUNNING


@pytest.mark.asyncio
async def test_who_asked_for_an_eviction_that_failed_is_left_alone_for_a_while() -> None:
    world = World()
    world.api.refuse("evict", BUDGET)
    world.begin(EVICT, NOMINATE)
    async with running(world.writes.run(), world.evictor.run()):
        await world.evictor.until_idle()
    (gang,) = (g for g in world.cache.snapshot(0).gangs if g.key == "ns/new")
    assert gang.problem is not None
    assert gang.problem.code.value == "EvictionFailed"
    assert "pod ns/old-0 could not be evicted from n1" in gang.problem.message


# --- pods of which nobody has told that they are bound -------------------------------------------

YOUNG = Evict("ns/new-0", "n1", "reclaim", "ns/old")


def binding() -> World:
    """Return a world in which a pod is being bound when its eviction is planned."""
    world = World()
    world.cache.assume_bound("ns/new-0", "n1")
    world.begin(YOUNG)
    return world


def residents(world: World) -> dict[str, TaskStatus]:
    (node,) = world.cache.snapshot(0).nodes
    return {task.key: task.status for task in node.residents}


@pytest.mark.asyncio
async def test_a_pod_that_is_being_bound_keeps_its_room_until_it_is_gone() -> None:
    world = binding()
    before = {"ns/old-0": TaskStatus.RUNNING, "ns/new-0": TaskStatus.RELEASING}
    assert residents(world) == before
    world.api.objects[Ref(POD, "ns", "new-0")]["status"]["reason"] = "something else"
    world.api.tell(world.cache)
    assert residents(world) == before


@pytest.mark.asyncio
async def test_a_pod_is_evicted_once_it_is_bound() -> None:
    world = binding()
    async with running(world.evictor.run(), world.writes.run()):
        while len(world.slept) < 3:
            await asyncio.sleep(0)
        assert world.gone == []
        pod = world.api.objects[Ref(POD, "ns", "new-0")]
        await world.api.bind("ns", "new-0", pod["metadata"]["uid"], "n1", {})
        world.api.tell(world.cache)
        await world.evictor.until_idle()
    assert world.gone == ["ns/new-0"]


@pytest.mark.asyncio
async def test_a_pod_that_was_not_bound_is_not_lost() -> None:
    world = binding()
    world.cache.forget("ns/new-0")
    await world.carry_out()
    assert world.gone == []
    assert "evict Pod ns/new-0" not in world.api.calls
    assert world.task("ns/new-0").status is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_a_pod_that_is_being_bound_stays_bound_when_its_eviction_is_withdrawn() -> None:
    world = binding()
    world.evictor.withdraw()
    assert world.task("ns/new-0").status is TaskStatus.BOUND
    assert residents(world)["ns/new-0"] is TaskStatus.BOUND


# --- moves ---------------------------------------------------------------------------------------

MOVE = Evict("ns/old-0", "n1", "consolidation", "ns/new", to="n2")


def recorded(world: World) -> str | None:
    """Return the record of moves on the server."""
    meta = world.api.objects[Ref(POD_GROUP, "ns", "new")]["metadata"]
    found: str | None = (meta.get("annotations") or {}).get(MOVES)
    return found


@pytest.mark.asyncio
async def test_what_moves_is_recorded_before_it_goes() -> None:
    world = World()
    await world.carry_out(NOMINATE, MOVE)
    (gang,) = (g for g in world.cache.snapshot(0).gangs if g.key == "ns/new")
    assert [m.to for m in read_moves(gang.annotations[MOVES])] == ["n2"]
    assert world.api.calls[-1] == "evict Pod ns/old-0"
    assert "patch PodGroup ns/new" in world.api.calls
    (move,) = read_moves(recorded(world) or "")
    assert (move.task, move.uid, move.gang, move.queue) == (
        "ns/old-0",
        world.task("ns/old-0").uid,
        "ns/old",
        "default",
    )


@pytest.mark.asyncio
async def test_a_record_ends_when_what_it_says_has_no_meaning() -> None:
    """The node n2 does not exist, so no capacity can be reserved there."""
    world = World()
    await world.carry_out(MOVE)
    assert recorded(world)
    await world.carry_out()
    assert recorded(world) is None
    world.api.tell(world.cache)
    (gang,) = (g for g in world.cache.snapshot(0).gangs if g.key == "ns/new")
    assert MOVES not in gang.annotations


@pytest.mark.asyncio
async def test_a_record_that_was_not_written_is_withdrawn() -> None:
    world = World()
    world.begin(MOVE)
    world.evictor.withdraw()
    (gang,) = (g for g in world.cache.snapshot(0).gangs if g.key == "ns/new")
    assert MOVES not in gang.annotations


@pytest.mark.asyncio
async def test_a_nomination_ends_when_the_gang_starts_without_its_pod() -> None:
    world = World()
    world.api.put(member("new-1"))
    world.api.tell(world.cache)
    await world.carry_out(NOMINATE)
    await world.carry_out(Allocate("ns/new-1", "n1", "ns/new"))
    assert world.nominated is None


@pytest.mark.asyncio
async def test_a_nomination_that_was_not_written_is_written_by_the_next_plan() -> None:
    """A process that leads again must not assume the nominations of its last term."""
    world = World()
    world.begin(NOMINATE)
    world.evictor.withdraw()
    world.writes.clear()
    assert world.task("ns/new-0").nominated_node == ""
    await world.carry_out(NOMINATE)
    assert world.nominated == "n1"


@pytest.mark.asyncio
async def test_a_nomination_is_not_written_once_the_pod_is_being_bound() -> None:
    world = World()
    world.begin(NOMINATE)
    await world.carry_out(Allocate("ns/new-0", "n1", "ns/new"))
    assert world.api.calls == []


@pytest.mark.asyncio
async def test_a_pod_without_a_podgroup_keeps_its_own_record() -> None:
    world = World()
    await world.api.create(Ref(POD, "ns", "lone"), pod("lone", {}))
    world.api.tell(world.cache)
    await world.carry_out(Evict("ns/old-0", "n1", "consolidation", "ns/pod:lone", to="n2"))
    assert "patch Pod ns/lone status" in world.api.calls
    meta = world.api.objects[Ref(POD, "ns", "lone")]["metadata"]
    assert [m.to for m in read_moves(meta["annotations"][MOVES])] == ["n2"]


# --- for plugins ---------------------------------------------------------------------------------

ASIDE = Evict("ns/old-0", "n1", "shuffle", "", plugin="tdm", reason="node n1 is not lent")


@pytest.mark.asyncio
async def test_when_a_plugin_had_pods_evicted_is_remembered() -> None:
    world = World()
    assert world.cache.snapshot(0).last_shuffle_ms == {}
    await world.carry_out(ASIDE)
    assert world.gone == ["ns/old-0"]
    assert world.cache.snapshot(0).last_shuffle_ms == {"tdm": 0}


@pytest.mark.asyncio
async def test_another_scheduler_finds_when_it_was_on_the_podgroup() -> None:
    world = World()
    await world.carry_out(ASIDE)
    assert world.api.calls.index("patch PodGroup ns/old") < world.api.calls.index(
        "evict Pod ns/old-0"
    )
    meta = world.api.objects[Ref(POD_GROUP, "ns", "old")]["metadata"]
    assert meta["annotations"]["optsched.io/shuffled-by-tdm"] == "1970-01-01T00:00:00Z"
    another = ClusterCache()
    world.api.tell(another)
    assert another.snapshot(0).last_shuffle_ms == {"tdm": 0}


@pytest.mark.asyncio
async def test_nobody_is_held_for_an_eviction_for_a_plugin_that_failed() -> None:
    world = World()
    world.api.refuse("evict", BUDGET)
    await world.carry_out(ASIDE)
    assert list(world.stays) == ["ns/old-0"]
    assert all(gang.problem is None for gang in world.cache.snapshot(0).gangs)


# --- only what was planned, stands, and is still needed ------------------------------------------


def change(world: World, name: str, **status: Any) -> None:
    """Change the status of a pod without updating the cache."""
    known = world.api.objects[Ref(POD, "ns", name)]
    world.api.put({**known, "status": {**known["status"], **status}})


def mark(world: World) -> str | None:
    """Return the record of evicted pods on the PodGroup `old`."""
    found: str | None = (
        world.api.objects[Ref(POD_GROUP, "ns", "old")]["metadata"]
        .get("annotations", {})
        .get(EVICTED)
    )
    return found


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.asyncio
async def test_a_pod_that_has_ended_is_not_evicted(phase: str, *, is_told: bool) -> None:
    world = World()
    world.begin(NOMINATE, EVICT)
    change(world, "old-0", phase=phase)
    if is_told:
        world.api.tell(world.cache)
    await world.carry_out(NOMINATE)
    assert (world.gone, world.kept) == ([], {"ns/old-0": "ended"})
    assert ("evict Pod ns/old-0" in world.api.calls) is not is_told
    assert "deletionTimestamp" not in world.api.objects[Ref(POD, "ns", "old-0")]["metadata"]
    assert mark(world) is None


@pytest.mark.asyncio
async def test_a_pod_that_stands_and_has_changed_is_evicted_as_it_is_now() -> None:
    world = World()
    world.begin(NOMINATE, EVICT)
    change(world, "old-0", reason="something else")
    await world.carry_out(NOMINATE)
    assert world.gone == ["ns/old-0"]
    assert world.api.calls[-3:] == [
        "evict Pod ns/old-0",
        "read Pod ns/old-0",
        "evict Pod ns/old-0",
    ]


@pytest.mark.asyncio
async def test_a_pod_that_never_stops_to_change_stays() -> None:
    world = World()
    world.api.refuse("evict", *[Conflict(409, "Conflict", "changed")] * 9)
    await world.carry_out(NOMINATE, EVICT)
    assert world.stays == {"ns/old-0": "409 Conflict: changed"}
    assert sum(call.startswith("evict") for call in world.api.calls) == 6


@pytest.mark.asyncio
async def test_a_pod_whose_room_is_not_needed_any_more_stays() -> None:
    world = World()
    world.begin(NOMINATE, EVICT)
    await world.carry_out(Allocate("ns/new-0", "n2", "ns/new"))
    assert (world.gone, world.kept) == ([], {"ns/old-0": "unwanted"})
    assert world.task("ns/old-0").status is TaskStatus.RUNNING
    assert mark(world) is None


@pytest.mark.asyncio
async def test_a_pod_whose_room_is_still_needed_goes() -> None:
    world = World()
    world.begin(NOMINATE, EVICT)
    await world.carry_out(NOMINATE)
    assert (world.gone, world.kept) == (["ns/old-0"], {})


@pytest.mark.parametrize(
    "error", [ServerFault(500, "", ""), Unreachable("cut"), Conflict(409, "Conflict", "")]
)
@pytest.mark.asyncio
async def test_an_eviction_that_failed_is_not_sent_again_once_it_is_not_needed(
    error: KubeError,
) -> None:
    """A later plan places the gang elsewhere while the request is under way."""
    world = World()
    asked = asyncio.Event()

    async def evict(*_: object, **__: object) -> None:
        world.api.calls.append("refused")
        asked.set()
        await asyncio.sleep(0)
        raise error

    world.api.evict = evict  # type: ignore[method-assign,assignment]
    world.begin(NOMINATE, EVICT)
    async with running(world.evictor.run(), world.writes.run()):
        await asked.wait()
        world.begin(Allocate("ns/new-0", "n2", "ns/new"))
        await world.evictor.until_idle()
        await world.writes.until_idle()
    assert world.api.calls.count("refused") == 1
    assert (world.gone, world.kept) == ([], {"ns/old-0": "unwanted"})
    assert world.task("ns/old-0").status is TaskStatus.RUNNING
    assert mark(world) is None


@pytest.mark.asyncio
async def test_an_eviction_that_is_withdrawn_during_the_read_of_its_pod_is_spared_once() -> None:
    """Another eviction of the pod is planned meanwhile, and stays planned."""
    world = World()
    asked, evict, read = asyncio.Event(), world.api.evict, world.api.read

    async def refuse(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.sleep(0)
        raise Unreachable("cut")

    async def withdraw(ref: Ref) -> Any:
        world.api.evict, world.api.read = evict, read  # type: ignore[method-assign]
        world.evictor.withdraw()
        world.begin(NOMINATE, EVICT)
        return await read(ref)

    world.api.evict = refuse  # type: ignore[method-assign,assignment]
    world.begin(NOMINATE, EVICT)
    async with running(world.evictor.run(), world.writes.run()):
        await asked.wait()
        world.begin(Allocate("ns/new-0", "n2", "ns/new"))
        world.api.read = withdraw  # type: ignore[method-assign]
        await world.evictor.until_idle()
        await world.writes.until_idle()
    assert (world.gone, world.kept) == (["ns/old-0"], {"ns/old-0": "stood-down"})


@pytest.mark.asyncio
async def test_an_eviction_whose_answer_was_lost_counts_although_it_is_not_needed() -> None:
    world = World()
    asked, evict = asyncio.Event(), world.api.evict

    async def lose(*args: Any, **kwargs: Any) -> None:
        await evict(*args, **kwargs)
        asked.set()
        await asyncio.sleep(0)
        raise Unreachable("cut")

    world.api.evict = lose  # type: ignore[method-assign,assignment]
    world.begin(NOMINATE, EVICT)
    async with running(world.evictor.run(), world.writes.run()):
        await asked.wait()
        world.begin(Allocate("ns/new-0", "n2", "ns/new"))
        await world.evictor.until_idle()
    assert (world.gone, world.kept) == (["ns/old-0"], {})


@pytest.mark.parametrize(
    ("minimum", "kept"), [(2, {}), (1, {"ns/old-1": "unwanted"}), (0, {"ns/old-1": "unwanted"})]
)
@pytest.mark.asyncio
async def test_a_gang_that_leaves_as_a_whole_is_not_torn(
    minimum: int, kept: dict[str, str]
) -> None:
    """The second of two victims is still being bound when a later plan needs neither victim."""
    world = World()
    world.api.put(group("old", {"minMember": minimum}))
    world.api.put(member("old-1"))
    world.api.tell(world.cache)
    uid = world.cache.assume_bound("ns/old-1", "n1")
    world.begin(NOMINATE, EVICT, Evict("ns/old-1", "n1", "reclaim", "ns/new"))
    async with running(world.evictor.run(), world.writes.run()):
        while not world.gone:
            await asyncio.sleep(0)
        assert world.evictor.count_waiting() == {"bind": 1, "answer": 0}
        world.begin()
        await world.api.bind("ns", "old-1", uid, "n1", {})
        world.api.tell(world.cache)
        await world.evictor.until_idle()
    assert world.kept == kept
    assert world.gone == ["ns/old-0", "ns/old-1"][: 2 - len(kept)]


PAIR = (EVICT, Evict("ns/old-1", "n1", "reclaim", "ns/new"))


def pair(minimum: int) -> World:
    """Return a world where the gang `old` has two running pods."""
    world = World()
    world.api.put(group("old", {"minMember": minimum}))
    world.api.put(member("old-1", nodeName="n1"))
    world.api.tell(world.cache)
    return world


@pytest.mark.parametrize("num_evicted", [0, 1, 2])
@pytest.mark.asyncio
async def test_a_gang_whose_evictions_failed_stays_unless_one_of_its_pods_has_left(
    num_evicted: int,
) -> None:
    """Both requests fail, and the server has carried out some of them."""
    world = pair(minimum=2)
    evict, num_asked = world.api.evict, 0

    async def fail(*args: Any, **kwargs: Any) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked <= num_evicted:
            await evict(*args, **kwargs)
        await asyncio.sleep(0)
        if num_asked == 2:
            world.begin(Allocate("ns/new-0", "n2", "ns/new"))
            world.api.evict = evict  # type: ignore[method-assign]
        raise Unreachable("cut")

    world.api.evict = fail  # type: ignore[method-assign,assignment]
    world.begin(NOMINATE, *PAIR)
    async with running(world.evictor.run(), world.writes.run()):
        await world.evictor.until_idle()
        await world.writes.until_idle()
    both = {"ns/old-0", "ns/old-1"}
    assert set(world.gone) == (both if num_evicted else set())
    assert world.kept == ({} if num_evicted else dict.fromkeys(both, "unwanted"))
    assert (mark(world) is None) is not num_evicted
    assert {world.task(key).status for key in both} == {
        TaskStatus.RELEASING if num_evicted else TaskStatus.RUNNING
    }


@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.asyncio
async def test_a_gang_that_leaves_for_two_others_is_not_torn(minimum: int) -> None:
    """A later plan needs only one of the two victims."""
    world = pair(minimum)
    world.api.put(group("next"))
    world.api.put(member("next-0"))
    world.api.tell(world.cache)
    other = Nominate("ns/next-0", "n1", "ns/next")
    world.begin(NOMINATE, other, EVICT, Evict("ns/old-1", "n1", "reclaim", "ns/next"))
    await world.carry_out(other, Allocate("ns/new-0", "n2", "ns/new"))
    if minimum == 1:
        assert (world.gone, world.kept) == (["ns/old-1"], {"ns/old-0": "unwanted"})
    else:
        assert (set(world.gone), world.kept) == ({"ns/old-0", "ns/old-1"}, {})


# --- what an eviction waits for ------------------------------------------------------------------


@pytest.mark.asyncio
async def test_writes_of_others_hold_up_no_eviction() -> None:
    """A webhook in another namespace permanently refuses a PodGroup."""
    world = World()
    broken = ServerFault(500, "InternalError", "failed calling webhook")
    other = Ref(POD_GROUP, "other", "g")

    async def write(ref: Ref, what: Write) -> None:
        if ref == other:
            raise broken
        await make_writer(world.api, lambda: True)(ref, what)

    world.writes = WriteQueue(write, waiting(FakeClock()), on_failure=lambda *_: None)
    around = EvictorContext(world, waiting(FakeClock()), world.holds, lambda: True)
    world.evictor = Evictor(world.api, world.cache, world.writes, around)
    world.writes.enqueue(other, StatusPatch(other, {"status": {}}, ""))
    world.begin(NOMINATE, EVICT)
    async with running(world.evictor.run(), world.writes.run()):
        await world.evictor.until_idle()
        assert not world.writes.is_written(other)
    assert world.gone == ["ns/old-0"]
    assert world.nominated == "n1"


@pytest.mark.asyncio
async def test_an_eviction_waits_for_its_nomination_until_a_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.begin(NOMINATE, EVICT)
    assert world.evictor.count_waiting() == {"nomination": 1, "answer": 0}
    async with running(world.evictor.run()):  # no nominations are written
        await world.evictor.until_idle()
    assert world.gone == ["ns/old-0"]
    assert world.slept.count(POLL_S) == round(PATIENCE_S / POLL_S)
    waits, goes = (record.getMessage() for record in caplog.records)
    assert waits == (
        "eviction of ns/old-0 waits: for=nomination gang=ns/new "
        "unwritten=Pod ns/new-0, PodGroup ns/old/evicted"
    )
    assert "is sent before its nominations are written: gang=ns/new" in goes
    assert world.evictor.count_waiting() == {"answer": 0}


# --- guarantees that override disruption budgets -------------------------------------------------

REFUSED = TooMany(
    429,
    "TooManyRequests",
    "Cannot evict pod as it would violate the pod's disruption budget.",
    causes=(("", "The disruption budget keep needs 1 healthy pods and has 1 currently"),),
    cause_reasons=frozenset({"DisruptionBudget"}),
)
SEVERAL = ServerFault(
    500,
    "",
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
    "support.",
)
OLD = Ref(POD, "ns", "old-0")


def guaranteed(cpus: str = "1", *, overrides: bool = True) -> World:
    """Return a world where queue `team` has a guarantee, and `lab` lends to it."""
    world = World()
    api = world.api
    team = queue("team", guarantee={"resource": {"cpu": cpus}})
    lab = queue("lab")
    for obj in (team, lab, group("old", {"queue": "lab"}), group("new", {"queue": "team"})):
        api.put(obj)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "ns"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 0},
    }
    api.put(budget)
    options = DecodeOptions(guarantees_override_budgets=overrides)
    world.cache = ClusterCache(options)
    api.tell(world.cache)
    ways = waiting(FakeClock(), world.slept)
    world.holds = GangBackoff(world.cache, FakeClock())
    around = EvictorContext(
        world, ways, world.holds, lambda: world.leads, overrides_budgets=overrides
    )
    world.evictor = Evictor(api, world.cache, world.writes, around)
    return world


@pytest.mark.asyncio
@pytest.mark.parametrize("refusal", [REFUSED, SEVERAL])
async def test_a_reclaim_within_a_guarantee_deletes_the_pod_of_a_budget(
    refusal: KubeError, caplog: pytest.LogCaptureFixture
) -> None:
    world = guaranteed()
    world.api.refuse("evict", refusal)
    await world.carry_out(NOMINATE, EVICT)
    assert world.api.calls[-4:] == [
        "evict Pod ns/old-0",
        "read Pod ns/old-0",
        "patch Pod ns/old-0 status",
        "delete Pod ns/old-0",
    ]
    assert (world.gone, world.stays) == (["ns/old-0"], {})
    (condition,) = world.api.objects[OLD]["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    text = "the guarantee of queue team overrides the disruption budget ns/keep"
    assert condition["message"] == text
    assert f"ns/old-0 deleted despite its budgets: {text} gang=ns/new" in caplog.text
    (victim,) = world.victims
    assert evicted(victim).message.endswith(f"for ns/new; {text}")


@pytest.mark.asyncio
async def test_within_the_budget_the_eviction_api_is_enough() -> None:
    world = guaranteed()
    await world.carry_out(NOMINATE, EVICT)
    assert world.api.calls[-1] == "evict Pod ns/old-0"
    assert world.victims[0].overridden == ""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("cpus", "overrides", "action"),
    [("1", False, "reclaim"), ("500m", True, "reclaim"), ("1", True, "preempt")],
    ids=["off", "beyond the guarantee", "preempt"],
)
async def test_every_other_eviction_waits(cpus: str, action: str, *, overrides: bool) -> None:
    world = guaranteed(cpus, overrides=overrides)
    world.api.refuse("evict", REFUSED)
    await world.carry_out(NOMINATE, Evict("ns/old-0", "n1", action, "ns/new"))
    assert not any(call.startswith("delete") for call in world.api.calls)
    assert world.stays == {"ns/old-0": str(REFUSED)}


@pytest.mark.asyncio
async def test_only_refusals_because_of_a_budget_are_overridden() -> None:
    world = guaranteed()
    world.api.refuse("evict", TooMany(429, "TooManyRequests", "the server is busy"))
    await world.carry_out(NOMINATE, EVICT)
    assert not any(call.startswith("delete") for call in world.api.calls)


@pytest.mark.asyncio
async def test_a_pod_that_changes_meanwhile_is_asked_for_again() -> None:
    """The deletion has the UID and the resource version of the planned pod as preconditions."""
    world = guaranteed()
    world.api.refuse("evict", REFUSED, REFUSED)
    pod = world.api.objects[OLD]
    world.api.put({**pod, "metadata": {**pod["metadata"], "labels": {"a": "b"}}})
    await world.carry_out(NOMINATE, EVICT)
    sent = [call.partition(" ")[0] for call in world.api.calls if call.split()[2] == "ns/old-0"]
    assert sent == ["evict", "read", "patch", "read", "evict", "read", "patch", "delete"]
    assert world.gone == ["ns/old-0"]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["read", "patch"])
async def test_no_pod_is_deleted_after_a_slow_request_during_which_the_lease_was_lost(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = guaranteed()
    world.api.refuse("evict", REFUSED)
    request = getattr(world.api, name)

    async def lose_lease(ref: Ref, *args: Any) -> Any:
        world.leads = world.leads and ref != OLD
        return await request(ref, *args)

    monkeypatch.setattr(world.api, name, lose_lease)
    await world.carry_out(NOMINATE, EVICT)
    sent = [call.partition(" ")[0] for call in world.api.calls if call.split()[2] == "ns/old-0"]
    assert sent == ["evict", "read", "patch"][: 2 + (name == "patch")]
    assert (world.gone, world.kept) == ([], {"ns/old-0": "stood-down"})
    assert world.task("ns/old-0").status is TaskStatus.RUNNING


@pytest.mark.asyncio
async def test_another_pod_of_the_same_name_is_not_deleted() -> None:
    world = guaranteed()
    world.api.refuse("evict", REFUSED)
    pod = world.api.objects[OLD]
    world.api.put({**pod, "metadata": {**pod["metadata"], "uid": "other"}})
    await world.carry_out(NOMINATE, EVICT)
    assert not any(call.startswith("delete") for call in world.api.calls)
    assert world.kept == {"ns/old-0": "ended"}


@pytest.mark.asyncio
async def test_without_the_verb_the_error_says_what_is_missing() -> None:
    world = guaranteed()
    world.api.refuse("evict", REFUSED)
    world.api.refuse("delete", Forbidden(403, "Forbidden", 'cannot delete resource "pods"'))
    await world.carry_out(NOMINATE, EVICT)
    assert world.stays["ns/old-0"] == (
        "403 Forbidden: the guarantee of queue team overrides the disruption budget ns/keep, but "
        'the scheduler may not delete pods: cannot delete resource "pods"'
    )
    assert world.task("ns/old-0").status is TaskStatus.RUNNING


def disruption(world: World) -> tuple[str, str]:
    """Return the status and the reason of the victim's condition DisruptionTarget."""
    (condition,) = world.api.objects[OLD]["status"]["conditions"]
    assert condition["type"] == "DisruptionTarget"
    return condition["status"], condition["reason"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error", [Forbidden(403, "Forbidden", "no"), NotFound(404, "NotFound", "no")]
)
async def test_a_pod_whose_deletion_is_refused_is_no_target_of_a_disruption(
    error: KubeError,
) -> None:
    world = guaranteed()
    world.api.refuse("evict", REFUSED)
    world.api.refuse("delete", error)
    world.begin(NOMINATE, EVICT)
    async with running(world.evictor.run(), world.writes.run()):
        await world.evictor.until_idle()
        # Another change between the read of the pod and the reset.
        world.api.refuse("patch", Conflict(409, "Conflict", "changed"))
        await world.writes.until_idle()
    assert world.gone == []
    assert disruption(world) == ("False", "DeletionWithdrawn")


@pytest.mark.asyncio
async def test_a_pod_whose_deletion_is_withdrawn_is_no_target_of_a_disruption() -> None:
    """The deletion fails once, and a later plan does not need the deletion any more."""
    world = guaranteed()
    world.api.refuse("evict", REFUSED)

    async def fail(*_: Any, **__: Any) -> None:
        assert disruption(world) == ("True", "PreemptionByScheduler")
        world.begin(Allocate("ns/new-0", "n2", "ns/new"))
        raise Unreachable("cut")

    world.api.delete = fail  # type: ignore[method-assign,assignment]
    await world.carry_out(NOMINATE, EVICT)
    assert (world.gone, world.kept) == ([], {"ns/old-0": "unwanted"})
    assert disruption(world) == ("False", "DeletionWithdrawn")


@pytest.mark.asyncio
async def test_a_pod_that_is_planned_as_a_victim_again_stays_a_target() -> None:
    world = guaranteed()
    world.api.refuse("evict", *[REFUSED] * 4)
    world.api.refuse("delete", Forbidden(403, "Forbidden", "no"))
    async with running(world.evictor.run(), world.writes.run()):
        world.begin(NOMINATE, EVICT)
        await world.evictor.until_idle()
        world.api.tell(world.cache)
        world.begin(NOMINATE, EVICT)
        await world.evictor.until_idle()
        await world.writes.until_idle()
    assert world.gone == ["ns/old-0"]
    assert disruption(world) == ("True", "PreemptionByScheduler")
