"""The manager of controllers with an in-memory API server."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.json_fields import name_of, owner_reference
from optsched.api.kinds import (
    COMMAND,
    JOB,
    NAMESPACE,
    POD,
    POD_GROUP,
    QUEUE,
    REPLICA_SET,
    SECRET,
    Ref,
)
from optsched.controllers.controller import Controller, Index, existing
from optsched.controllers.effects import Again, Create, Delete, Emit, Patch, PatchStatus
from optsched.controllers.job.reconcile import Options as JobOptions
from optsched.controllers.job.reconcile import job_controller
from optsched.controllers.podgroup import Options, PodGroups
from optsched.controllers.queue import QUEUES
from optsched.kube.cache.reflector import ABSENT_S
from optsched.kube.client.errors import Forbidden, Rejected, ServerFault, Unreachable
from optsched.kube.controllers import manager as module
from optsched.kube.controllers.executor import ControllerMetrics
from optsched.kube.controllers.manager import POLL_S, Manager, ManagerDependencies
from optsched.kube.runtime.timing import Timing
from tests.kube.fakes import FakeClock
from tests.support.memory import MemoryWorld
from tests.support.memory_server import Killed, MemoryServer
from tests.support.vcjobs import KEYS, job, task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from optsched.kube.runtime.events import Note

pytestmark = pytest.mark.asyncio


class Leader:
    is_leading = True
    num_terms = 1

    @property
    def term(self) -> int:
        return self.num_terms if self.is_leading else 0


class Recorder:
    """A recorder that keeps the notes from which events would be created."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, note: Note) -> None:
        self.notes.append(note)


class Process:
    """A process that runs controllers on a server."""

    def __init__(
        self, server: MemoryServer, *controllers: Controller, reads_again: bool = False
    ) -> None:
        self.events, self.metrics, self.leader = Recorder(), ControllerMetrics(), Leader()
        self.slept: list[float] = []
        waiting = Timing(self._sleep, lambda: 0.5)
        self.clock = FakeClock()
        parts = ManagerDependencies(
            server,
            self.events,
            self.metrics,
            self.leader,
            self.clock,
            waiting,
            reads_again=reads_again,
        )
        self.shell = Manager(controllers, parts)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(min(seconds, 0.001))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Process]:
        task = asyncio.create_task(self.shell.run())
        try:
            yield self
        finally:
            self.shell.stop()
            await task

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not what():
                await asyncio.sleep(0.001)

    async def until_idle(self) -> None:
        """Wait until the manager is idle three times in a row."""
        for _ in range(3):
            await self.until(lambda: not self.shell.store.unsynced() and self.shell._queue.is_idle)
            for _ in range(20):
                await asyncio.sleep(0)
            await asyncio.sleep(0.005)

    def looks(self, controller: str, result: str) -> float:
        lines = self.metrics.exposition().decode().splitlines()
        start = f'optsched_controller_looks_total{{controller="{controller}",result="{result}"}} '
        return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


def play(num_sets: int = 3, num_pods: int = 3) -> MemoryServer:
    """Return a cluster with ReplicaSets, of which one is in a closing queue."""
    world = MemoryWorld()
    for name in ("root", "default", "a"):
        world.put(QUEUE, {"metadata": {"name": name}, "spec": {}, "status": {"state": "Open"}})
    world.put(QUEUE, {"metadata": {"name": "b"}, "spec": {"parent": "a"}})
    world.put(NAMESPACE, {"metadata": {"name": "default"}})
    for number in range(num_sets):
        meta = {"name": f"set-{number}", "uid": f"u{number}"}
        owner = world.put(REPLICA_SET, {"metadata": meta, "spec": {"replicas": num_pods}})
        for index in range(num_pods):
            meta = {
                "name": f"p{number}-{index}",
                "ownerReferences": [owner_reference(REPLICA_SET, owner)],
            }
            spec = {"schedulerName": "volcano", "containers": [{"name": "c"}]}
            world.put(POD, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": "a"}
    meta = {"name": "close-a"}
    world.put(COMMAND, {"metadata": meta, "action": "CloseQueue", "target": target})
    return MemoryServer(world)


def both() -> tuple[Controller, ...]:
    return (QUEUES, PodGroups(Options()).controller)


def outcome(world: MemoryWorld) -> dict[str, Any]:
    """Return the resulting objects without versions."""
    states = {name_of(q): q.get("status", {}).get("state") for q in world.listed(QUEUE)}
    groups = {name_of(g): g["spec"] for g in world.listed(POD_GROUP)}
    pods = {name_of(p): p["metadata"].get("annotations") for p in world.listed(POD)}
    return {**states, **groups, **pods, "commands": len(world.listed(COMMAND))}


async def test_controllers_bring_a_cluster_to_rest_with_no_write_too_many() -> None:
    server = play()
    async with Process(server, *both()).running() as process:
        await process.until_idle()
    found = outcome(server.world)
    assert (found["a"], found["b"], found["commands"]) == ("Closed", "Closed", 0)
    assert {g for g in found if g.startswith("podgroup-")} == {f"podgroup-u{i}" for i in range(3)}
    assert {tuple(found[f"p{i}-{j}"].values()) for i in range(3) for j in range(3)} == {
        (f"podgroup-u{i}",) for i in range(3)
    }
    # The writes are three PodGroups and nine annotations. The parents of three queues, the state
    # and mark of the child, two states of its parent and the Command follow.
    assert server.num_writes <= 3 + 9 + 3 + 2 + 2 + 2
    assert process.looks("queue", "error") == process.looks("podgroup", "error") == 0


@pytest.mark.parametrize("seed", range(12))
async def test_a_process_that_is_killed_anywhere_loses_nothing_and_makes_nothing_twice(
    seed: int,
) -> None:
    expected = play()
    async with Process(expected, *both()).running() as process:
        await process.until_idle()

    chance = random.Random(seed)
    server = play()
    for _ in range(6):
        process = Process(server, *both())
        left = chance.randrange(8)
        is_answered = chance.random() < 0.5

        def strike(*_: object, process: Process = process) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                process.shell.stop()
                raise Killed("killed")

        server.before, server.after = (
            (lambda *_: None, strike) if is_answered else (strike, lambda *_: None)
        )
        task = asyncio.create_task(process.shell.run())
        await process.until(
            lambda task=task, process=process: (
                task.done() or (not process.shell.store.unsynced() and process.shell._queue.is_idle)
            )
        )
        process.shell.stop()
        await task
    server.before = server.after = lambda *_: None
    async with Process(server, *both()).running() as process:
        await process.until_idle()
    assert outcome(server.world) == outcome(expected.world)
    groups = [ref for ref in server.creations if ref.kind == POD_GROUP]
    assert len(groups) == len(set(groups)) == 3


@pytest.mark.parametrize("error", [Unreachable("lost"), ServerFault(500, "InternalError", "lost")])
async def test_answers_that_are_lost_are_asked_for_again(error: Exception) -> None:
    server, chance = play(), random.Random(7)

    def lose(*_: object) -> None:
        if chance.random() < 0.3:
            raise error

    server.before = server.after = lose
    async with Process(server, *both()).running() as process:
        await process.until(lambda: outcome(server.world)["commands"] == 0)
        annotated = {f"podgroup-u{i}" for i in range(3)}
        await process.until(
            lambda: (
                annotated
                == {
                    (p["metadata"].get("annotations") or {}).get("scheduling.k8s.io/group-name")
                    for p in server.world.listed(POD)
                }
            )
        )
    groups = [ref for ref in server.creations if ref.kind == POD_GROUP]
    assert len(groups) == 3


async def test_watches_that_lag_behind_our_own_writes_make_nothing_twice() -> None:
    server = play(num_sets=1)
    process = Process(server, *both())
    async with process.running():
        await process.until_idle()
        server.lag()
        done = server.num_writes
        # The cache receives a pod of another client late, but the consequences happen only once.
        await process.until_idle()
        assert server.num_writes == done
        await server.catch_up()
        await process.until_idle()
        assert server.num_writes == done


async def test_all_is_looked_at_again_after_a_lapse_that_went_unnoticed() -> None:
    """A write was dropped while the lease had lapsed, and no further event triggers it."""
    server = play()
    process = Process(server, *both())
    async with process.running():
        await process.until(lambda: len(server.world.listed(POD_GROUP)) == 3)
        await process.until_idle()
        process.leader.is_leading = False
        server.world.put(QUEUE, {"metadata": {"name": "late"}})
        await server.news()
        await process.until(lambda: process.shell.store.get(QUEUE, "", "late") is not None)
        looks = process.looks("queue", "done")
        process.leader.num_terms += 1
        process.leader.is_leading = True
        await process.until(lambda: process.looks("queue", "done") > looks)
        await process.until(lambda: "status" in server.world.get(QUEUE, "", "late"))


def lonely(decide: Any, kind: Any = QUEUE) -> Controller:
    return Controller("lonely", kind, existing(kind, decide))


async def test_what_was_just_written_is_known_before_any_watch_tells() -> None:
    server = play(num_sets=0)
    rounds: list[Any] = []

    def count(queue: Any, _: Any) -> tuple[Patch, ...]:
        number = int((queue["metadata"].get("annotations") or {}).get("n", "0"))
        rounds.append((name_of(queue), number))
        if number == 3 or name_of(queue) != "a":
            return ()
        body = {"metadata": {"annotations": {"n": str(number + 1)}}}
        return (Patch(QUEUE, "", "a", body, queue["metadata"]["uid"]),)

    process = Process(server, lonely(count))
    server.lag()
    async with process.running():
        await process.until(lambda: ("a", 3) in rounds)
        await server.catch_up()
        await process.until_idle()
    assert [n for name, n in rounds if name == "a"] == [0, 1, 2, 3]


async def test_numbers_are_written_together_and_all_else_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changed numbers of a queue's status are batched; its state is written immediately."""
    monkeypatch.setattr(module, "NUMBERS_EVERY_S", 0.1)
    server = play(num_sets=0)

    def follow(queue: Any, _: Any) -> tuple[PatchStatus, ...]:
        spec, status = queue["spec"], queue.get("status") or {}
        known = {"state": status.get("state"), "running": status.get("running")}
        if name_of(queue) != "a" or known == spec["wanted"]:
            return ()
        wait_s = 0.05 if known["state"] == spec["wanted"]["state"] else 0.0
        return (PatchStatus(QUEUE, "", "a", {"status": spec["wanted"]}, may_wait_s=wait_s),)

    def want(**wanted: Any) -> None:
        server.world.put(QUEUE, {"metadata": {"name": "a"}, "spec": {"wanted": wanted}})

    def said() -> Any:
        found = server.world.get(QUEUE, "", "a")
        return found and (found.get("status") or {}).get("running")

    want(state="Open", running=1)
    async with Process(server, lonely(follow)).running() as process:
        await process.until(lambda: said() == 1)
        done = server.num_writes
        await server.patch(Ref(QUEUE, "", "a"), {"spec": {"wanted": {"running": 2}}})
        await process.until_idle()
        assert (said(), server.num_writes) == (1, done + 1)
        await server.patch(Ref(QUEUE, "", "a"), {"spec": {"wanted": {"state": "Closed"}}})
        await process.until(lambda: said() == 2)
        process.clock.seconds += 1
        done = server.num_writes
        for number in (3, 4, 5):
            await server.patch(Ref(QUEUE, "", "a"), {"spec": {"wanted": {"running": number}}})
            await process.until_idle()
            assert (said(), server.num_writes) == (2, done + number - 2), "more is to follow"
        process.clock.seconds += 0.05
        await process.until(lambda: said() == 5)
        assert server.num_writes == done + 4


async def test_a_status_whose_write_failed_is_not_deferred_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interval to the next deferred status begins when a status has been written."""
    monkeypatch.setattr(module, "NUMBERS_EVERY_S", 100.0)
    server, refused = play(num_sets=0), list[str]()

    def follow(queue: Any, _: Any) -> tuple[PatchStatus, ...]:
        if name_of(queue) != "a" or (queue.get("status") or {}).get("running") == 1:
            return ()
        return (PatchStatus(QUEUE, "", "a", {"status": {"running": 1}}, may_wait_s=0.01),)

    def fails(verb: str, ref: Ref) -> None:
        if len(refused) < 2:
            refused.append(verb)
            raise Unreachable("refused")

    def said() -> Any:
        found = server.world.get(QUEUE, "", "a")
        return found and (found.get("status") or {}).get("running")

    server.before = fails
    async with Process(server, lonely(follow)).running() as process:
        await process.until_idle()
        process.clock.seconds += 0.01
        await process.until(lambda: said() == 1)
    assert refused == ["patch", "patch"]


async def test_a_mistake_in_one_object_does_not_keep_others_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = play(num_sets=0)
    done: set[str] = set()

    def stumble(queue: Any, _: Any) -> tuple[()]:
        if name_of(queue) == "a":
            raise RuntimeError("a mistake")
        done.add(name_of(queue))
        return ()

    async with Process(server, lonely(stumble)).running() as process:
        await process.until(lambda: done == {"root", "default", "b"})
        await process.until(lambda: process.looks("lonely", "error") >= 2)
    assert "a mistake" in caplog.text


async def test_an_object_that_nothing_can_read_does_not_end_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = play(num_sets=0)
    seen: set[str] = set()

    def words(queue: Any) -> tuple[str, ...]:
        return (queue["spec"]["none"],)

    def wakes(queue: Any, _: Any) -> tuple[Ref, ...]:
        if name_of(queue) == "a":
            raise RuntimeError("a mistake")
        return (Ref(POD, "", f"of-{name_of(queue)}"),)

    def decide(ref: Ref, _: Any) -> tuple[()]:
        seen.add(ref.name)
        return ()

    index = Index(QUEUE, "odd", words)
    broken = Controller("broken", POD, decide, {QUEUE: wakes}, (index,))
    async with Process(server, broken).running() as process:
        await process.until(lambda: seen == {"of-root", "of-default", "of-b"})
    assert "a mistake" in caplog.text
    assert "index odd of Queue" in caplog.text


async def test_only_a_leader_writes_and_a_new_one_looks_at_everything() -> None:
    server = play()
    process = Process(server, *both())
    process.leader.is_leading = False
    async with process.running():
        await process.until(lambda: not process.shell.store.unsynced())
        await process.until_idle()
        assert server.num_writes == 0
        assert process.shell.unready() == ""
        process.leader.is_leading = True
        await process.until(lambda: len(server.world.listed(POD_GROUP)) == 3)
        await process.until_idle()
        process.leader.is_leading = False
        done = server.num_writes
        server.world.put(QUEUE, {"metadata": {"name": "late"}})
        await server.news()
        await process.until(lambda: process.shell.store.get(QUEUE, "", "late") is not None)
        await process.until_idle()
        assert server.num_writes == done


async def test_podgroups_of_queues_are_counted_by_who_leads() -> None:
    server = play()
    process = Process(server, *both())
    async with process.running():
        await process.until(lambda: len(server.world.listed(POD_GROUP)) == 3)
        await process.until_idle()
        lines = process.metrics.exposition().decode().splitlines()
        assert 'volcano_queue_pod_group_pending_count{queue_name="default"} 3.0' in lines
        assert 'volcano_queue_pod_group_running_count{queue_name="a"} 0.0' in lines
        process.leader.is_leading = False
        await process.until(lambda: b"volcano_queue_pod" not in process.metrics.exposition())


async def test_a_creation_that_is_refused_is_told_to_the_owner() -> None:
    server = play(num_sets=1)

    def refuse(verb: str, ref: Ref) -> None:
        if verb == "create":
            raise Forbidden(403, "Forbidden", "exceeded quota: small")

    server.before = refuse
    async with Process(server, *both()).running() as process:
        await process.until(lambda: bool(process.events.notes))
    note = process.events.notes[0]
    assert (note.about, note.uid) == (Ref(REPLICA_SET, "default", "set-0"), "u0")
    assert (note.reason, note.type) == ("FailedCreate", "Warning")
    assert "exceeded quota: small" in note.message


@pytest.mark.parametrize(
    ("effect", "error"),
    [
        (Delete(POD, "default", "none", uid="x"), None),
        (Patch(POD, "default", "none", {"metadata": {"labels": {"a": "b"}}}), None),
        (Delete(QUEUE, "", "a", uid="another"), None),
        (Create(POD, {"metadata": {"name": "p", "namespace": "gone"}}), "leaving"),
    ],
    ids=["delete", "patch", "other", "namespace"],
)
async def test_what_is_gone_is_as_good_as_done(effect: Any, error: str | None) -> None:
    server = play(num_sets=0)
    if error:

        def refuse(*_: object) -> None:
            message = "unable to create new content because it is being terminated"
            raise Forbidden(403, "Forbidden", message)

        server.before = refuse
    seen: list[str] = []

    def once(queue: Any, _: Any) -> tuple[Any, ...]:
        seen.append(name_of(queue))
        return (effect,) if name_of(queue) == "a" else ()

    async with Process(server, lonely(once)).running() as process:
        await process.until_idle()
    assert seen.count("a") == 1
    assert process.looks("lonely", "done") == 4


@pytest.mark.parametrize("message", ["metadata.uid: Invalid value", "the body is wrong"])
async def test_a_patch_of_another_object_is_decided_on_again(message: str) -> None:
    server, tries = play(num_sets=0), 0

    def patch(queue: Any, _: Any) -> tuple[Patch, ...]:
        nonlocal tries
        tries += name_of(queue) == "a"
        body = {"metadata": {"labels": {"a": "b"}}}
        return (Patch(QUEUE, "", "a", body, "u"),) if name_of(queue) == "a" else ()

    def refuse(*_: object) -> None:
        raise Rejected(422, "Invalid", message)

    server.before = refuse
    async with Process(server, lonely(patch)).running() as process:
        await process.until(lambda: tries > 1)
    is_stale = message.startswith("metadata.uid")
    assert bool(process.looks("lonely", "stale")) == is_stale
    assert bool(process.looks("lonely", "refused")) == (not is_stale)


async def test_events_and_times_are_carried_out() -> None:
    server, times = play(num_sets=0), 0

    def twice(queue: Any, _: Any) -> tuple[Any, ...]:
        nonlocal times
        if name_of(queue) != "a":
            return ()
        times += 1
        uid = queue["metadata"]["uid"]
        emit = Emit(QUEUE, "", "a", uid, "Normal", "Looked", "somebody looked")
        return (emit, Again(0.001)) if times == 1 else ()

    async with Process(server, lonely(twice)).running() as process:
        await process.until(lambda: times == 2)
    assert [(n.about.name, n.reason) for n in process.events.notes] == [("a", "Looked")]


async def test_changes_of_what_does_not_matter_wake_nobody() -> None:
    server, seen = play(num_sets=0), 0

    def observe_job(_: Ref, world: Any) -> tuple[()]:
        nonlocal seen
        seen += 1
        return ()

    labels = lambda obj: obj["metadata"].get("labels")  # noqa: E731
    every = Controller("every", QUEUE, observe_job, facets={QUEUE: labels})
    async with Process(server, every).running() as process:
        await process.until_idle()
        before = seen
        server.world.change(Ref(QUEUE, "", "a"), lambda queue: queue.update(status={"running": 1}))
        await server.news()
        ref = Ref(QUEUE, "", "b")
        server.world.change(ref, lambda queue: queue["metadata"].update(labels={"a": "b"}))
        await server.news()
        await process.until(lambda: seen > before)
        await process.until_idle()
    assert seen == before + 1


async def test_a_kind_that_is_not_installed_has_no_objects() -> None:
    server = play()
    server.absent.add(COMMAND)
    async with Process(server, *both()).running() as process:
        await process.until(lambda: len(server.world.listed(POD_GROUP)) == 3)
        await process.until_idle()
        assert outcome(server.world)["a"] == "Open"
        server.absent.clear()
        await process.until(lambda: outcome(server.world)["a"] == "Closed")


async def test_a_kind_that_is_not_installed_is_looked_for_once_a_minute() -> None:
    server = play()
    server.absent.add(COMMAND)
    async with Process(server, *both()).running() as process:
        await process.until(lambda: ABSENT_S in process.slept)
        await process.until_idle()
    assert set(process.slept) == {ABSENT_S, POLL_S}


async def test_secrets_of_others_never_enter_the_process() -> None:
    server = MemoryServer(MemoryWorld())
    manifest = job(task("a"), plugins={"ssh": []})
    for name in ("j-ssh", "other"):
        server.world.put(SECRET, {"metadata": {"name": name}, "data": {"key": "dG9w"}})
    server.world.put(JOB, manifest)
    controllers = (job_controller(JobOptions(lambda: KEYS)),)
    async with Process(server, *controllers).running() as process:
        await process.until(lambda: "NameTaken" in [n.reason for n in process.events.notes])
        await process.until_idle()
        store = process.shell.store
        assert store.listed(SECRET) == ()
        unfollowed_metadata = store.unfollowed_metadata(SECRET, "default", "j-ssh")
        assert unfollowed_metadata is not None
        assert unfollowed_metadata["kind"] == "PartialObjectMetadata"
        # The name is free again, so the controller watches the object that it creates for the job.
        server.world.remove(Ref(SECRET, "default", "j-ssh"))
        process.clock.seconds += 10
        server.world.change(Ref(JOB, "default", "j"), lambda obj: obj.update(spec={**obj["spec"]}))
        await server.news()
        await process.until(lambda: len(store.listed(SECRET)) == 1)
        # The object loses its label, and the controller restores it.
        server.world.change(
            Ref(SECRET, "default", "j-ssh"), lambda obj: obj["metadata"].update(labels={})
        )
        await server.news()
        await process.until(
            lambda: bool(server.world.get(SECRET, "default", "j-ssh")["metadata"]["labels"])
        )
        await process.until(lambda: len(store.listed(SECRET)) == 1)
    other = server.world.get(SECRET, "default", "other")
    assert other is not None
    assert other["data"] == {"key": "dG9w"}


async def test_a_new_leader_works_on_what_it_has_read_since() -> None:
    """The new leader's watches received no event while another process led."""
    server = MemoryServer(MemoryWorld())
    server.world.put(QUEUE, {"metadata": {"name": "default"}, "status": {"state": "Open"}})
    process = Process(server, job_controller(JobOptions(lambda: KEYS)), reads_again=True)
    process.leader.is_leading = False
    async with process.running():
        await process.until(lambda: not process.shell.store.unsynced())
        server.lag()
        server.world.put(JOB, job(task("w", 2), name="j"))
        await process.until_idle()
        assert process.shell.store.listed(JOB) == ()
        process.leader.is_leading = True
        await process.until(lambda: len(server.world.listed(POD_GROUP)) == 1)


async def test_a_server_that_is_away_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = play()
    lost = [True]

    def fails(verb: str, ref: Ref) -> None:
        if lost[0]:
            raise Unreachable("refused")

    server.before = fails
    async with Process(server, *both()).running() as process:
        await process.until(lambda: process.looks("queue", "refused") >= 3)
        lost[0] = False
        await process.until_idle()
    (line,) = (m for m in caplog.messages if "refused" in m)
    assert "will retry" in line
