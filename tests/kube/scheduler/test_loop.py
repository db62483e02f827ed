"""The scheduler loop with all its parts, on a fake API server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optsched.api.kinds import EVENT, POD, POD_GROUP, QUEUE, RESOURCE_CLAIMS, Ref
from optsched.cluster.decisions import Plan
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.formats.codec.queues import read_usage
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.client.errors import Forbidden
from optsched.kube.runtime.events import EventRecorder
from optsched.kube.runtime.work_queues import WriteQueue
from optsched.kube.scheduler import loop as module
from optsched.kube.scheduler.binder import BinderContext, LiveBinder
from optsched.kube.scheduler.evictor import Evictor, EvictorContext
from optsched.kube.scheduler.loop import STUCK_S, Scheduler, SchedulerDependencies
from optsched.kube.scheduler.metrics import Metrics
from optsched.kube.scheduler.outcomes import scheduled
from optsched.kube.scheduler.session_services import PolicyFile, SnapshotDumps, SolverSupervisor
from optsched.kube.scheduler.status_writer import make_writer
from optsched.policy.catalogue import PluginSource
from optsched.policy.load import PolicyWatch
from optsched.session.session import SessionContext, run_session
from optsched.session.snapshot_equivalence import limits_for
from optsched.session.warm_start import FIRST_SEED, WarmStart
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.formats.objects import (
    allocated,
    claiming,
    device_claim,
    device_class,
    device_slice,
    group,
    node,
    pod,
    queue,
)
from tests.kube.fakes import FakeApi, FakeClock, running, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from optsched.cluster.snapshot import Snapshot
    from optsched.kube.client.errors import KubeError
    from optsched.kube.scheduler.outcomes import Bind, Failure, Victim
    from optsched.policy.policy import Policy
    from optsched.session.session import Report
    from optsched.solver.cpsat.process import Solver

PERIOD_S = 0.005


class NoSolver:
    """A solver that never becomes ready."""

    pid = None

    def wait_until_ready(self) -> bool:
        return False

    def solve(self, *_: object) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing, because this solver has no process."""


class Plant:
    """A scheduler, and the fake cluster that it schedules."""

    def __init__(self, folder: Path, *objects: dict[str, Any]) -> None:
        self.api = FakeApi(*objects)
        self.clock = FakeClock()
        self.cache = ClusterCache()
        self.metrics = Metrics()
        self.is_leading = True
        self.num_terms = 1
        self.has_lapsed = False
        """Whether the lease is not held at the moment, without the loop having seen that."""
        self.faults: list[str] = []
        self.advice: list[str] = []
        self.plugin = ""
        self.policy = "actions: allocate\ntiers: [{plugins: [{name: gang}, {name: predicates}]}]\n"
        ways = waiting(FakeClock())
        leads: Callable[[], bool] = lambda: self.is_leading and not self.has_lapsed  # noqa: E731
        around = BinderContext(self.clock, self, leads, ways)
        self.binder = LiveBinder(self.api, self.cache, around)
        self.writes = WriteQueue(make_writer(self.api, leads), ways, on_failure=lambda *_: None)
        evicting = EvictorContext(self, ways, self.binder.gang_backoff, leads)
        self.evictor = Evictor(self.api, self.cache, self.writes, evicting)
        self.events = EventRecorder(self.api, self.clock, ways, exists=self.cache.exists)
        shelf = PluginSource(folder, lambda _: (("mine.py", self.plugin),) if self.plugin else ())
        watch = PolicyWatch("policy.conf", lambda _: f"{self.policy}solver: none\n", shelf)
        parts = SchedulerDependencies(
            cache=self.cache,
            binder=self.binder,
            evictor=self.evictor,
            writes=self.writes,
            events=self.events,
            metrics=self.metrics,
            policies=PolicyFile(watch, self.clock, lambda _: None, period_s=PERIOD_S),
            leadership=self,
            dumps=SnapshotDumps(folder),
            clock=self.clock,
            solver=SolverSupervisor(NoSolver(), ways),
            on_fault=self.faults.append,
            on_advice=self.advice.append,
        )
        self._parts = parts
        self.scheduler = Scheduler(parts)

    @property
    def term(self) -> int:
        """Return the number of the current term, or 0 without leadership."""
        return self.num_terms if self.is_leading else 0

    def follow(self, reading: Reading) -> None:
        """Replace the follower by one that the test controls."""
        self.scheduler = Scheduler(replace(self._parts, follower=reading))

    def use_solver(self, solver: Any, period_s: float) -> None:
        """Let the policy use a solver, with a period that leaves time between sessions."""
        text = f"{self.policy}solver: cpsat\n"
        shelf = PluginSource(Path("none"), lambda _: ())
        policies = PolicyFile(
            PolicyWatch("policy.conf", lambda _: text, shelf),
            self.clock,
            lambda _: None,
            period_s=period_s,
        )
        self.scheduler = Scheduler(replace(self._parts, solver=solver, policies=policies))

    def bound(self, bind: Bind, seconds: float) -> None:
        """Record an event for a bound pod."""
        self.events.note(scheduled(bind))

    def failed(self, bind: Bind, failure: Failure) -> None:
        """Ignore the failed bind."""

    def evicted(self, victim: Victim) -> None:
        """Ignore the eviction."""

    def not_evicted(self, victim: Victim, error: KubeError) -> None:
        """Ignore the failed eviction."""

    def spared(self, victim: Victim, why: str) -> None:
        """Ignore the cancelled eviction."""

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Self]:
        """Run the scheduler with a complete cache while the context is open."""
        services = (self.binder, self.evictor, self.writes, self.events.queue)
        async with running(*(service.run() for service in services)):
            loop = asyncio.create_task(self.scheduler.run())
            try:
                self.tell()
                yield self
            finally:
                self.scheduler.stop()
                await loop

    def tell(self, *objects: dict[str, Any]) -> None:
        """Change objects and wake the scheduler."""
        for obj in objects:
            self.api.put(obj)
        self.api.tell(self.cache)
        self.scheduler.wake()

    def node_of(self, name: str) -> str:
        return str(self.api.objects[Ref(POD, "ns", name)]["spec"].get("nodeName", ""))

    def group(self, name: str = "g") -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects[Ref(POD_GROUP, "ns", name)].get("status", {})
        return status

    def reasons(self) -> list[str]:
        """Return the reasons of the PodGroup's conditions."""
        return [condition.get("reason", "") for condition in self.group().get("conditions", ())]

    def count(self, name: str) -> float:
        families = text_string_to_metric_families(self.metrics.exposition().decode())
        samples = (sample for family in families for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == name)

    async def skip(self) -> None:
        """Change an irrelevant object until a session is skipped."""
        before = self.count("optsched_sessions_skipped_total")
        async with asyncio.timeout(10):
            while self.count("optsched_sessions_skipped_total") == before:
                self.tell(node())
                await asyncio.sleep(0.005)

    async def sessions(self, number: int) -> None:
        """Wait until the given total number of sessions has run."""
        await until(lambda: self.count("optsched_sessions_total") >= number)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


def dumped(folder: Path, sort: str) -> list[Path]:
    return list(folder.glob(f"optsched-{sort}-*.json"))


def members(*names: str) -> list[dict[str, Any]]:
    mark = {"scheduling.k8s.io/group-name": "g"}
    return [pod(name, annotations=mark) for name in names]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.005)


@pytest.mark.asyncio
async def test_a_gang_is_bound_and_says_so(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), group("g", {"minMember": 2}), *members("a", "b"))
    async with plant.at_work():
        await until(lambda: plant.node_of("a") == plant.node_of("b") == "n1")
        mark = {"scheduling.k8s.io/group-name": "g"}
        started = {"phase": "Running"}
        plant.tell(*(pod(n, {"nodeName": "n1"}, started, annotations=mark) for n in "ab"))
        await until(lambda: plant.group().get("phase") == "Running")
    (condition,) = plant.group()["conditions"]
    assert (condition["type"], condition["status"]) == ("Scheduled", "True")


@pytest.mark.asyncio
async def test_a_gang_that_does_not_fit_says_why(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), group("g", {"minMember": 3}), *members("a", "b"))
    async with plant.at_work():
        await until(lambda: "conditions" in plant.group())
        await until(lambda: len(plant.api.of(EVENT)) == 3)
    (condition,) = plant.group()["conditions"]
    assert condition["reason"] == "NotEnoughTasks"
    assert plant.node_of("a") == ""
    assert plant.count("optsched_pending_gangs") == 1


@pytest.mark.asyncio
async def test_queues_that_have_to_exist_are_made(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), queue("default", weight=7))
    async with plant.at_work():
        await until(lambda: Ref(QUEUE, "", "root") in plant.api.objects)
    assert plant.api.objects[Ref(QUEUE, "", "default")]["spec"] == {"weight": 7}


@pytest.mark.asyncio
async def test_queues_that_have_to_exist_are_made_again(tmp_path: Path) -> None:
    plant, default = Plant(tmp_path, node()), Ref(QUEUE, "", "default")
    async with plant.at_work():
        await until(lambda: default in plant.api.objects)
        await plant.skip()
        del plant.api.objects[default]
        plant.tell()
        await until(lambda: default in plant.api.objects)


@pytest.mark.asyncio
@pytest.mark.parametrize("users", [(), ("uid-p",)])
async def test_a_claim_of_a_deleted_node_gets_other_devices(
    tmp_path: Path, users: tuple[str, ...]
) -> None:
    """A scheduler that was killed before the bind has reserved the claim for the pod."""
    stranded = device_claim("c", status=allocated("d0", node_name="gone", uids=users))
    devices = (device_class(), device_slice("n1", "d0"), stranded)
    plant = Plant(tmp_path, node(), *devices, pod("p", claiming("c")))
    async with plant.at_work():
        async with asyncio.timeout(10):
            while not plant.node_of("p"):
                plant.tell()
                await asyncio.sleep(0.005)
    (claim,) = plant.api.of(RESOURCE_CLAIMS[0])
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["pool"] == plant.node_of("p") == "n1"
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == ["uid-p"]


@pytest.mark.asyncio
async def test_nothing_is_decided_twice(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), group("g", {"minMember": 3}), *members("a"))
    async with plant.at_work():
        await until(lambda: "conditions" in plant.group())
        await plant.skip()
        decided = int(plant.count("optsched_sessions_total"))
        for _ in range(3):
            await plant.skip()
        assert plant.count("optsched_sessions_total") == decided
        plant.tell(node("n2"))
        await plant.sessions(decided + 1)


@pytest.mark.asyncio
async def test_an_answer_does_not_stand_for_ever(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), group("g", {"minMember": 3}), *members("a"))
    async with plant.at_work():
        await until(lambda: "conditions" in plant.group())
        await plant.skip()
        decided = int(plant.count("optsched_sessions_total"))
        plant.clock.seconds += 61
        await plant.sessions(decided + 1)


@pytest.mark.asyncio
async def test_what_is_asked_again_may_be_searched_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Limits | None] = []

    def noting(*args: Any, **kwargs: Any) -> Report:
        given.append(args[2].limits)
        return run_session(*args, **kwargs)

    monkeypatch.setattr(module, "run_session", noting)
    plant = Plant(tmp_path, node(), group("g", {"minMember": 3}), *members("a"))
    async with plant.at_work():
        await until(lambda: "conditions" in plant.group())
        await plant.skip()
        before = len(given)
        assert given[-1] == Limits(budget_ms=400)
        plant.clock.seconds += 61
        await plant.sessions(before + 1)
        plant.tell(node("n2"))
        await plant.sessions(before + 2)
    assert given[before:] == [limits_for(400, 1), Limits(budget_ms=400)]


class ReadySolver:
    """A supervisor whose solver is ready immediately, or never."""

    def __init__(self, solver: Solver | None) -> None:
        self.available = solver


class LateFinder:
    """Sessions that find no plan, and background solves that find one.

    `sessions` are the contexts of the sessions, and `searches` those of the background solves.
    """

    def __init__(self) -> None:
        self.sessions: list[SessionContext] = []
        self.searches: list[SessionContext] = []
        self.found: list[dict[str, str]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(
        self, snapshot: Snapshot, policy: Policy, context: SessionContext, *rest: Any
    ) -> Report:
        assert context.limits is not None
        is_between = context.limits.seed >= FIRST_SEED
        (self.searches if is_between else self.sessions).append(context)
        report = run_session(snapshot, policy, replace(context, solver=None), *rest)
        if is_between:
            self.found.append(report.plan.binds)
            self.meanwhile()
        elif context.warm_start is None or not context.warm_start.gangs:
            waits = Reason(ReasonCode.RESOURCES, "nothing found")
            pending = {gang.key: waits for gang in snapshot.gangs}
            unproved = replace(report.plan.certificate, levels=())
            return replace(report, plan=Plan((), unproved, pending))
        return report


async def search_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Plant], object]
) -> tuple[Plant, LateFinder]:
    """Let a background solve place a gang while an event happens, and run the next session."""
    finder = LateFinder()
    monkeypatch.setattr(module, "run_session", finder)
    plant = Plant(tmp_path, node(), group("g", {"minMember": 2}), *members("a", "b"))
    plant.use_solver(ReadySolver(InProcess()), period_s=1.0)
    loop = asyncio.get_running_loop()
    finder.meanwhile = partial(loop.call_soon_threadsafe, meanwhile, plant)
    async with plant.at_work():
        await until(lambda: len(finder.sessions) >= 2)
        await until(lambda: plant.count("optsched_sessions_total") >= 2)
    return plant, finder


@pytest.mark.asyncio
async def test_a_plan_found_between_sessions_is_carried_out_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes_before: list[str] = []
    plant, finder = await search_between(
        tmp_path, monkeypatch, lambda p: nodes_before.append(p.node_of("a"))
    )
    assert finder.found == [{"ns/a": "n1", "ns/b": "n1"}]
    assert nodes_before == [""]
    first, second = finder.sessions[:2]
    assert first.warm_start is None
    assert second.warm_start == WarmStart({"ns/g": {"ns/a": "n1", "ns/b": "n1"}})
    assert plant.node_of("a") == plant.node_of("b") == "n1"
    (search,) = finder.searches
    assert search.limits is not None
    assert search.limits.budget_ms is not None
    assert search.limits.budget_ms < 1000


@pytest.mark.asyncio
async def test_a_plan_found_between_sessions_is_dropped_if_it_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is cordoned before the next session begins."""
    cordoned = node(unschedulable=True)
    plant, finder = await search_between(tmp_path, monkeypatch, lambda p: p.tell(cordoned))
    assert finder.found[0] == {"ns/a": "n1", "ns/b": "n1"}
    assert finder.sessions[1].warm_start == WarmStart({"ns/g": finder.found[0]})
    assert plant.node_of("a") == plant.node_of("b") == ""


@pytest.mark.asyncio
async def test_nothing_is_searched_between_sessions_without_a_solver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = LateFinder()
    monkeypatch.setattr(module, "run_session", finder)
    plant = Plant(tmp_path, node(), group("g", {"minMember": 2}), *members("a", "b"))
    plant.use_solver(ReadySolver(None), period_s=1.0)
    async with plant.at_work():
        await until(lambda: plant.count("optsched_sessions_total") >= 1)
        await asyncio.sleep(0.05)
    assert finder.searches == []


@pytest.mark.asyncio
async def test_a_new_policy_is_a_new_question(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), group("g", {"minMember": 3}), *members("a"))
    async with plant.at_work():
        await until(lambda: "conditions" in plant.group())
        await plant.skip()
        decided = int(plant.count("optsched_sessions_total"))
        plant.policy = plant.policy.replace("predicates", "drf")
        plant.clock.seconds += 1
        await plant.sessions(decided + 1)


RAISES = """
from optsched.plugin import Plugin, Rule

class Mine(Rule):
    name = "mine"

    def class_score(self, problem, task_class):
        return 1 / 0

PLUGIN = Plugin("mine", "raises", (), lambda arguments: Mine())
"""


@pytest.mark.asyncio
async def test_what_a_plugin_raises_is_told_once_and_counted_each_time(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), group("g"), *members("a"))
    async with plant.at_work():
        await until(lambda: plant.node_of("a") != "")
        plant.plugin = RAISES
        plant.policy = plant.policy.replace("{name: gang}", "{name: gang}, {name: mine}")
        plant.clock.seconds += 1
        plant.tell(*members("b", "c"))
        await until(lambda: plant.node_of("c") != "")
        plant.tell(*members("d"))
        await until(lambda: plant.node_of("d") != "")
    assert plant.faults == [
        "plugin mine: class_score of rule mine failed at mine.py:8: "
        "ZeroDivisionError: division by zero"
    ]
    assert plant.count("optsched_plugin_failures_total") >= 2


@pytest.mark.asyncio
async def test_who_does_not_lead_changes_nothing(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), group("g"), *members("a"))
    plant.is_leading = False
    async with plant.at_work():
        plant.clock.seconds += STUCK_S + 1
        await until(lambda: plant.scheduler.trouble() == "")
        assert plant.api.calls == []
        assert plant.count("optsched_leading") == 0
        plant.is_leading = True
        await until(lambda: plant.node_of("a") == "n1")
        assert plant.count("optsched_leading") == 1
        plant.is_leading = False
        await until(lambda: plant.count("optsched_leading") == 0)
        assert plant.count("volcano_queue_weight") == 0


@pytest.mark.asyncio
async def test_a_status_is_written_although_leading_lapsed_unnoticed(tmp_path: Path) -> None:
    """Writes are dropped while the lease has lapsed, which the loop does not notice."""
    plant = Plant(tmp_path, node(), group("g"), *members("a"))
    async with plant.at_work():
        await until(lambda: plant.node_of("a") == "n1")
        mark = {"scheduling.k8s.io/group-name": "g"}
        plant.tell(pod("a", {"nodeName": "n1"}, {"phase": "Running"}, annotations=mark))
        await until(lambda: plant.group().get("phase") == "Running")
        await plant.writes.until_idle()
        plant.has_lapsed = True
        ended = pod("a", {"nodeName": "n1"}, {"phase": "Succeeded"}, annotations=mark)
        plant.tell(ended)
        await plant.skip()
        await plant.writes.until_idle()
        plant.has_lapsed = False
        await plant.skip()
        assert plant.group().get("phase") == "Running"
        plant.num_terms += 1
        await until(lambda: plant.group().get("phase") == "Completed")


@pytest.mark.asyncio
async def test_all_is_read_again_after_a_lapse_that_went_unnoticed(tmp_path: Path) -> None:
    plant, reading = Plant(tmp_path, node(), group("g"), *members("a")), Reading()
    plant.follow(reading)
    async with plant.at_work():
        await until(lambda: reading.stale)
        reading.stale = False
        await until(lambda: plant.node_of("a") == "n1")
        plant.num_terms += 1
        await until(lambda: reading.stale)


@pytest.mark.asyncio
async def test_a_plan_of_a_term_that_has_ended_is_not_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is lost and regained during a session; another process may have led."""
    plant, reading = Plant(tmp_path, node(), group("g"), *members("a")), Reading()
    plant.follow(reading)
    plans: list[Plan] = []

    def run(*arguments: Any) -> Report:
        report = run_session(*arguments)
        plans.append(report.plan)
        plant.num_terms += 1
        return report

    monkeypatch.setattr(module, "run_session", run)
    async with plant.at_work():
        await until(lambda: reading.stale)
        reading.stale = False
        await until(lambda: reading.stale)
        assert plans[0].binds
        assert "bind Pod ns/a n1" not in plant.api.calls


class Reading:
    """A follower whose refresh ends when the test says so."""

    stale = False

    def refresh(self) -> None:
        self.stale = True


@pytest.mark.asyncio
async def test_a_new_leader_decides_on_nothing_before_it_has_read_all_again(
    tmp_path: Path,
) -> None:
    plant, reading = Plant(tmp_path, node(), group("g"), *members("a")), Reading()
    plant.is_leading = False
    plant.follow(reading)
    async with plant.at_work():
        plant.is_leading = True
        await until(lambda: reading.stale)
        for _ in range(50):
            plant.scheduler.wake()
            await asyncio.sleep(0.001)
        assert plant.count("optsched_sessions_total") == 0
        reading.stale = False
        await until(lambda: plant.node_of("a") == "n1")


@pytest.mark.asyncio
async def test_a_gang_whose_bind_failed_is_tried_again_when_its_time_has_come(
    tmp_path: Path,
) -> None:
    plant = Plant(tmp_path, node(), group("g"), *members("a"))
    plant.api.refuse("bind", *[Forbidden(403, "Forbidden", "you may not")] * 4)

    def is_told() -> bool:
        plant.clock.seconds += 0.01
        return "BindFailed" in plant.reasons()

    async with plant.at_work():
        await until(is_told)
        assert plant.node_of("a") == ""

        def is_bound() -> bool:
            plant.clock.seconds += 1
            return plant.node_of("a") == "n1"

        await until(is_bound)


@pytest.mark.asyncio
async def test_a_broken_session_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant = Plant(tmp_path, node(), group("g"), *members("a"))

    def broken(*_: object) -> None:
        raise ArithmeticError("two and two")

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_session", broken)
        async with plant.at_work():
            await until(lambda: plant.count("optsched_session_errors_total") >= 2)
            patch.undo()
            await until(lambda: plant.node_of("a") == "n1")
    assert "two and two" in caplog.text
    assert dumped(tmp_path, "error")


@pytest.mark.asyncio
async def test_a_snapshot_is_dumped_on_demand(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node())
    async with plant.at_work():
        plant.scheduler.dump()
    assert len(dumped(tmp_path, "snapshot")) == 1


def test_it_is_ready_once_it_knows_everything(tmp_path: Path) -> None:
    plant = Plant(tmp_path)
    assert plant.scheduler.unready() == "not all kinds have been listed yet"
    plant.api.tell(plant.cache)
    assert plant.scheduler.unready() == ""


def test_a_loop_that_does_not_come_round_is_in_trouble(tmp_path: Path) -> None:
    plant = Plant(tmp_path)
    assert plant.scheduler.trouble() == ""
    plant.clock.seconds += STUCK_S + 1
    assert plant.scheduler.trouble() == "the loop has been stuck for 121 s"


@pytest.mark.asyncio
async def test_queues_that_lend_without_reclaim_are_remarked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant = Plant(tmp_path, node(), queue("team", reclaimable=True))
    async with plant.at_work():
        await plant.sessions(1)
    assert plant.advice == [
        "queues such as team are reclaimable, but the actions of policy.conf lack `reclaim`: "
        "capacity that the queues lend returns only when borrowing pods end"
    ]
    assert plant.advice[0] in caplog.text


@pytest.mark.asyncio
async def test_a_queue_that_comes_later_is_remarked_once(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node(), queue("kept", reclaimable=False))
    async with plant.at_work():
        await plant.sessions(1)
        assert plant.advice == []
        for number, name in enumerate(("team", "lab"), 2):
            plant.tell(queue(name, reclaimable=True))
            await plant.sessions(number)
    assert [text.partition(" are ")[0] for text in plant.advice] == ["queues such as team"]


@pytest.mark.asyncio
async def test_metrics_of_a_queue_end_with_its_jobs_and_with_the_queue(tmp_path: Path) -> None:
    spec = {"minMember": 2, "queue": "team"}
    plant = Plant(tmp_path, node(), queue("team"), group("g", spec), *members("a", "b"))

    def figures() -> dict[str, float]:
        families = text_string_to_metric_families(plant.metrics.exposition().decode())
        found = (sample for family in families for sample in family.samples)
        return {
            sample.name.removeprefix("volcano_queue_"): sample.value
            for sample in found
            if sample.labels.get("queue_name") == "team" and "resource" not in sample.labels
        }

    async with plant.at_work():
        await until(lambda: plant.node_of("b") == "n1")
        plant.tell(*(running_pod(name) for name in ("a", "b")))
        await until(lambda: figures().get("allocated_milli_cpu") == 2000)
        assert figures()["request_milli_cpu"] == 2000
        plant.tell(*(running_pod(name, "Succeeded") for name in ("a", "b")))
        await until(lambda: figures()["allocated_milli_cpu"] == 0)
        left = figures()
        assert left.pop("weight") == 1
        assert set(left.values()) == {0}
        del plant.api.objects[Ref(QUEUE, "", "team")]
        plant.tell()
        await until(lambda: figures() == {})


def running_pod(name: str, phase: str = "Running") -> dict[str, Any]:
    mark = {"scheduling.k8s.io/group-name": "g"}
    return pod(name, {"nodeName": "n1"}, {"phase": phase}, annotations=mark)


REMEMBERS = (
    "actions: allocate\n"
    "tiers: [{plugins: [{name: gang}, {name: predicates}, "
    "{name: capacity, arguments: {usage.halfLife: 1h}}]}]\n"
)


def used(plant: Plant, name: str) -> dict[str, float]:
    """Return the resource seconds that a queue's usage record contains."""
    meta = plant.api.objects[Ref(QUEUE, "", name)]["metadata"]
    usage, errors = read_usage(meta.get("annotations", {}))
    assert errors == ()
    return {} if usage is None else dict(usage.seconds)


def later(plant: Plant) -> bool:
    """Advance the clock by one second."""
    plant.clock.seconds += 1
    return True


@pytest.mark.asyncio
async def test_what_queues_have_used_is_written_and_read_again(tmp_path: Path) -> None:
    there = [node(), group("g", {"minMember": 2, "queue": "q"}), queue("q"), *members("a", "b")]
    plant = Plant(tmp_path, *there)
    plant.policy = REMEMBERS
    async with plant.at_work():
        await until(lambda: plant.node_of("a") == plant.node_of("b") == "n1")
        plant.tell()
        await plant.skip()
        await until(lambda: later(plant) and used(plant, "q").get("cpu", 0) > 0)
    before = used(plant, "q")
    again = Plant(tmp_path, *plant.api.objects.values())
    again.policy = REMEMBERS
    again.clock.seconds = plant.clock.seconds + 100
    async with again.at_work():
        await again.sessions(1)
    assert used(again, "q")["cpu"] > 1.5 * before["cpu"]


@pytest.mark.asyncio
async def test_without_a_half_life_queues_are_left_alone(tmp_path: Path) -> None:
    there = [node(), group("g", {"minMember": 2, "queue": "q"}), queue("q"), *members("a", "b")]
    plant = Plant(tmp_path, *there)
    async with plant.at_work():
        await until(lambda: plant.node_of("a") == plant.node_of("b") == "n1")
        plant.tell()
        plant.clock.seconds += 100
        await plant.skip()
    assert used(plant, "q") == {}
