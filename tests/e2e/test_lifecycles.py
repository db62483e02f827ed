"""The life cycles of jobs on a real API server with scheduler, controllers and webhook.

The tests combine every event that a policy may name with every action. Further tests cover every
phase with its transitions, and the conditions for which a job waits. The jobs of one test run in
parallel.
"""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.local.kubectl import node_manifest
from tests.support.api import Refused
from tests.support.jobs import documents
from tests.support.rooms import Room
from tests.support.together import Together
from tests.support.users import seed
from tests.support.vcjobs import job, policy, task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.local.plane import ControlPlane
    from tests.support.livejobs import LiveJob

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("lifecycles")]


@pytest.fixture(scope="module")
def cluster(
    own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together]:
    with Together(own_plane, tmp_path_factory.mktemp("lifecycles")) as running:
        yield running


_FORBIDDEN: Final = str.maketrans("_[]", "---")


@pytest.fixture
def room(cluster: Together, request: pytest.FixtureRequest) -> Iterator[Room]:
    """Yield a namespace for one test."""
    name = request.node.name.removeprefix("test_").translate(_FORBIDDEN).strip("-").lower()
    room = Room(cluster, name[:60].strip("-"))
    yield room
    room.let_go()


# --- every event with every action ---------------------------------------------------------------

PARTS: Final = {"totalPartitions": 2, "partitionSize": 2}
POD: Final = frozenset({"a-2"})
TASK: Final = frozenset({"a-0", "a-1", "a-2", "a-3"})
ALL: Final = TASK | {"b-0"}
OF_A_POD: Final = {
    "RestartJob": ALL,
    "RestartTask": TASK,
    "RestartPartition": frozenset({"a-2", "a-3"}),
    "RestartPod": POD,
}
OF_A_TASK: Final = {**dict.fromkeys(OF_A_POD, TASK), "RestartJob": ALL}
OF_THE_JOB: Final = dict.fromkeys(OF_A_POD, ALL)
ENDS: Final = {
    "AbortJob": ["Aborting", "Aborted"],
    "CompleteJob": ["Completing", "Completed"],
    "TerminateJob": ["Terminating", "Terminated"],
}
BROKEN: Final = "cpu10"


def fail(room: Room, one: LiveJob) -> None:
    one.fail("a-2", 42)


def delete(room: Room, one: LiveJob) -> None:
    room.delete_pod(f"{one.name}-a-2")


def complete(room: Room, one: LiveJob) -> None:
    one.succeed(*sorted(TASK))


def start_containers_again(room: Room, one: LiveJob) -> None:
    path = object_path(kinds.POD, room.name, f"{one.name}-a-2")
    [container] = room.api.get(path)["status"]["containerStatuses"]
    statuses = [{**container, "restartCount": 3}]
    room.api.patch(f"{path}/status", {"status": {"containerStatuses": statuses}})


def grow(room: Room, one: LiveJob) -> None:
    tasks = one.raw["spec"]["tasks"]
    tasks[1]["replicas"] = 2
    one.patch(tasks=tasks)


@dataclass(frozen=True)
class Event:
    """An event of a policy: its policy fields, its trigger, and the pods restarted by action."""

    said: dict[str, Any]
    happen: Callable[[Room, LiveJob], None]
    restarts: dict[str, frozenset[str]]


EVENTS: Final = {
    "PodFailed": Event({"event": "PodFailed"}, fail, OF_A_POD),
    "ExitCode": Event({"exitCode": 42}, fail, OF_A_POD),
    "PodEvicted": Event({"event": "PodEvicted"}, delete, OF_A_POD),
    "TaskCompleted": Event({"event": "TaskCompleted"}, complete, OF_A_TASK),
    "TaskFailed": Event({"event": "TaskFailed"}, start_containers_again, OF_A_TASK),
    "Unknown": Event({"event": "JobUnknown"}, delete, OF_THE_JOB),
    "JobUpdated": Event({"event": "JobUpdated"}, grow, OF_THE_JOB),
    "Any": Event({"event": "*"}, delete, OF_A_POD),
}
"""All but PodPending, and those for controllers only, which the webhook refuses."""


def began(room: Room, event: str, action: str) -> LiveJob:
    """Start a job with a policy; jobs whose gangs break later run on one node."""
    said = [{**EVENTS[event].said, "action": action}]
    is_job_s = EVENTS[event].restarts is OF_THE_JOB
    first = task("a", 4, partitionPolicy=PARTS, policies=[] if is_job_s else said)
    body = job(first, task("b"), name=action.lower(), policies=said if is_job_s else [])
    if event == "Unknown":
        for one in body["spec"]["tasks"]:
            one["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": BROKEN}
    return room.job(body)


@contextmanager
def breaking(room: Room, event: str) -> Iterator[None]:
    """Keep the pods of broken gangs from starting on another node while the context is open."""
    path = object_path(kinds.NODE, None, BROKEN)
    if event == "Unknown":
        room.api.patch(path, {"spec": {"unschedulable": True}})
    yield
    room.api.patch(path, {"spec": {"unschedulable": None}})


@pytest.mark.parametrize("event", EVENTS)
def test_each_action_follows_from(room: Room, event: str) -> None:
    jobs = {action: began(room, event, action) for action in (*ENDS, *OF_A_POD)}
    before = {}
    for action, one in jobs.items():
        one.await_count(running=5)
        before[action] = one.uids
    with breaking(room, event):
        for one in jobs.values():
            EVENTS[event].happen(room, one)
        for action, stages in ENDS.items():
            jobs[action].await_phase(stages[-1])
            *lived, _, _ = jobs[action].stages
            assert (sorted(lived), jobs[action].stages[2:]) == (["Pending", "Running"], stages)
            assert jobs[action].status.get("retryCount", 0) == 0
        for action in OF_A_POD:
            jobs[action].await_count(retryCount=1)
    num_pods = 6 if event == "JobUpdated" else 5
    for action, again in EVENTS[event].restarts.items():
        one = jobs[action]
        one.await_count("Running", retryCount=1, running=num_pods)
        after = one.uids
        assert {n for n, uid in before[action].items() if after[n] != uid} == again, action
        assert sorted(one.stages) == ["Pending", "Restarting", "Running"]
    for one in jobs.values():
        room.await_(lambda n=one.name: room.events(n, "ExecuteAction"), f"{one.name} is told")
        assert len(room.events(one.name, "ExecuteAction")) == 1


def test_each_action_follows_when_a_pod_is_pending_too_long(room: Room) -> None:
    cluster, pool = room.cluster, {"pool": room.name}
    jobs = {}
    for action in (*ENDS, *OF_A_POD):
        stuck = task("a", 1, policies=[policy("PodPending", action, timeout="1s")])
        stuck["template"]["spec"]["nodeSelector"] = pool
        body = job(stuck, task("b"), name=action.lower(), minAvailable=1, maxRetry=1000)
        stuck["minAvailable"] = 0
        jobs[action] = room.job(body)
    for action, stages in ENDS.items():
        jobs[action].await_phase(stages[-1])
        assert jobs[action].status["state"]["reason"] == "PodPending"
    for action in OF_A_POD:
        made = room.await_(lambda a=action: made_again(jobs[a]), f"pod a of {action} is new")
        assert (made["b-0"] == "0") == (action != "RestartJob")
    cluster.nodes(node_manifest(room.name, cpu="32", memory="128Gi", labels=pool))
    for action in OF_A_POD:
        jobs[action].await_count(running=2)
        jobs[action].await_phase("Running")


def made_again(one: LiveJob) -> dict[str, str]:
    """Return the job version of each pod, once both pods exist and one belongs to a later version.

    The other pod follows later, if at all.
    """
    versions = {
        name: pod["metadata"]["annotations"]["volcano.sh/job-version"]
        for name, pod in one.pods().items()
        if "deletionTimestamp" not in pod["metadata"]
    }
    return versions if versions.keys() == {"a-0", "b-0"} and versions["a-0"] != "0" else {}


def test_policies_of_tasks_come_first_and_late_ones_wait(room: Room) -> None:
    mine = [policy("PodFailed", "RestartTask")]
    jobs = [policy("PodFailed", "AbortJob", timeout="3s")]
    one = room.job(
        job(task("own", 2, policies=mine), task("other", 2), name="order", policies=jobs)
    )
    one.await_count(running=4)
    before = one.uids
    one.fail("own-1")
    one.await_count("Running", retryCount=1, running=4)
    assert {n for n, uid in one.uids.items() if before[n] != uid} == {"own-0", "own-1"}
    one.fail("other-0")
    status = one.await_phase("Aborted")
    assert status["state"]["reason"] == "PodFailed"
    times = {each["status"]: each["lastTransitionTime"] for each in status["conditions"]}
    [container] = one.pods()["other-0"]["status"]["containerStatuses"]
    failed = datetime.fromisoformat(container["state"]["terminated"]["finishedAt"])
    waited = datetime.fromisoformat(times["Aborting"]) - failed
    assert waited >= timedelta(seconds=3)


def test_a_late_policy_follows_the_deletion_of_a_pod(room: Room) -> None:
    """A replacement that runs in time cancels the action; a replacement that waits does not."""
    late = policy("PodEvicted", "AbortJob", timeout="4s")
    pods = task("a", 2)
    pods["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": BROKEN}
    one = room.job(job(pods, name="deleted", policies=[late], minAvailable=1))
    one.await_count(running=2)
    first = one.uids["a-0"]
    room.delete_pod("deleted-a-0")
    room.await_(lambda: one.uids.get("a-0", first) != first, "the pod is replaced")
    one.await_count(running=2)
    room.await_(lambda: one.status["deletions"] == {}, "the deletion is over")
    with breaking(room, "Unknown"):
        room.delete_pod("deleted-a-1")
        [stored] = room.await_(lambda: list(one.status["deletions"].values()), "it is stored")
        room.await_(lambda: "a-1" in one.uids, "the pod is replaced")
        assert one.phase == "Running"
        status = one.await_phase("Aborted")
    assert status["state"]["reason"] == "PodEvicted"
    times = {each["status"]: each["lastTransitionTime"] for each in status["conditions"]}
    waited = datetime.fromisoformat(times["Aborting"]) - datetime.fromisoformat(stored["time"])
    assert timedelta(seconds=3) <= waited <= timedelta(seconds=20)
    assert status["deletions"] == {}


def test_a_job_fails_after_three_retries_unless_it_says_otherwise(room: Room) -> None:
    policies = [policy("PodFailed", "RestartJob")]
    one = room.job(job(task("a", 2), name="hopeless", policies=policies))
    for retry in range(3):
        # A pod may fail before any component has seen the pod run.
        one.await_count(running=2, retryCount=retry)
        one.fail("a-0")
    status = one.await_phase("Failed")
    assert (status["retryCount"], status["state"]["reason"]) == (3, "MaxRetryReached")
    assert status["version"] == 3
    assert sorted(one.stages) == ["Failed", "Pending", "Restarting", "Running"]


# --- stages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "stages"),
    [*ENDS.items(), ("RestartJob", ["Restarting", "Pending", "Running"])],
)
@pytest.mark.parametrize("how", ["policy", "command"])
def test_a_stage_lasts_until_its_pods_are_gone(
    room: Room, action: str, stages: list[str], how: str
) -> None:
    policies = [policy("PodFailed", action)] if how == "policy" else []
    one = room.job(job(task("a", 3), name="held", policies=policies, minAvailable=2))
    one.await_count(running=3)
    room.hold("held-a-1", "held-a-2")
    if how == "policy":
        one.fail("a-0")
    else:
        one.command(action)
    status = one.await_count(terminating=2)
    assert status["state"]["phase"] == stages[0]
    room.await_(lambda: room.find(kinds.POD_GROUP, f"held-{one.uid}") is None, "it left its gang")
    assert one.phase == stages[0]
    room.let_go()
    one.await_phase(stages[-1])
    assert one.stages[-len(stages) :] == stages
    if action != "RestartJob":
        kept = {"a-0"} if how == "policy" else set()
        assert one.status.get("terminating", 0) == 0
        assert set(one.pods()) == kept
        assert one.status["runningDuration"]


def test_what_ends_a_job_that_restarts_waits_until_it_has(room: Room) -> None:
    one = room.job(job(task("a", 2), name="late"))
    one.await_count(running=2)
    room.hold("late-a-0", "late-a-1")
    one.command("RestartJob")
    one.await_count(terminating=2)
    one.command("AbortJob")
    assert one.phase == "Restarting"
    room.let_go()
    one.await_phase("Aborted")
    one.command("ResumeJob")
    one.await_phase("Running")
    assert one.status["retryCount"] == 1


def test_suspended_jobs_resume_any_number_of_times(room: Room) -> None:
    one = room.job(job(task("a", 2), name="patient", maxRetry=1))
    for _ in range(3):
        one.await_phase("Running")
        one.command("AbortJob")
        one.await_phase("Aborted")
        one.await_pods()
        one.command("ResumeJob")
    one.await_phase("Running")
    assert one.status.get("retryCount", 0) == one.status.get("evictions", 0) == 0
    one.command("TerminateJob")
    one.await_phase("Terminated")
    one.command("ResumeJob")
    room.await_(lambda: room.events("patient", "CommandIgnored"), "the Command is refused")
    assert one.phase == "Terminated"


def test_jobs_end_by_the_numbers_of_pods_that_succeed(room: Room) -> None:
    def make(name: str, *tasks: dict[str, Any], **spec: Any) -> LiveJob:
        return room.job(job(*(tasks or [task("a", 3)]), name=name, **spec))

    early = make("early", minSuccess=1)
    few = make("few", minAvailable=1, minSuccess=2)
    enough = make("enough", minAvailable=2)
    short = make("short", minAvailable=2)
    strict = make("strict", task("a", 2, minAvailable=2), task("b", 1), minAvailable=3)
    loose = make("loose", task("a", 2, minAvailable=1), task("b", 1), minAvailable=2)
    empty = make("empty", task("a", 1, minAvailable=0), minAvailable=0)
    for one in (early, few, enough, short, strict, loose):
        one.await_count(running=3)

    early.succeed("a-1")
    few.succeed("a-0")
    enough.succeed("a-0", "a-1")
    short.succeed("a-0")
    strict.succeed("a-0", "b-0")
    loose.succeed("a-0", "b-0")
    for one, pods in ((few, "12"), (enough, "2"), (short, "12"), (strict, "1"), (loose, "1")):
        for index in pods:
            one.fail(f"a-{index}")

    early.await_phase("Completed")
    early.await_pods("a-1")
    enough.await_phase("Completed")
    loose.await_phase("Completed")
    for one, said in ((few, "1 of 3"), (short, "1 of 3"), (strict, "2 of 3")):
        state = one.await_phase("Failed")["state"]
        assert state["reason"] == "NotEnoughSucceeded"
        assert state["message"] == f"{said} pods have succeeded"
        assert len(one.pods()) == 3, "with their logs"
    empty.await_phase("Running")
    tasks = empty.raw["spec"]["tasks"]
    tasks[0]["replicas"] = 0
    empty.patch(tasks=tasks)
    empty.await_pods()
    assert empty.phase == "Running"


def test_a_job_runs_as_soon_as_its_minimum_does(room: Room) -> None:
    rest = task("rest", 2, minAvailable=0)
    rest["template"]["spec"]["nodeSelector"] = {"pool": "never"}
    one = room.job(job(task("a", 3), rest, name="most", minAvailable=3))
    status = one.await_count(running=3, pending=2)
    assert status["state"]["phase"] == "Running"
    one.succeed("a-0", "a-1", "a-2")
    status = one.await_count(succeeded=3)
    assert status["state"]["phase"] == "Running", "two are still to come"


def test_containers_that_the_kubelet_starts_again_are_no_failure(room: Room) -> None:
    first, policies = task("a", 2), [policy("PodFailed", "AbortJob")]
    first["template"]["spec"]["restartPolicy"] = "OnFailure"
    one = room.job(job(first, name="slow", policies=policies))
    one.await_count(running=2)
    path = object_path(kinds.POD, room.name, "slow-a-0")
    [container] = room.api.get(path)["status"]["containerStatuses"]
    statuses = {"status": {"containerStatuses": [{**container, "restartCount": 2}]}}
    room.api.patch(f"{path}/status", statuses)
    one.succeed("a-0", "a-1")
    one.await_phase("Completed")
    assert one.stages == ["Pending", "Running", "Completed"]
    assert one.status.get("retryCount", 0) == 0


def test_another_scheduler_may_place_the_pods(room: Room) -> None:
    one = room.job(job(task("a", 2), name="foreign", schedulerName="default-scheduler"))
    room.await_(lambda: len(one.pods()) == 2, "its pods are there")
    for name, pod in one.pods().items():
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        room.api.bind(room.name, f"foreign-{name}", "cpu1")
    one.await_count(running=2)
    assert one.phase == "Running"
    one.succeed("a-0", "a-1")
    one.await_phase("Completed")


def test_a_job_has_no_pods_before_there_is_room_in_its_queue(room: Room) -> None:
    queue, importance = f"{room.name}-q"[:63], f"{room.name}-p"[:63]
    head = {"apiVersion": kinds.QUEUE.api_version, "kind": kinds.QUEUE.kind}
    spec = {"weight": 1, "capability": {"cpu": "1"}}
    path = collection_path(kinds.QUEUE)
    room.api.post(path, {**head, "metadata": {"name": queue}, "spec": spec})
    head = {"apiVersion": kinds.PRIORITY_CLASS.api_version, "kind": kinds.PRIORITY_CLASS.kind}
    path = collection_path(kinds.PRIORITY_CLASS)
    room.api.post(path, {**head, "metadata": {"name": importance}, "value": 7})
    room.await_(lambda: room.cluster.queue(queue).get("status", {}).get("state"), "it is open")

    def make(name: str) -> LiveJob:
        first = task("a")
        amounts = {"requests": {"cpu": "1"}}
        first["template"]["spec"]["containers"][0]["resources"] = amounts
        return room.job(job(first, name=name, queue=queue, priorityClassName=importance))

    first = make("first")
    first.await_count(running=1)
    second = make("second")
    told = room.await_(lambda: second.status.get("state", {}).get("message"), "it is told why")
    assert queue in told
    assert (second.phase, second.pods()) == ("Pending", {})
    group = room.find(kinds.POD_GROUP, f"second-{second.uid}")
    assert group is not None
    assert group["status"]["phase"] == "Pending"
    assert (group["spec"]["queue"], group["spec"]["priorityClassName"]) == (queue, importance)
    counts = {"running": 1, "pending": 1}
    room.await_(
        lambda: counts.items() <= room.cluster.queue(queue)["status"].items(), "both are counted"
    )
    first.succeed("a-0")
    second.await_count(running=1)
    pod = second.pods()["a-0"]
    assert pod["spec"]["priorityClassName"] == importance
    for part in ("labels", "annotations"):
        assert pod["metadata"][part]["volcano.sh/queue-name"] == queue
    second.succeed("a-0")
    second.await_phase("Completed")


def test_a_driver_is_among_the_first(room: Room) -> None:
    [body] = documents(seed("s001-L410"))
    pool = {"pool": room.name}
    for one in body["spec"]["tasks"]:
        one["template"]["spec"]["nodeSelector"] = pool
    body["spec"]["queue"] = "default"
    body["spec"].pop("priorityClassName", None)
    spark = room.job(body)
    room.await_(lambda: len(spark.pods()) == 5, "all its pods wait")
    room.cluster.nodes(node_manifest(room.name, cpu="6", memory="64Gi", labels=pool))
    spark.await_count(running=3)
    assert spark.phase == "Running"
    assert spark.pods()["driver-0"]["status"]["phase"] == "Running"


def test_jobs_that_have_ended_go_when_they_are_old(room: Room) -> None:
    def make(name: str, **spec: Any) -> LiveJob:
        return room.job(job(task("a"), name=name, ttlSecondsAfterFinished=2, **spec))

    completed, failed = make("completed"), make("failed")
    terminated = make("terminated", policies=[policy("PodFailed", "TerminateJob")])
    aborted = make("aborted", policies=[policy("PodFailed", "AbortJob")])
    for one in (completed, failed, terminated, aborted):
        one.await_count(running=1)
    completed.succeed("a-0")
    for one in (failed, terminated, aborted):
        one.fail("a-0")
    aborted.await_phase("Aborted")
    for one in (completed, failed, terminated):
        room.await_(lambda n=one.name: room.find(kinds.JOB, n) is None, f"{one.name} is gone")
        room.await_(lambda one=one: not one.pods(), f"pods of {one.name} are gone")
    assert aborted.phase == "Aborted"
    assert len(aborted.pods()) == 1


# --- what is taken away --------------------------------------------------------------------------


def test_what_is_taken_from_a_job_never_fails_it(room: Room) -> None:
    evicted = [policy("PodEvicted", "RestartJob")]
    drained = room.job(job(task("a", 2), name="drained", policies=evicted, maxRetry=1))
    deleted = room.job(job(task("a", 2), name="deleted", policies=evicted, maxRetry=1))
    counted = room.job(job(task("a", 2), name="counted", policies=evicted, maxRetry=3))
    for number in (1, 2):
        for one in (drained, deleted, counted):
            one.await_count(running=2)
            one.await_phase("Running")
        room.hold("drained-a-0")
        room.evict_pod("drained-a-0")
        for name in ("deleted-a-0", "counted-a-0"):
            room.delete_pod(name)
        drained.await_count(terminating=1, evictions=number)
        room.let_go()
        deleted.await_count(evictions=number)
        counted.await_count(retryCount=number)
    for one in (drained, deleted):
        one.await_phase("Running")
        assert one.status.get("retryCount", 0) == 0
        one.fail("a-1")  # no controller reacts to the event
    room.delete_pod("deleted-a-0")
    deleted.await_count(evictions=3, running=2)


# --- volumes, order and size ---------------------------------------------------------------------

CLAIM: Final = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def test_jobs_have_their_volumes_or_wait_for_them(room: Room) -> None:
    made = {"mountPath": "/made", "volumeClaim": CLAIM}
    named = {"mountPath": "/named", "volumeClaimName": "results"}
    one = room.job(job(task("a", 2), name="wet", volumes=[made, named]))
    room.await_(lambda: room.events("wet", "PVCError"), "it waits for a claim")
    # The event may come before the status.
    room.await_(lambda: one.status["state"]["reason"] == "PVCError", "its status says so")
    state = one.status["state"]
    assert state["phase"] == "Pending"
    assert state["message"] == "pvc results is not found, the job waits until it exists"
    assert one.pods() == {}
    [claim] = one.owned("persistentvolumeclaims")
    room.make(kinds.PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": "results"}, "spec": CLAIM})
    room.await_(lambda: len(one.pods()) == 2, "its pods are there")
    spec = one.pods()["a-1"]["spec"]
    sources = {volume["name"]: volume for volume in spec["volumes"]}
    seen = {
        mount["mountPath"]: sources[mount["name"]].get("persistentVolumeClaim", {}).get("claimName")
        for mount in spec["containers"][0]["volumeMounts"]
        if not mount["mountPath"].startswith("/var/run/")
    }
    assert seen == {"/made": claim, "/named": "results"}
    assert one.status["controlledResources"] == {
        f"volume-pvc-{claim}": claim,
        "volume-pvc-results": "results",
    }
    room.api.delete(f"{one.jobs}/wet")
    room.await_(lambda: not one.owned("persistentvolumeclaims"), "what it made is gone")
    assert room.find(kinds.PERSISTENT_VOLUME_CLAIM, "results") is not None


def test_tasks_wait_for_as_many_pods_of_others_as_they_need(room: Room) -> None:
    pool, never = {"pool": room.name}, {"pool": "never"}
    some, none = task("some", 3, minAvailable=1), task("none")
    some["template"]["spec"]["nodeSelector"] = pool
    none["template"]["spec"]["nodeSelector"] = never
    after_some = task("after-some", 1, dependsOn={"name": ["some"]})
    after_any = task("after-any", 1, dependsOn={"name": ["some", "none"], "iteration": "any"})
    after_all = task("after-all", 1, dependsOn={"name": ["some", "none"], "iteration": "all"})
    body = job(some, none, after_some, after_any, after_all, name="order", minAvailable=1)
    order = room.job(body)
    room.await_(lambda: {"some-0", "none-0"} <= set(order.pods()), "the first ones are there")
    assert not [name for name in order.pods() if name.startswith("after")]
    node = node_manifest(f"{room.name}-0", cpu="1", memory="1Gi", labels=pool)
    room.cluster.nodes(node)
    first = {"after-some-0", "after-any-0"}
    room.await_(lambda: first <= set(order.pods()), "those that need some of them follow")
    assert "after-all-0" not in order.pods()
    room.cluster.nodes(node_manifest(f"{room.name}-1", cpu="1", memory="1Gi", labels=never))
    room.await_(lambda: "after-all-0" in order.pods(), "the last one follows")


def test_jobs_grow_and_shrink(room: Room) -> None:
    spec = {"plugins": {"svc": [], "ssh": []}, "minAvailable": 2}
    evicted = [policy("PodEvicted", "RestartJob")]
    one = room.job(job(task("a", 3, minAvailable=1), name="elastic", policies=evicted, **spec))
    one.await_count(running=3)
    before = one.uids

    def resize(replicas: int, least: int) -> None:
        tasks = one.raw["spec"]["tasks"]
        tasks[0]["replicas"] = replicas
        one.patch(tasks=tasks, minAvailable=least)
        one.await_count(running=replicas, minAvailable=least)
        group = object_path(kinds.POD_GROUP, room.name, f"elastic-{one.uid}")
        room.await_(
            lambda: room.api.get(group)["spec"]["minMember"] == least, "its PodGroup follows"
        )
        path = object_path(kinds.CONFIG_MAP, room.name, "elastic-svc")
        hosts = [f"elastic-a-{i}.elastic" for i in range(replicas)]
        room.await_(
            lambda: room.api.get(path)["data"]["a.host"].split() == hosts, "hosts are known"
        )

    resize(6, 3)
    resize(2, 1)
    assert one.uids == {name: before[name] for name in ("a-0", "a-1")}
    resize(4, 4)
    assert one.phase == "Running"
    assert one.stages[:2] == ["Pending", "Running"]
    assert "Restarting" not in one.stages
    assert one.status.get("retryCount", 0) == 0


def test_the_service_of_a_job_lets_in_its_own(room: Room) -> None:
    own = room.job(job(task("a"), name="own", plugins={"svc": []}))
    bare = {"svc": ["--disable-network-policy=true", "--publish-not-ready-addresses=true"]}
    opened = room.job(job(task("a"), name="opened", plugins=bare))
    for one in (own, opened):
        one.await_count(running=1)
    policies = "networking.k8s.io/v1"
    assert own.owned("networkpolicies", policies) == ["own"]
    assert opened.owned("networkpolicies", policies) == []
    [found] = room.api.items(f"/apis/{policies}/namespaces/{room.name}/networkpolicies")
    mine = {"volcano.sh/job-name": "own", "volcano.sh/job-namespace": room.name}
    assert found["spec"]["podSelector"]["matchLabels"] == mine
    assert found["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": mine}}]}]
    labels = own.pods()["a-0"]["metadata"]["labels"]
    assert mine.items() <= labels.items()
    for name, is_open in (("own", None), ("opened", True)):
        service = room.find(kinds.SERVICE, name)
        assert service is not None
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"].get("publishNotReadyAddresses") is is_open


# --- plugins -------------------------------------------------------------------------------------


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of the first container of a pod."""
    return {
        each["name"]: each.get("value") or each.get("valueFrom")
        for each in pod["spec"]["containers"][0].get("env", ())
    }


def mounts(pod: dict[str, Any]) -> dict[str, str]:
    """Return the volumes of the first container of a pod, keyed by mount path."""
    found = pod["spec"]["containers"][0]["volumeMounts"]
    return {mount["mountPath"]: mount["name"] for mount in found}


def test_a_job_has_keys_hosts_and_numbers_and_takes_them_along(room: Room) -> None:
    tasks = (task("master"), task("worker", 2))
    one = room.job(job(*tasks, name="full", plugins={"ssh": [], "env": [], "svc": []}))
    one.await_count(running=3)
    pod = one.pods()["worker-1"]
    numbers = {"VK_TASK_INDEX": "1", "VC_TASK_INDEX": "1", "VK_TASK_NUM": "2", "VC_TASK_NUM": "2"}
    assert numbers.items() <= variables(pod).items()
    assert variables(pod)["VC_MASTER_HOST"] == "full-master-0.full"
    hosts = {"configMapKeyRef": {"name": "full-svc", "key": "VC_WORKER_HOSTS"}}
    assert variables(pod)["VC_WORKER_HOSTS"] == hosts
    assert {"/etc/volcano": "full-svc", "/root/.ssh": "full-ssh"}.items() <= mounts(pod).items()

    keys = room.find(kinds.SECRET, "full-ssh")
    assert keys is not None
    data = {name: b64decode(text) for name, text in keys["data"].items()}
    assert data.keys() == {"id_rsa", "id_rsa.pub", "authorized_keys", "config"}
    private = load_pem_private_key(data["id_rsa"], password=None)
    shown = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert data["authorized_keys"].split()[:2] == data["id_rsa.pub"].split()[:2] == shown.split()
    assert b"full-worker-1.full" in data["config"]
    hosts_file = room.find(kinds.CONFIG_MAP, "full-svc")
    assert hosts_file is not None
    assert hosts_file["data"] == {
        "master.host": "full-master-0.full",
        "worker.host": "full-worker-0.full\nfull-worker-1.full",
        "VC_MASTER_HOSTS": "full-master-0.full",
        "VC_MASTER_NUM": "1",
        "VC_WORKER_HOSTS": "full-worker-0.full,full-worker-1.full",
        "VC_WORKER_NUM": "2",
    }

    room.api.delete(f"{one.jobs}/full")
    for plural, group in (
        *(("pods", ""), ("services", ""), ("configmaps", ""), ("secrets", "")),
        ("networkpolicies", "networking.k8s.io/v1"),
        ("podgroups", kinds.POD_GROUP.api_version),
    ):
        room.await_(lambda p=plural, g=group: not one.owned(p, g), f"its {plural} are gone")


def test_frameworks_find_each_other(room: Room) -> None:
    """The webhook adds the plugins on which other plugins depend."""
    flow = room.job(job(task("ps"), task("worker", 2), name="flow", plugins={"tensorflow": []}))
    mpi = room.job(job(task("master"), task("worker", 2), name="mpi", plugins={"mpi": []}))
    torch = room.job(job(task("master"), task("worker", 2), name="torch", plugins={"pytorch": []}))
    # A master without workers lists no hosts; Volcano runs this job as well.
    alone = room.job(job(task("master"), name="alone", plugins={"mpi": []}))
    assert flow.raw["spec"]["plugins"] == {"tensorflow": [], "svc": []}
    assert mpi.raw["spec"]["plugins"] == {"mpi": [], "svc": [], "ssh": []}
    for one in (flow, mpi, torch):
        one.await_count(running=3)
    alone.await_count(running=1)
    assert "MPI_HOST" not in variables(alone.pods()["master-0"])
    config = json.loads(variables(flow.pods()["worker-1"])["TF_CONFIG"])
    assert config == {
        "cluster": {
            "ps": ["flow-ps-0.flow:2222"],
            "worker": ["flow-worker-0.flow:2222", "flow-worker-1.flow:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }
    assert variables(mpi.pods()["master-0"])["MPI_HOST"] == "mpi-worker-0.mpi,mpi-worker-1.mpi"
    assert mpi.owned("secrets") == ["mpi-ssh"]
    found = variables(torch.pods()["worker-1"])
    assert {name: found[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")} == {
        "MASTER_ADDR": "torch-master-0.torch",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "3",
        "RANK": "2",
    }
    with pytest.raises(
        Refused, match=r"unable to find job plugin: x: spec\.plugins; known plugins: env"
    ):
        room.job(job(task("a"), name="odd", plugins={"x": []}))
