"""Schedulers and controllers forget pods that are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.json_fields import name_of
from optsched.api.kinds import EVENT, JOB, POD, POD_GROUP, QUEUE, Ref
from optsched.api.meta import EventType
from optsched.controllers.job import status as status_module
from optsched.controllers.job.reconcile import Options as JobOptions
from optsched.controllers.job.reconcile import job_controller
from optsched.kube.cache.reflector import Deleted
from optsched.kube.controllers import manager as controllers_module
from optsched.kube.runtime import events as events_module
from optsched.kube.runtime.events import EventHistory, Note
from optsched.kube.scheduler import loop as module
from optsched.problem import compile as compile_module
from tests.formats.objects import group, node, pod, queue, thing
from tests.kube.controllers.test_manager import Process, both
from tests.kube.fakes import ref_of
from tests.kube.scheduler.test_loop import Plant, until
from tests.kube.webhook.test_server import Hook, following, review
from tests.support.memory import MemoryWorld
from tests.support.memory_server import MemoryServer
from tests.support.sizes import container_sizes
from tests.support.vcjobs import KEYS, job, task

if TYPE_CHECKING:
    from pathlib import Path

BOUNDED = ("_deleted.", ".ended", "_label_keys.", "_shaped.", "_shapes.", "._recent")
"""Memories of a fixed size: deleted objects, and what pods of one shape share."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.002)
    monkeypatch.setattr(events_module, "SWEEP_AT", 8)
    monkeypatch.setattr(controllers_module, "_REMEMBERED", 4)
    monkeypatch.setattr(controllers_module, "NUMBERS_EVERY_S", -1.0)
    monkeypatch.setattr(status_module, "STARTING_S", 0.0)
    monkeypatch.setattr(status_module, "ENDING_S", 0.0)


def members(name: str, phase: str = "", at: str = "") -> list[dict[str, Any]]:
    marks = {"scheduling.k8s.io/group-name": name}
    spec, status = ({"nodeName": at}, {"phase": phase}) if phase else ({}, {})
    return [pod(f"{name}-{i}", spec, status, annotations=marks) for i in range(2)]


async def live(plant: Plant, name: str) -> None:
    """Create a gang, let it run and succeed, and delete it."""
    plant.tell(group(name, {"minMember": 2, "queue": "q"}), *members(name))
    await until(lambda: plant.node_of(f"{name}-0") == plant.node_of(f"{name}-1") == "n1")
    plant.tell(*members(name, "Running", "n1"))
    plant.tell(*members(name, "Succeeded", "n1"))
    refs = [Ref(POD_GROUP, "ns", name), *(Ref(POD, "ns", f"{name}-{i}") for i in range(2))]
    for ref in refs:
        plant.cache.apply(ref.kind, Deleted(plant.api.objects.pop(ref)))
    for event in plant.api.of(EVENT):
        del plant.api.objects[Ref(EVENT, "ns", event["metadata"]["name"])]
    plant.scheduler.wake()
    await plant.events.queue.until_idle()
    await plant.writes.until_idle()


def sizes(plant: Plant) -> dict[str, int]:
    parts = (plant.cache, plant.binder, plant.evictor, plant.events, plant.writes, plant.scheduler)
    return sizes_of(*parts)


def sizes_of(*parts: object) -> dict[str, int]:
    """Return the number of entries by path, without caches of fixed size."""
    found: dict[str, int] = {}
    for part in parts:
        found |= container_sizes(part)
    return {path: size for path, size in found.items() if not any(b in path for b in BOUNDED)}


def growth(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return the containers that grew by more than eight entries."""
    both = {path: (before.get(path, 0), size) for path, size in after.items()}
    return {path: (old, new) for path, (old, new) in both.items() if new > old + 8}


@pytest.mark.asyncio
async def test_after_many_lifecycles_a_scheduler_holds_what_it_held(tmp_path: Path) -> None:
    plant = Plant(tmp_path, node("n1"), queue("q"))
    async with plant.at_work():
        for number in range(10):
            await live(plant, f"g{number}")
        before = sizes(plant)
        for number in range(10, 50):
            await live(plant, f"g{number}")
        after = sizes(plant)
    assert growth(before, after) == {}


def strangers(number: int) -> list[dict[str, Any]]:
    """Return the objects of a namespace that shares no name, label or resource with others."""
    at = {"namespace": f"ns{number}"}
    resource = f"example.com/r{number}"
    place = node(f"n-{number}", {"kubernetes.io/hostname": f"n-{number}", "rack": f"r{number}"})
    place["status"]["allocatable"][resource] = "8"
    requests = {"cpu": "1", resource: "1"}
    container = {"name": "c", "resources": {"requests": requests, "limits": requests}}
    term = {"labelSelector": {"matchLabels": {"app": f"a{number}"}}, "topologyKey": "rack"}
    preferred = [{"weight": 1, "podAffinityTerm": term}]
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    marks = {"scheduling.k8s.io/group-name": "g"}
    spec = {"containers": [container], "affinity": affinity}
    upstream = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    return [
        thing("v1", "Namespace", f"ns{number}"),
        place,
        queue(f"q{number}", weight=1),
        thing("topology.volcano.sh/v1alpha1", "HyperNode", f"h{number}", spec={"tier": 1}),
        group("g", {"minMember": 1, "queue": f"q{number}"}, **at),
        group("far", {"minMember": 2, "queue": f"nowhere{number}"}, **at),
        thing("scheduling.k8s.io/v1alpha2", "PodGroup", "up", f"ns{number}", spec=upstream),
        pod("up", {"schedulingGroup": {"podGroupName": "up"}}, uid=f"up-{number}", **at),
        pod("foreign", {"schedulerName": "other", "nodeName": f"n-{number}"}, **at),
        pod("g", spec, annotations=marks, uid=f"u-{number}", **at),
    ]


async def live_elsewhere(plant: Plant, number: int) -> None:
    """Create a namespace with a node, queues and gangs, and delete it."""
    made = strangers(number)
    plant.tell(*made)
    ref = Ref(POD, f"ns{number}", "g")
    await until(lambda: plant.api.objects[ref]["spec"].get("nodeName") == f"n-{number}")
    for phase in ("Running", "Succeeded"):
        plant.tell({**plant.api.objects[ref], "status": {"phase": phase}})
    held = Ref(POD_GROUP, f"ns{number}", "g")
    await until(lambda: plant.api.objects[held].get("status", {}).get("phase") == "Completed")
    for obj in made:
        gone = ref_of(obj)
        plant.cache.apply(gone.kind, Deleted(plant.api.objects.pop(gone)))
    for event in plant.api.of(EVENT):
        del plant.api.objects[ref_of(event)]
    plant.clock.seconds += 100
    await plant.sessions(int(plant.count("optsched_sessions_total")) + 1)
    await plant.events.queue.until_idle()
    await plant.writes.until_idle()


@pytest.mark.asyncio
async def test_names_that_are_gone_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler has seen names of nodes, queues, labels, resources and namespaces."""
    monkeypatch.setattr(compile_module, "FEW_RESOURCES", 8)
    plant = Plant(tmp_path, node("n1"), queue("q"))
    plugins = "[{name: gang}, {name: predicates}, {name: drf, arguments: {usage.halfLife: 1h}}]"
    plant.policy = f"actions: allocate\ntiers: [{{plugins: {plugins}}}]\n"
    async with plant.at_work():
        for number in range(10):
            await live_elsewhere(plant, number)
        before = sizes(plant) | sizes_of(plant.metrics)
        lines = len(plant.metrics.exposition().splitlines())
        for number in range(10, 40):
            await live_elsewhere(plant, number)
        after = sizes(plant) | sizes_of(plant.metrics)
    assert growth(before, after) == {}
    assert len(plant.metrics.exposition().splitlines()) < lines + 50


def test_growth_is_found_wherever_it_is() -> None:
    book = EventHistory(lambda *_: True)
    before = sizes_of(book)
    for number in range(20):
        about = Ref(POD, "ns", f"p-{number}")
        book.record_write(Note(about, "u", EventType.NORMAL, "Scheduled", ""), 0.0, 1)
    assert growth(before, sizes_of(book)).keys() == {"EventHistory._written"}


def test_what_was_written_of_objects_that_are_gone_is_forgotten() -> None:
    there: set[str] = set()
    book = EventHistory(lambda about, _: about.name in there)
    for number in range(500):
        there = {f"p-{number}", f"p-{number - 1}"}
        note = Note(Ref(POD, "ns", f"p-{number}"), "u", EventType.NORMAL, "Scheduled", "")
        book.record_write(note, 0.0, 1)
        assert book.times(note) == 1
        assert len(book._written) <= 8


async def live_job(process: Process, server: MemoryServer, name: str) -> None:
    """Create a job, let it run and succeed, and delete it with its objects."""
    world = server.world
    made = world.put(JOB, job(task("w", 2), name=name))
    await server.news()
    await process.until(lambda: len(world.listed(POD_GROUP)) == 1)
    (group,) = world.listed(POD_GROUP)
    ref = Ref(POD_GROUP, "default", name_of(group))
    world.change(ref, lambda obj: obj.update(status={"phase": "Inqueue"}))
    await server.news()
    await process.until(lambda: len(world.listed(POD)) == 2)
    for each in world.listed(POD):
        world.phase(name_of(each), "Running")
    await server.news()
    await process.until_idle()
    for each in world.listed(POD):
        world.phase(name_of(each), "Succeeded")
    await server.news()
    await process.until_idle()
    world.remove(Ref(JOB, "default", name_of(made)))
    await server.news()
    world.ended()
    await server.news()
    await process.until(lambda: not world.listed(POD))
    await process.until_idle()


@pytest.mark.asyncio
async def test_after_many_jobs_controllers_hold_what_they_held() -> None:
    server = MemoryServer(MemoryWorld())
    world = server.world
    world.put(QUEUE, {"metadata": {"name": "default"}, "status": {"state": "Open"}})
    controllers = (job_controller(JobOptions(lambda: KEYS)), *both())
    async with Process(server, *controllers).running() as process:
        for number in range(5):
            await live_job(process, server, f"j{number}")
        before = sizes_of(process.shell)
        for number in range(5, 30):
            await live_job(process, server, f"j{number}")
        after = sizes_of(process.shell)
    assert growth(before, after) == {}


@pytest.mark.asyncio
async def test_after_many_reviews_a_webhook_holds_what_it_held() -> None:
    """Jobs, users and queues differ in each review, and every other job is denied."""

    async def ask(first: int, last: int) -> None:
        for number in range(first, last):
            asked = job(task("w", 2), name=f"j{number}", queue=f"q{number}" if number % 2 else "")
            asked["metadata"]["namespace"] = f"n{number}"
            who = {"username": f"user-{number}", "groups": [f"g{number}"]}
            body = review(asked, uid=f"u-{number}", userInfo=who, namespace=f"n{number}")
            status, _ = await hook.post(body)
            assert status == 200

    async with following(Hook()) as hook:
        parts = (hook.world, hook.metrics, hook.lanes)
        await ask(0, 30)
        before, lines = sizes_of(*parts), len(hook.metrics.exposition().splitlines())
        await ask(30, 150)
        assert growth(before, sizes_of(*parts)) == {}
        assert len(hook.metrics.exposition().splitlines()) == lines
