"""Tests of `optsched job explain` and `job list --position`; tests/e2e uses a real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import (
    EVENT,
    JOB,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    SERVICE,
    Ref,
)
from optsched.api.wellknown import FULL_MESSAGE
from tests.cli.clusters import CONTEXT, FakeCluster, answer, cluster, job, optsched
from tests.formats.objects import group, node, pod
from tests.formats.objects import queue as bare_queue

if TYPE_CHECKING:
    from click.testing import Result

    from optsched.api.kinds import Kind

__all__ = ["cluster"]

KEYS = {
    *("apiVersion", "kind", "name", "namespace", "phase", "queue", "pods", "running"),
    *("succeeded", "failed"),
    *("minAvailable", "reason", "waitingSince", "position", "numWaiting", "ahead"),
    *("expectedStart", "isEarliest"),
}
MESSAGE = "room for 0 of 4 pods"


def explain(*arguments: object) -> Result:
    return optsched("job", "explain", *arguments)


def waits(cluster: FakeCluster, name: str, minute: int, code: str = "NotEnoughResources") -> None:
    """Add a waiting job whose pods do not exist yet."""
    made = f"2026-11-20T09:{minute:02}:00Z"
    body = job(name, phase="Pending")
    body["metadata"] |= {"uid": f"{name}-uid", "creationTimestamp": made}
    cluster.objects[Ref(JOB, CONTEXT, name)] = body
    condition = {"type": "Unschedulable", "status": "True", "reason": code, "message": MESSAGE}
    where = {"namespace": CONTEXT, "creationTimestamp": made}
    whole = group(f"{name}-{name}-uid", {"minMember": 3, "queue": "default"}, **where)
    status = {"phase": "Pending", "conditions": [condition] if code else []}
    key = Ref(POD_GROUP, CONTEXT, whole["metadata"]["name"])
    cluster.objects[key] = {**whole, "status": status}


@pytest.fixture
def full(cluster: FakeCluster) -> FakeCluster:
    """Return a cluster whose only node stays occupied for two more hours."""
    cluster.put(node("n1"))
    cluster.put(bare_queue("default", weight=1))
    marks = {"optsched.io/running-estimate": "2h"}
    spec: dict[str, Any] = {"nodeName": "n1", "containers": [{"name": "c"}]}
    spec["containers"][0]["resources"] = {"requests": {"cpu": "8", "pods": "10"}}
    busy = pod("busy", spec, {"phase": "Running"}, namespace=CONTEXT, annotations=marks)
    cluster.objects[Ref(POD, CONTEXT, "busy")] = busy
    return cluster


def test_a_job_before_it_has_the_name_of_the_job(full: FakeCluster) -> None:
    waits(full, "first", 1)
    waits(full, "train", 2)
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "first"}
    group_of_first = full.objects[Ref(POD_GROUP, CONTEXT, "first-first-uid")]
    group_of_first["metadata"]["ownerReferences"] = [{**owner, "uid": "u", "controller": True}]
    assert f"in queue default, behind {CONTEXT}/first\n" in explain("train").stdout
    assert f"{CONTEXT}/first-first-uid" in explain("train", "-o", "json").stdout


def test_it_says_why_where_and_when(full: FakeCluster) -> None:
    waits(full, "first", 1)
    waits(full, "train", 2)
    result = explain("train")
    assert result.exit_code == 8
    lines = result.stdout.splitlines()
    assert lines[0] == f"{CONTEXT}/train is Pending: 0 of 4 pods run, 3 have to start together"
    assert lines[1] == f"Reason:    NotEnoughResources: {MESSAGE}"
    assert lines[2].startswith("Waiting:   for ")
    ahead = f"{CONTEXT}/first-first-uid"
    assert lines[3] == f"Position:  2 of 2 that wait in queue default, behind {ahead}"
    assert lines[4].startswith("Expected:  ")
    assert full.writes == []


def test_programs_find_the_same_keys_always(full: FakeCluster) -> None:
    waits(full, "train", 2)
    running = job("done", phase="Completed")
    running["metadata"]["uid"] = "done-uid"
    full.objects[Ref(JOB, CONTEXT, "done")] = running
    import json

    waiting = json.loads(explain("train", "-o", "json").stdout)
    done = answer(explain("done", "-o", "json"))
    assert set(waiting) == set(done) == KEYS
    assert (waiting["position"], waiting["numWaiting"], waiting["ahead"]) == (1, 1, [])
    assert waiting["reason"] == {"code": "NotEnoughResources", "message": MESSAGE}
    assert waiting["waitingSince"] == "2026-11-20T09:02:00Z"
    assert (done["phase"], done["position"], done["reason"]) == ("Completed", None, None)


def test_ended_pods_are_counted(full: FakeCluster) -> None:
    ended = job("done", phase="Completed")
    ended["status"] |= {"succeeded": 3, "failed": 1, "running": 0}
    full.objects[Ref(JOB, CONTEXT, "done")] = ended
    [line] = explain("done").stdout.splitlines()
    counts = "0 of 4 pods run, 3 succeeded, 1 failed, 3 have to start together"
    assert line == f"{CONTEXT}/done is Completed: {counts}"
    facts = answer(explain("done", "-o", "json"))
    assert (facts["running"], facts["succeeded"], facts["failed"]) == (0, 3, 1)


def test_one_that_is_impossible_has_a_code_of_its_own(full: FakeCluster) -> None:
    waits(full, "huge", 1, code="Impossible")
    assert explain("huge").exit_code == 9


def test_a_scheduler_that_says_nothing_is_told(full: FakeCluster) -> None:
    waits(full, "new", 1, code="")
    result = explain("new")
    assert result.exit_code == 8
    assert "the scheduler has not reported a reason yet" in result.stdout


QUOTA = (
    "Pod team-a/train-ps-0 was not created: pods is forbidden: exceeded quota: q, "
    "requested: pods=1, used: pods=2, limited: pods=2"
)


def refuse(cluster: FakeCluster, name: str, message: str, second: int) -> None:
    """Add an event in which the job controller reports that a pod was refused."""
    when = f"2026-11-20T09:30:{second:02}Z"
    about = {"kind": "Job", "name": name, "namespace": CONTEXT, "uid": f"{name}-uid"}
    key = Ref(EVENT, CONTEXT, f"{name}.{second}")
    meta = {"name": key.name, "namespace": CONTEXT, "creationTimestamp": when}
    told = {"reason": "FailedCreate", "type": "Warning", "message": message, "lastTimestamp": when}
    cluster.objects[key] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": meta,
        "involvedObject": about,
        **told,
    }


def test_what_keeps_pods_from_being_made_is_named(full: FakeCluster) -> None:
    waits(full, "train", 1, code="NotEnoughTasks")
    waits(full, "other", 2)
    refuse(full, "train", "an older answer", 1)
    refuse(full, "train", QUOTA, 2)
    result = explain("train")
    assert result.exit_code == 8
    assert f"Reason:    FailedCreate: {QUOTA}" in result.stdout.splitlines()
    listed = optsched("job", "list", "-o", "wide").stdout
    assert listed.count(QUOTA) == 1
    assert f"FailedCreate: {QUOTA}" in optsched("job", "view", "train").stdout


@pytest.mark.parametrize("cut", [1023, 40])
def test_the_whole_of_a_long_refusal_is_shown(full: FakeCluster, cut: int) -> None:
    """The API server cuts messages of events, so an annotation holds the whole message."""
    whole = f"{QUOTA}, {', '.join(f'rule {n} is violated' for n in range(200))}: the end"
    waits(full, "train", 1)
    refuse(full, "train", f"{whole[:cut]}…", 2)
    full.objects[Ref(EVENT, CONTEXT, "train.2")]["metadata"]["annotations"] = {FULL_MESSAGE: whole}
    assert f"Reason:    FailedCreate: {whole}" in explain("train").stdout.splitlines()
    assert f"FailedCreate: {whole}" in optsched("job", "view", "train").stdout
    assert f"job train: FailedCreate: {whole}\n" in optsched("job", "list").stderr
    refuse(full, "train", QUOTA, 2)
    full.objects[Ref(EVENT, CONTEXT, "train.2")]["metadata"]["annotations"] = {FULL_MESSAGE: whole}
    assert f"Reason:    FailedCreate: {QUOTA}" in explain("train").stdout.splitlines()


def test_pods_that_were_made_after_all_are_no_reason(full: FakeCluster) -> None:
    waits(full, "train", 1)
    refuse(full, "train", QUOTA, 2)
    full.objects[Ref(JOB, CONTEXT, "train")]["status"]["pending"] = 4
    assert f"Reason:    NotEnoughResources: {MESSAGE}" in explain("train").stdout.splitlines()


CLAIM = (
    "PersistentVolumeClaim team-a/train-pvc-1 was not created: claims are forbidden: "
    "exceeded quota: q, requested: persistentvolumeclaims=1"
)


@pytest.mark.parametrize(
    ("message", "kind", "name"),
    [
        (CLAIM, PERSISTENT_VOLUME_CLAIM, "train-pvc-1"),
        ("Service team-a/train was not created: exceeded quota: q", SERVICE, "train"),
    ],
)
def test_other_objects_that_are_refused_are_named_until_they_exist(
    full: FakeCluster, message: str, kind: Kind, name: str
) -> None:
    waits(full, "train", 1)
    refuse(full, "train", QUOTA, 1)
    refuse(full, "train", message, 2)
    full.objects[Ref(JOB, CONTEXT, "train")]["status"]["pending"] = 4
    assert f"Reason:    FailedCreate: {message}" in explain("train").stdout.splitlines()
    assert message in optsched("job", "list", "-o", "wide").stdout
    assert f"FailedCreate: {message}" in optsched("job", "view", "train").stdout
    ref = Ref(kind, CONTEXT, name)
    full.objects[ref] = {"metadata": {"name": name, "namespace": CONTEXT}}
    assert f"Reason:    NotEnoughResources: {MESSAGE}" in explain("train").stdout.splitlines()
    assert message not in optsched("job", "list", "-o", "wide").stdout


def test_the_reason_is_given_to_users_who_may_not_read_nodes(full: FakeCluster) -> None:
    waits(full, "train", 1)
    state = full.objects[Ref(JOB, CONTEXT, "train")]["status"]["state"]
    state |= {"reason": "NotEnoughResources", "message": MESSAGE}
    full.forbidden = {NODE}
    result = explain("train")
    assert result.exit_code == 8
    assert result.stdout.splitlines()[1:] == [f"Reason:    NotEnoughResources: {MESSAGE}"]
    hidden = "the position and the expected start are not shown: nodes is forbidden\n"
    assert result.stderr == hidden
    state["reason"] = "Impossible"
    assert explain("train").exit_code == 9


def test_positions_do_not_hide_what_is_refused(full: FakeCluster) -> None:
    waits(full, "train", 1)
    refuse(full, "train", QUOTA, 2)
    assert f"job train: FailedCreate: {QUOTA}" in optsched("job", "list", "--position").stderr
    assert QUOTA in optsched("job", "list", "--position", "-o", "wide").stdout


def test_the_queue_is_that_of_the_podgroup(full: FakeCluster) -> None:
    """Admission may have put the PodGroup into the queue of its namespace."""
    waits(full, "train", 1)
    full.objects[Ref(POD_GROUP, CONTEXT, "train-train-uid")]["spec"]["queue"] = "other"
    assert json.loads(explain("train", "-o", "json").stdout)["queue"] == "other"


@pytest.mark.parametrize(
    ("flags", "position"), [((), "2 of 2"), (("--tenant-priority-class", "high"), "1 of 2")]
)
def test_a_podgroup_counts_at_most_as_its_pods(
    full: FakeCluster, flags: tuple[str, ...], position: str
) -> None:
    waits(full, "first", 1)
    waits(full, "train", 2)
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    full.put({**head, "metadata": {"name": "high"}, "value": 1000})
    name = "train-train-uid"
    full.objects[Ref(POD_GROUP, CONTEXT, name)]["spec"]["priorityClassName"] = "high"
    mark = {"scheduling.k8s.io/group-name": name}
    for i in range(3):
        full.put(pod(f"train-{i}", namespace=CONTEXT, annotations=mark))
    lines = explain("train", *flags).stdout.splitlines()
    assert any(line.startswith(f"Position:  {position}") for line in lines), lines


def test_what_is_not_there(full: FakeCluster) -> None:
    assert full.objects
    assert explain("nobody").exit_code == 3


def test_jobs_are_listed_with_their_places(full: FakeCluster) -> None:
    waits(full, "first", 1)
    waits(full, "second", 2)
    full.objects[Ref(JOB, CONTEXT, "runs")] = job("runs", phase="Running")
    result = optsched("job", "list", "--position")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    at = rows[0].index("Position")
    assert rows[0][at - 1] == "Phase"
    assert {row[0]: row[at] for row in rows[1:]} == {
        "first": "1/2",
        "second": "2/2",
        "runs": "<none>",
    }
    assert "Position" not in optsched("job", "list").stdout
