from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import POD_GROUP, QUEUE, Ref
from optsched.api.podgroup import parse_podgroup
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.scheduler.status import (
    AGAIN_MS,
    CONDITIONS_EVERY_MS,
    CONFLICT_MS,
    CORRECTED_EVERY_MS,
    COUNTS_EVERY_MS,
    MAX_CONFLICTS,
    MESSAGE_EVERY_MS,
    QUEUE_EVERY_MS,
    READY,
    SETTLE_MS,
    STEADY_MS,
    Outcome,
    StatusTracker,
)
from optsched.kube.scheduler.status_writer import make_writer
from tests.formats.objects import group, node, pod, queue
from tests.kube.fakes import FakeApi

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.kube.scheduler.status import StatusPatch

GROUP = Ref(POD_GROUP, "ns", "g")
NO_ROOM = Reason(ReasonCode.RESOURCES, "8 cpu are missing")
START_MS = 1_750_000_000_000
START = "2025-06-15T15:06:40Z"
LATER = "2025-06-15T15:06:50Z"
CONDITIONS = ("Unschedulable", "Scheduled")


def member(name: str, phase: str = "Pending", at: str = "") -> dict[str, Any]:
    spec = {"nodeName": at} if at else {}
    mark = {"scheduling.k8s.io/group-name": "g"}
    return pod(name, spec, {"phase": phase}, annotations=mark)


def leaving(name: str) -> dict[str, Any]:
    """Return a running pod that terminates within its grace period."""
    found = member(name, "Running", at="n1")
    found["metadata"]["deletionTimestamp"] = START
    return found


class World:
    """A gang of two, its queue, and the status patches for both."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.book = StatusTracker()
        self.cache = ClusterCache()
        self.now_ms = START_MS
        base = (node("n1"), queue("default"), group("g", {"minMember": 2}))
        self.api = FakeApi(*base, *objects)

    def ask(self, *enqueued: str, **reasons: Reason) -> list[StatusPatch]:
        """Return the patches for the current state.

        `reasons` are keyed by gang name.
        """
        self.api.tell(self.cache)
        by_key = {f"ns/{name}": reason for name, reason in reasons.items()}
        outcome = Outcome(self.cache.snapshot(self.now_ms), by_key, enqueued)
        return self.book.patches(outcome, self.cache.group, self.cache.queues)

    def tell(self, *enqueued: str, **reasons: Reason) -> list[StatusPatch]:
        """Write the patches for the current state and return them."""
        patches = self.ask(*enqueued, **reasons)
        self.write(patches)
        return patches

    def write(self, patches: Sequence[StatusPatch]) -> None:
        for patch in patches:
            asyncio.run(make_writer(self.api, lambda: True)(patch.ref, patch))

    def put(self, *objects: dict[str, Any]) -> None:
        for obj in objects:
            self.api.put(obj)

    @property
    def group(self) -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects[GROUP].get("status", {})
        return status

    @property
    def condition(self) -> dict[str, Any]:
        (condition,) = self.group["conditions"]
        assert isinstance(condition, dict)
        return condition


# --- PodGroups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "phase", "counts"),
    [
        ([], "Pending", (0, 0, 0)),
        ([member("a"), member("b")], "Pending", (0, 0, 0)),
        ([member("a", at="n1"), member("b")], "Pending", (0, 0, 0)),
        ([member("a", "Running", "n1"), member("b")], "Unknown", (1, 0, 0)),
        ([member("a", "Running", "n1"), member("b", at="n1")], "Running", (1, 0, 0)),
        ([member("a", "Running", "n1"), leaving("b")], "Running", (1, 0, 0)),
        ([member("a", "Succeeded"), member("b", "Running", "n1")], "Running", (1, 1, 0)),
        ([member("a", "Succeeded"), member("b", "Failed")], "Completed", (0, 1, 1)),
    ],
)
def test_phases_are_volcanos(
    pods: list[dict[str, Any]], phase: str, counts: tuple[int, int, int]
) -> None:
    world = World(*pods)
    world.tell()
    world.now_ms += SETTLE_MS
    world.tell()
    group, _ = parse_podgroup(world.api.objects[GROUP])
    assert group is not None
    found = group.status
    assert found.phase == phase
    assert (found.running, found.succeeded, found.failed) == counts


def test_what_is_enqueued_stays_so() -> None:
    world = World()
    world.tell("ns/g")
    assert world.group["phase"] == "Inqueue"
    world.put(member("a"))
    world.tell()
    assert world.group["phase"] == "Inqueue"


def test_a_gang_that_waits_says_why() -> None:
    world = World(member("a"), member("b"))
    world.tell(g=NO_ROOM)
    assert world.condition == {
        "type": "Unschedulable",
        "status": "True",
        "lastTransitionTime": START,
        "reason": "NotEnoughResources",
        "message": "8 cpu are missing",
    }


def test_a_gang_that_starts_says_so_and_waits_no_more() -> None:
    world = World(member("a"), member("b"))
    world.tell(g=NO_ROOM)
    world.now_ms += 10_000
    world.put(member("a", at="n1"), member("b", at="n1"))
    assert GROUP not in [patch.ref for patch in world.tell()], "its pods are about to run"
    world.now_ms += SETTLE_MS
    world.tell()
    by_type = {condition["type"]: condition for condition in world.group["conditions"]}
    assert by_type == {
        "Unschedulable": {
            "type": "Unschedulable",
            "status": "False",
            "lastTransitionTime": LATER,
        },
        "Scheduled": {
            "type": "Scheduled",
            "status": "True",
            "lastTransitionTime": LATER,
            "reason": READY,
        },
    }
    world.put(member("a"), member("b"))
    assert world.tell(g=NO_ROOM) == [], "news come together"
    world.now_ms += CONDITIONS_EVERY_MS
    world.tell(g=NO_ROOM)
    by_type = {condition["type"]: condition["status"] for condition in world.group["conditions"]}
    assert by_type == {"Unschedulable": "True", "Scheduled": "False"}


def test_times_of_conditions_change_with_their_status_alone() -> None:
    world = World(member("a"), member("b"))
    world.tell(g=NO_ROOM)
    world.now_ms += 10_000
    world.tell(g=Reason(ReasonCode.PREDICATES, "no node will do"))
    assert world.condition["reason"] == "NoNodeMatches"
    assert world.condition["lastTransitionTime"] == START


def test_conditions_of_others_stay() -> None:
    world = World(member("a"), member("b"))
    theirs = {"type": "Theirs", "status": "True", "transitionID": "7"}
    world.put({**group("g", {"minMember": 2}), "status": {"conditions": [theirs]}})
    world.tell(g=NO_ROOM)
    assert theirs in world.group["conditions"]
    assert len(world.group["conditions"]) == 2


def test_messages_alone_are_written_every_thirty_seconds() -> None:
    world = World(member("a"), member("b"))
    world.tell(g=NO_ROOM)
    written: list[int] = []
    for second in range(1, 100):
        world.now_ms = START_MS + 1000 * second
        if world.tell(g=replace(NO_ROOM, message=f"{second} cpu are missing")):
            written.append(second)
    assert written == [30, 60, 90]
    assert MESSAGE_EVERY_MS == 30_000
    assert world.condition["message"] == "90 cpu are missing"


def test_a_message_that_was_put_off_is_written_although_nothing_else_happens() -> None:
    world = World(member("a"), member("b"))
    world.tell(g=NO_ROOM)
    changed = replace(NO_ROOM, message="7 cpu are missing")
    world.now_ms += 1000
    assert world.tell(g=changed) == []
    world.now_ms += MESSAGE_EVERY_MS
    assert len(world.tell(g=changed)) == 1


def test_counts_are_written_together_after_a_moment() -> None:
    names = "abc"
    world = World(*(member(name, "Running", "n1") for name in names))
    world.tell()
    world.now_ms += 2 * COUNTS_EVERY_MS
    first_ms = world.now_ms
    for name in "ab":
        world.put(member(name, "Succeeded", "n1"))
        assert GROUP not in [patch.ref for patch in world.tell()]
        world.now_ms += 500
    assert world.book.due_ms == first_ms + SETTLE_MS
    world.now_ms = first_ms + SETTLE_MS
    assert [patch.ref for patch in world.tell()] == [GROUP]
    assert (world.group["running"], world.group["succeeded"]) == (1, 2)


def test_a_gang_that_starts_pod_by_pod_is_written_once() -> None:
    world = World(member("a", at="n1"), member("b", at="n1"))
    assert GROUP not in [patch.ref for patch in world.tell()]
    world.now_ms += 500
    world.put(member("a", "Running", "n1"))
    assert world.tell() == []
    world.now_ms += 500
    world.put(member("b", "Running", "n1"))
    assert [patch.ref for patch in world.tell()] == [GROUP], "all are there: nothing follows"
    assert (world.group["phase"], world.group["running"]) == ("Running", 2)
    assert world.condition["lastTransitionTime"] == START, "it is stamped when it was placed"


def test_a_gang_whose_pods_start_slowly_is_written_now_and_then() -> None:
    """The written status is at most 5 s old, and two writes are at least 2 s apart."""
    names = [f"p{i:02d}" for i in range(30)]
    world = World(*(member(name, at="n1") for name in names))
    written, late_ms = [], 0
    for i in range(2 * len(names)):
        world.now_ms = START_MS + 1000 * i
        if i < len(names):
            world.put(member(names[i], "Running", "n1"))
        if GROUP in [patch.ref for patch in world.tell()]:
            written.append(i)
        num_running = min(i + 1, len(names))
        late_ms = 0 if world.group.get("running") == num_running else late_ms + 1000
        assert late_ms < 5_000
    assert min(b - a for a, b in pairwise(written)) >= SETTLE_MS / 1000
    assert world.group["running"] == len(names)


def test_a_gang_that_is_let_in_says_so_at_once() -> None:
    world = World()
    world.tell(g=NO_ROOM)
    assert [patch.ref for patch in world.tell("ns/g")] == [GROUP]
    assert world.group["phase"] == "Inqueue"


def test_another_phase_is_written_with_the_next_news() -> None:
    world = World(member("a", "Running", "n1"), member("b", "Running", "n1"))
    world.tell()
    world.now_ms += CONDITIONS_EVERY_MS
    world.put(member("a", "Succeeded", "n1"), member("b", "Succeeded", "n1"))
    assert GROUP in [patch.ref for patch in world.tell()]
    assert (world.group["phase"], world.group["succeeded"]) == ("Completed", 2)


def test_a_gang_of_a_job_that_has_ended_is_written_only_if_it_stays() -> None:
    """The controllers normally delete the PodGroup before the write is due."""
    world = World(member("a", "Running", "n1"), member("b", "Running", "n1"))
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u"}
    owned = group("g", {"minMember": 2})
    owned["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    world.put(owned)
    world.tell()
    world.now_ms += CONDITIONS_EVERY_MS
    world.put(member("a", "Succeeded", "n1"), member("b", "Succeeded", "n1"))
    assert GROUP not in [patch.ref for patch in world.tell()]
    world.now_ms += SETTLE_MS
    assert GROUP in [patch.ref for patch in world.tell()]
    assert world.group["phase"] == "Completed"


def test_what_is_said_already_is_not_said_again() -> None:
    world = World(member("a"), member("b"))
    assert world.tell(g=NO_ROOM) != []
    assert world.tell(g=NO_ROOM) == []
    world.book = StatusTracker()
    assert world.ask(g=NO_ROOM) == []


def test_a_patch_that_got_lost_is_made_again_when_its_object_changes() -> None:
    world = World(member("a"), member("b"))
    lost = [patch.ref for patch in world.ask(g=NO_ROOM)]
    assert GROUP in lost
    assert world.ask(g=NO_ROOM) == []
    world.put(group("g", {"minMember": 3}))
    world.now_ms += CONDITIONS_EVERY_MS
    assert GROUP in [patch.ref for patch in world.ask(g=NO_ROOM)]


def test_what_was_refused_is_written_again_after_a_while() -> None:
    world = World(member("a", "Running", "n1"), member("b", "Running", "n1"))
    refused = world.ask()
    assert {patch.ref for patch in refused} == {GROUP, Ref(QUEUE, "", "default")}
    for patch in refused:
        world.book.record_refusal(patch.ref, world.now_ms)
    world.now_ms += AGAIN_MS - 1
    assert world.ask() == []
    world.now_ms += 1
    assert {patch.ref for patch in world.ask()} == {GROUP, Ref(QUEUE, "", "default")}


def test_a_conflict_is_tried_again_soon_and_a_limited_number_of_times() -> None:
    world = World(member("a"), member("b"))
    (refused,) = [patch for patch in world.ask(g=NO_ROOM) if patch.ref == GROUP]
    for _ in range(MAX_CONFLICTS):
        world.book.record_refusal(GROUP, world.now_ms, is_conflict=True)
        assert world.book.due_ms == world.now_ms + CONFLICT_MS
        world.put(group("g", {"minMember": 2, "queue": "default"}))
        world.now_ms += CONFLICT_MS
        assert GROUP in [patch.ref for patch in world.ask(g=NO_ROOM)]
    world.book.record_refusal(GROUP, world.now_ms, is_conflict=True)
    world.now_ms += AGAIN_MS - 1
    assert GROUP not in [patch.ref for patch in world.ask(g=NO_ROOM)]
    world.now_ms += 1
    world.write(world.ask(g=NO_ROOM))
    assert world.condition["message"] == refused.body["status"]["conditions"][0]["message"]


def test_reasons_that_alternate_are_written_once_one_of_them_stays() -> None:
    world = World(member("a"), member("b"))
    fragmented = Reason(ReasonCode.FRAGMENTED, "no node has 4 cpu idle")
    world.tell(g=NO_ROOM)
    written: list[int] = []
    for second in range(1, 29):
        world.now_ms = START_MS + 1000 * second
        reason = fragmented if second % 2 else NO_ROOM
        written += [second] * any(patch.ref == GROUP for patch in world.tell(g=reason))
    assert written == []
    while not any(patch.ref == GROUP for patch in world.tell(g=fragmented)):
        world.now_ms += 1000
        assert world.now_ms <= START_MS + 29_000 + STEADY_MS
    assert world.condition["reason"] == "ResourcesFragmented"


def test_a_reason_that_stays_replaces_another_one_within_five_seconds() -> None:
    world = World(member("a"), member("b"))
    world.tell(g=NO_ROOM)
    fragmented = Reason(ReasonCode.FRAGMENTED, "no node has 4 cpu idle")
    world.now_ms += 1000
    assert GROUP not in [patch.ref for patch in world.tell(g=fragmented)]
    assert world.book.due_ms == world.now_ms + STEADY_MS
    world.now_ms += STEADY_MS
    assert GROUP in [patch.ref for patch in world.tell(g=fragmented)]
    assert (world.condition["reason"], STEADY_MS) == ("ResourcesFragmented", 3000)


def test_another_reason_is_not_held_back() -> None:
    world = World(member("a"), member("b"))
    world.tell(g=NO_ROOM)
    world.now_ms += CONDITIONS_EVERY_MS
    world.tell(g=Reason(ReasonCode.PREDICATES, "taints"))
    assert world.condition["reason"] == "NoNodeMatches"


def test_pods_without_a_podgroup_have_nobody_to_tell() -> None:
    world = World(pod("alone"))
    patches = world.ask(**{"pod:alone": NO_ROOM})
    assert [patch.ref.kind for patch in patches] == [QUEUE]


# --- queues --------------------------------------------------------------------------------------


def queue_status(world: World, name: str = "default") -> dict[str, Any]:
    status: dict[str, Any] = world.api.objects[Ref(QUEUE, "", name)]["status"]
    return status


def test_a_queue_says_what_it_holds_and_how_its_podgroups_are() -> None:
    world = World(member("a", "Running", "n1"), member("b", at="n1"), pod("x", {"nodeName": "n1"}))
    world.put(group("other"))
    world.tell()
    assert queue_status(world) == {
        "allocated": {"cpu": "3", "memory": "0", "pods": "3"},
        "unknown": 0,
        "pending": 1,
        "running": 1,
        "inqueue": 0,
        "completed": 0,
    }


def test_a_queue_holds_what_those_below_it_hold() -> None:
    world = World(member("a", at="n1"), queue("top"), queue("leaf", parent="top"))
    world.put(group("g", {"queue": "leaf"}))
    world.tell()
    assert queue_status(world, "leaf")["allocated"]["cpu"] == "1"
    assert queue_status(world, "top")["allocated"]["cpu"] == "1"
    assert queue_status(world, "top")["running"] == 0
    assert queue_status(world)["allocated"] == {"cpu": "0", "memory": "0"}


def test_a_circle_of_parents_is_no_endless_loop() -> None:
    world = World(member("a", at="n1"), queue("p", parent="q"), queue("q", parent="p"))
    world.put(group("g", {"queue": "p"}))
    world.tell()
    assert queue_status(world, "q")["allocated"]["cpu"] == "1"


def test_what_is_gone_leaves_no_trace() -> None:
    world = World(member("a", "Running", "n1"), member("b", "Running", "n1"))
    world.tell()
    for obj in (member("a"), member("b"), group("g")):
        world.api.objects = {r: o for r, o in world.api.objects.items() if r.name != name_of(obj)}
    assert world.tell() == [], "what a queue holds may change all the time"
    assert world.book.due_ms == START_MS + QUEUE_EVERY_MS
    world.now_ms += QUEUE_EVERY_MS
    world.tell()
    assert queue_status(world) == {
        "allocated": {"cpu": "0", "memory": "0"},
        "unknown": 0,
        "pending": 0,
        "running": 0,
        "inqueue": 0,
        "completed": 0,
    }


def test_a_gang_that_moves_is_counted_where_its_pods_were_admitted() -> None:
    world = World(member("a", at="n1"), queue("other"))
    world.tell()
    world.put(group("g", {"queue": "other"}))
    world.tell()
    assert queue_status(world)["allocated"]["cpu"] == "1"
    assert queue_status(world, "other")["allocated"]["cpu"] == "0"
    world.put(member("a", "Succeeded", at="n1"), member("b", at="n1"))
    world.tell()
    assert queue_status(world)["allocated"]["cpu"] == "1", "one of them was there all the time"
    world.put(member("b", "Succeeded", at="n1"))
    world.tell()
    world.put(member("c", at="n1"))
    world.now_ms += QUEUE_EVERY_MS
    world.tell()
    assert queue_status(world)["allocated"]["cpu"] == "0"
    assert queue_status(world, "other")["allocated"]["cpu"] == "1"


def test_what_somebody_else_says_of_a_queue_is_not_put_right_at_once() -> None:
    world = World(member("a", at="n1"))
    world.tell()
    world.put({**queue("default"), "status": {"allocated": {"cpu": "9"}}})
    assert world.ask() == []
    world.put(member("b", at="n1"))
    world.now_ms += QUEUE_EVERY_MS
    world.tell()
    assert queue_status(world)["allocated"]["cpu"] == "2"
    world.put({**queue("default"), "status": {"allocated": {"cpu": "9"}}})
    assert world.ask() == []
    world.now_ms += CORRECTED_EVERY_MS
    world.tell()
    assert queue_status(world)["allocated"]["cpu"] == "2"


def name_of(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["name"])
