"""Tests of the harness: seeds repeat their schedule, and planted violations are found."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.wellknown import SUBMITTER
from tests.faults.door import resource_of
from tests.faults.invariants import (
    COMPLETE_S,
    find_admitted,
    find_collected,
    find_false_allocation,
    find_false_statuses,
    find_halves,
    find_held_up,
    find_losses,
    find_shared_devices,
    find_unended_jobs,
    find_violations,
)
from tests.faults.node_knowledge import LAG_S, NodeKnowledge
from tests.faults.review_door import PAUSE_S, ReviewDoor
from tests.faults.schedule import (
    REVIEWS,
    SHORT,
    WEBHOOK,
    FaultKind,
    Flaw,
    Stop,
    Submission,
    WriteKind,
    draw_schedule,
    draw_stops,
    draw_waves,
)
from tests.faults.stops import StopPoints
from tests.formats.objects import allocated, device_claim, node
from tests.support.story import Moment

if TYPE_CHECKING:
    from collections.abc import Callable

CPUS = {"n1": 4, "n2": 4}


def moment(
    name: str, at_s: float, node: str = "", phase: str = "Pending", **more: object
) -> Moment:
    found = Moment(at_s, name, f"uid-{name}", name.partition("-")[0], node, phase, 2, is_there=True)
    return replace(found, **more)


def history() -> list[Moment]:
    """Return the events of two gangs: one succeeds, and a running pod of the other is evicted."""
    return [
        moment("a-0", 0.0),
        moment("b-0", 0.1),
        moment("a-0", 1.0, "n1"),
        moment("b-0", 1.1, "n1"),
        moment("a-0", 2.0, "n1", "Running"),
        moment("b-0", 2.1, "n1", "Running"),
        moment("b-0", 3.0, "n1", "Running", is_evicted=True),
        moment("b-0", 3.1, "n1", "Running", is_evicted=True, is_there=False),
        moment("a-0", 4.0, "n1", "Succeeded"),
    ]


def test_what_is_well_is_no_violation() -> None:
    assert find_violations(history(), CPUS) == []
    assert find_losses(history(), {"a": 1, "b": 1}) == []


def bound_elsewhere(moments: list[Moment]) -> list[Moment]:
    return [*moments, moment("a-0", 5.0, "n2", "Succeeded")]


def overfull(moments: list[Moment]) -> list[Moment]:
    return [*moments[:6], moment("c-0", 2.5, "n1"), *moments[6:]]


def evicted_late(moments: list[Moment]) -> list[Moment]:
    return [*moments, moment("a-0", 5.0, "n1", "Succeeded", is_evicted=True)]


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (bound_elsewhere, "a-0 was bound to n1 and then to n2"),
        (overfull, "n1 held 6 CPUs of 4"),
        (evicted_late, "a-0 was evicted although it had ended"),
    ],
)
def test_a_planted_violation_is_found(
    plant: Callable[[list[Moment]], list[Moment]], sentence: str
) -> None:
    assert find_violations(plant(history()), CPUS) == [sentence]


@pytest.mark.parametrize("drawn", range(20))
def test_a_violation_is_found_wherever_it_stands(drawn: int) -> None:
    """Events of other gangs do not hide a violation."""
    chance = Random(drawn)
    planted = evicted_late(history())
    for number in range(30):
        others = moment(f"x{number}-0", 0.0, "elsewhere", "Running")
        planted.insert(chance.randrange(len(planted)), others)
    assert find_violations(planted, CPUS) == ["a-0 was evicted although it had ended"]


def event(what: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {"type": what, "object": obj}


CORDONED = {**node("n1"), "spec": {"unschedulable": True}}
NOT_READY = {**node("n1"), "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
CLOSINGS = [event("MODIFIED", CORDONED), event("MODIFIED", NOT_READY), event("DELETED", node("n1"))]


@pytest.mark.parametrize("closing", CLOSINGS)
def test_a_bind_to_a_node_that_its_process_knew_as_closed_is_found(closing: dict[str, Any]) -> None:
    knowledge = NodeKnowledge()
    knowledge.receive_list([node("n1"), node("n2")], 0.0)
    assert knowledge.find_late_bind("p", "n1", 100.0) == ""
    knowledge.receive_event(closing, 100.0)
    assert knowledge.find_late_bind("p", "n1", 100.0 + LAG_S) == ""
    assert knowledge.find_late_bind("p", "n1", 102.5) == (
        "p was bound to n1 2.5 s after the process knew it as closed"
    )
    assert knowledge.find_late_bind("p", "n2", 102.5) == ""
    knowledge.receive_event({**closing, "type": "MODIFIED"}, 103.0)
    knowledge.receive_event(event("ADDED", node("n1")), 104.0)
    assert knowledge.find_late_bind("p", "n1", 110.0) == ""


def test_a_list_closes_the_nodes_that_it_lacks() -> None:
    knowledge = NodeKnowledge()
    knowledge.receive_list([node("n1"), CORDONED | {"metadata": {"name": "n3"}}], 0.0)
    knowledge.receive_list([node("n2"), node("n3")], 5.0)
    assert "2.0 s after" in knowledge.find_late_bind("p", "n1", 7.0)
    assert knowledge.find_late_bind("p", "n3", 7.0) == ""


def test_a_process_that_was_stopped_or_replaced_has_read_nothing_meanwhile() -> None:
    knowledge = NodeKnowledge()
    knowledge.receive_list([CORDONED], 0.0)
    knowledge.resume(5.0)
    assert knowledge.find_late_bind("p", "n1", 5.0 + LAG_S) == ""
    assert knowledge.find_late_bind("p", "n1", 7.0) != ""
    knowledge.forget()
    assert knowledge.find_late_bind("p", "n1", 9.0) == ""


def test_what_is_lost_is_found() -> None:
    stuck = [*history(), moment("c-0", 5.0), moment("c-1", 5.0, "n2", "Running")]
    assert find_losses(stuck, {"a": 1, "c": 2, "d": 1}) == [
        "gang c of 2: {'Pending': 1, 'Running': 1}, c-0 is Pending on no node, "
        "c-1 is Running on n2",
        "gang d of 1: nothing was seen of it",
    ]


def test_pods_that_went_with_their_node_are_not_lost() -> None:
    collected = [
        *history(),
        moment("c-0", 5.0, "n2", "Running"),
        moment("c-1", 5.0, "n1"),
        moment("c-0", 6.0, "n2", "Running", is_there=False),
    ]
    assert find_losses(collected, {"c": 2}, {"c-0"}) == []
    assert find_losses(collected, {"c": 2}) == [
        "gang c of 2: {'gone': 1, 'Pending': 1}, c-1 is Pending on n1"
    ]


def test_pods_that_kubernetes_deleted_with_their_node_are_found() -> None:
    def deleted(name: str, at_s: float, node: str = "n2", **more: object) -> Moment:
        return moment(name, at_s, node, "Succeeded", is_there=False, **more)

    moments = [
        *history(),
        deleted("c-0", 50.0),
        deleted("c-1", 39.0),
        deleted("c-2", 50.0, "n1"),
        deleted("c-3", 50.0, is_evicted=True),
        moment("c-4", 50.0, "n2", "Succeeded"),
        deleted("c-5", 50.0),
        moment("c-5", 51.0, "n2", "Running"),
    ]
    assert find_collected(moments, "n2", 40.0) == {"c-0"}


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (moment("c-1", 6.0 + COMPLETE_S, "n2"), "gang c was half bound for 61.0 s: 2 pods"),
        (moment("d-0", 7.0 + COMPLETE_S, "n2"), "gang c was half bound for 62.0 s: 1 pods"),
    ],
)
def test_a_gang_that_was_begun_and_left_is_found(last: Moment, sentence: str) -> None:
    """The checker finds a gang that is completed late or never, but not a gang with a lost pod."""
    begun = [*history(), moment("c-0", 5.0, "n1"), moment("c-1", 5.0)]
    sizes = {"a": 1, "b": 1, "c": 2, "d": 1}
    assert find_halves([*begun, moment("c-1", 4.0 + COMPLETE_S, "n2")], sizes) == []
    assert find_halves([*begun, last], sizes) == [sentence]
    assert find_halves([*begun, last], sizes, {"c-0"}) == []


def test_a_device_of_two_claims_is_found() -> None:
    claims = [
        device_claim(name, status=allocated(device, node_name="n1"))
        for name, device in (("x", "gpu-0"), ("y", "gpu-1"), ("z", "gpu-0"))
    ]
    assert find_shared_devices(claims[:2]) == []
    (found,) = find_shared_devices(claims)
    assert "gpu-0 was given to claims x and z" in found


def test_a_status_that_is_false_is_found() -> None:
    group = {"metadata": {"name": "a"}, "status": {"succeeded": 1}}
    assert find_false_statuses([group], history()) == []
    group["status"] = {"running": 1}
    assert find_false_statuses([group], history()) == [
        "PodGroup a says succeeded=0, 1 pods are",
        "PodGroup a says running=1, 0 pods are",
    ]


def test_an_evicted_pod_that_stays_does_not_count() -> None:
    stuck = moment("a-1", 3.0, "n2", "Succeeded", is_evicted=True, is_terminating=True)
    group = {"metadata": {"name": "a"}, "status": {"succeeded": 1}}
    assert find_false_statuses([group], [*history(), stuck]) == []


def test_a_pod_that_ended_before_its_deletion_counts() -> None:
    """The API server marks a pod as evicted, and then does not delete a pod that has ended."""
    ended = moment("a-1", 3.0, "n2", "Succeeded", is_evicted=True)
    group = {"metadata": {"name": "a"}, "status": {"succeeded": 2}}
    assert find_false_statuses([group], [*history(), ended]) == []


def test_a_queue_that_says_other_than_its_pods_is_found() -> None:
    queue = {"metadata": {"name": "q"}, "status": {"allocated": {"cpu": "2"}}}
    unplayed = moment("c-0", 5.0, "n2")
    assert find_false_allocation(queue, [*history(), unplayed]) == []
    assert find_false_allocation(queue, history()) == [
        "queue q says that it holds 2000 milli-CPUs, its pods hold 0"
    ]
    del queue["status"]["allocated"]
    assert find_false_allocation(queue, history()) == [
        "queue q says that it holds None milli-CPUs, its pods hold 0"
    ]


def submitted(name: str, flaw: Flaw = Flaw.NONE) -> Submission:
    return Submission(0.0, name, 2, 1.0, flaw)


def stored(name: str, phase: str = "Completed", succeeded: int = 2) -> dict[str, Any]:
    status = {"state": {"phase": phase}, "succeeded": succeeded}
    return {"metadata": {"name": name, "annotations": {SUBMITTER: "{}"}}, "status": status}


def test_an_invalid_job_that_was_admitted_is_found() -> None:
    submissions = [submitted("a"), submitted("b", Flaw.TEMPLATE), submitted("c", Flaw.QUEUE)]
    assert find_admitted([stored("a")], submissions) == []
    unchanged = {**stored("a"), "metadata": {"name": "a"}}
    assert find_admitted([unchanged, stored("b")], submissions) == [
        "job a was admitted without the record of its submitter",
        "job b was admitted with an invalid template",
    ]


def test_a_job_that_did_not_end_is_found() -> None:
    submissions = [submitted("a"), submitted("b", Flaw.QUEUE)]
    ended = [moment(f"a-w-{i}", 1.0, "n1", "Succeeded") for i in range(2)]
    gone = [*ended, moment("a-w-0", 2.0, "n1", "Succeeded", is_there=False)]
    assert find_unended_jobs([stored("a")], ended, submissions) == []
    assert find_unended_jobs([stored("a")], gone, submissions) == []
    assert find_unended_jobs([], ended, submissions) == ["job a was not stored"]
    assert find_unended_jobs([stored("a", "Running", 1)], ended, submissions) == [
        "job a of 2 is Running and says succeeded=1, 2 pods have succeeded"
    ]
    assert find_unended_jobs([stored("a")], ended[:1], submissions) == [
        "job a of 2 is Completed and says succeeded=2, 1 pods have succeeded"
    ]


def test_a_request_that_waited_for_the_webhook_is_found() -> None:
    created = "POST /apis/scheduling.volcano.sh/v1beta1/namespaces/podgroups"
    bound = "POST /api/v1/namespaces/pods/binding"
    assert find_held_up("controllers", {created: 3}) == []
    assert find_held_up("scheduler", {created: 3}) == [
        f"3 requests {created} of the scheduler waited for the webhook"
    ]
    assert find_held_up("controllers", {bound: 1}) == [
        f"1 requests {bound} of the controllers waited for the webhook"
    ]


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_the_webhook_change_no_other_fault(seed: int) -> None:
    kinds = tuple(kind for kind in FaultKind if kind not in (*WEBHOOK, *REVIEWS))
    without, found = draw_schedule(seed, 30.0, kinds=kinds), draw_schedule(seed, 30.0)
    assert tuple(f for f in found.faults if f.kind in kinds) == without.faults
    earlier = draw_schedule(seed, 30.0, kinds=(*kinds, *WEBHOOK))
    assert tuple(f for f in found.faults if f.kind not in REVIEWS) == earlier.faults
    assert found.submissions == earlier.submissions
    assert (found.arrivals, found.stops) == (without.arrivals, without.stops)
    assert without.submissions == ()
    assert {each.flaw for each in found.submissions} == set(Flaw)
    assert FaultKind.KILL_WEBHOOK in {fault.kind for fault in found.faults}


def echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)


def test_a_connection_to_the_webhook_is_passed_held_and_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=[server], daemon=True).start()
        with (
            ReviewDoor(server.getsockname()[1]) as door,
            socket.create_connection(("127.0.0.1", door.port), timeout=0.5) as client,
        ):
            client.sendall(b"passed")
            assert client.recv(100) == b"passed"
            door.held_until_s = float("inf")
            time.sleep(4 * PAUSE_S)
            client.sendall(b"held")
            with pytest.raises(TimeoutError):
                client.recv(100)
            door.held_until_s = 0.0
            client.settimeout(10.0)
            assert client.recv(100) == b"held"
            door.cut_until_s = float("inf")
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""


def test_a_seed_is_a_schedule() -> None:
    assert draw_schedule(7, 30.0) == draw_schedule(7, 30.0)
    assert draw_schedule(7, 30.0) != draw_schedule(8, 30.0)
    kinds = {fault.kind for seed in range(40) for fault in draw_schedule(seed, 30.0).faults}
    assert kinds == set(FaultKind)
    assert {f.kind for f in draw_schedule(7, 90.0, kinds=SHORT).faults} <= set(SHORT)


def test_a_seed_is_its_stops_too() -> None:
    stops = draw_schedule(7, 30.0).stops
    assert stops == draw_schedule(7, 30.0).stops != draw_schedule(8, 30.0).stops
    assert draw_schedule(7, 30.0, kinds=()).stops == ()
    assert {s.kind for s in draw_stops(7, len(WriteKind))} == set(WriteKind)
    waves = [draw_waves(seed) for seed in range(20)]
    assert draw_waves(3) == waves[3]
    between = {(s.kind, s.number, s.is_sent) for wave in waves for s in wave.stops}
    assert {kind for kind, _, _ in between} == {WriteKind.NEXT_BIND, WriteKind.NEXT_EVICTION}
    assert {(number, is_sent) for _, number, is_sent in between} == {
        (number, is_sent) for number in (1, 2, 3) for is_sent in (False, True)
    }


def bind(pod: str) -> tuple[str, str]:
    return "POST", f"/api/v1/namespaces/ns/pods/{pod}/binding"


def evict(pod: str) -> tuple[str, str]:
    return "POST", f"/api/v1/namespaces/ns/pods/{pod}/eviction"


def meets(kind: WriteKind, number: int, requests: list[tuple[str, str]]) -> list[int]:
    """Return the indices of the requests of one process that meet a stop."""
    points = StopPoints([Stop(kind, number, is_sent=False, is_frozen=False, seconds=0.0)])
    return [i for i, request in enumerate(requests) if points.meet("door", *request)]


def test_a_stop_comes_at_the_write_that_it_names_and_once() -> None:
    binds = [bind("a-0"), bind("b-0"), bind("b-1"), bind("a-1"), bind("b-2")]
    assert meets(WriteKind.BIND, 2, binds) == [1]
    assert meets(WriteKind.NEXT_BIND, 1, binds) == [2]
    assert meets(WriteKind.NEXT_BIND, 2, binds) == [3]
    assert meets(WriteKind.NEXT_BIND, 4, binds) == []
    evictions = [evict("a-0"), bind("c-0"), evict("a-1"), evict("b-0")]
    assert meets(WriteKind.EVICTION, 1, evictions) == [0]
    assert meets(WriteKind.NEXT_EVICTION, 1, evictions) == [2]
    group = "/apis/scheduling.volcano.sh/v1beta1/namespaces/ns/podgroups/g"
    claim = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c"
    pod = "/api/v1/namespaces/ns/pods/p"
    for kind, path in (
        (WriteKind.NOMINATION, f"{pod}/status"),
        (WriteKind.GATE, pod),
        (WriteKind.GROUP_STATUS, f"{group}/status"),
        (WriteKind.GROUP_RECORD, group),
        (WriteKind.CLAIM_STATUS, f"{claim}/status"),
        (WriteKind.CLAIM, claim),
    ):
        assert meets(kind, 1, [("GET", path), ("PATCH", path), ("PATCH", path)]) == [1]


def test_evictions_of_two_plans_are_not_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tests.faults.stops.time.monotonic", lambda: now[0])
    points = StopPoints(
        [Stop(WriteKind.NEXT_EVICTION, 1, is_sent=False, is_frozen=False, seconds=0)]
    )
    assert points.meet("door", *evict("a-0")) is None
    now[0] = 1.0
    assert points.meet("door", *evict("a-1")) is None
    assert points.meet("another", *evict("b-1")) is None
    assert points.meet("door", *evict("a-2")) is not None


def test_stops_that_never_came_are_named() -> None:
    stops = draw_stops(1, 2)
    points = StopPoints(stops)
    assert points.end() == stops
    assert points.meet("door", *bind("a-0")) is None


def test_requests_are_counted_by_resource() -> None:
    assert resource_of("/api/v1/namespaces/ns/pods/p/binding") == "/api/v1/namespaces/pods/binding"
    assert resource_of("/api/v1/pods?limit=500") == "/api/v1/pods"
