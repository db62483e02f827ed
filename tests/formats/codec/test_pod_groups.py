from __future__ import annotations

from typing import Any

import pytest

from optsched.api.podgroup import parse_podgroup
from optsched.api.queue import parse_queue
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase, Queue, QueueState
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.formats.codec.pod_groups import (
    gang_of_group,
    gang_without_group,
    implicit_gang,
)
from optsched.formats.codec.pod_limits import Priorities, parse_priority_class, priorities
from optsched.formats.codec.queues import queue_of, with_builtin_queues
from tests.formats.objects import group, queue, thing

SHAPE = TaskShape((("cpu", 1000),))


def task(name: str, status: TaskStatus = TaskStatus.PENDING, **fields: Any) -> Task:
    return Task(f"ns/{name}", SHAPE, status, **{"gang": "ns/g", **fields})


def gang(made: Any, tasks: tuple[Task, ...] = (), table: Priorities | None = None) -> Gang:
    found, _ = parse_podgroup(made)
    assert found is not None
    return gang_of_group(found, tasks, table or Priorities())[0]


def test_a_whole_gang():
    made = group(
        "g",
        {
            "minMember": 2,
            "minTaskMember": {"worker": 1, "ps": 1},
            "queue": "lab",
            "priorityClassName": "high",
            "minResources": {"cpu": "2", "memory": "1Gi"},
        },
        uid="u",
        creationTimestamp="1970-01-01T00:00:07Z",
        annotations={"sla-waiting-time": "5m"},
    )
    made["status"] = {"phase": "Inqueue"}
    early, late = task("a", index=1), task("b", priority=1)
    assert gang(made, (early, late), Priorities({"high": 9})) == Gang(
        key="ns/g",
        queue="lab",
        uid="u",
        min_member=2,
        min_role=(("ps", 1), ("worker", 1)),
        min_resources=(("cpu", 2000), ("memory", 2**30)),
        priority=9,
        created_ms=7000,
        waiting_since_ms=7000,
        phase=GangPhase.INQUEUE,
        tasks=(late, early),
        annotations={"sla-waiting-time": "5m"},
    )


def test_an_empty_group_has_volcanos_defaults():
    assert gang(group()) == Gang("ns/g", queue="default", phase=GangPhase.PENDING)
    assert gang(group(), table=Priorities(default=4)).priority == 4


def test_a_missing_priority_class_is_only_remarked():
    found, errors = parse_podgroup(group("g", {"priorityClassName": "gone"}))
    assert found is not None
    assert errors == ()
    made, remarks = gang_of_group(found, (), Priorities(default=5))
    assert (made.priority, made.problem) == (0, None)
    assert [r.path for r in remarks] == ["spec.priorityClassName"]


def test_an_invalid_group_says_why_in_one_sentence():
    found = gang(group("g", {"minMember": "two", "minResources": {"cpu": "x"}}))
    assert found.problem is not None
    assert found.problem.code is ReasonCode.INVALID_POD_GROUP
    assert found.problem.message.startswith(
        'PodGroup ns/g: spec.minMember: "two" is not a whole number; spec.minResources[cpu]: "x" is'
    )


@pytest.mark.parametrize(
    ("name", "owner", "tasks", "has_lost_its_pods"),
    [
        ("podgroup-u", "v1/Pod", (), True),
        ("podgroup-u", "v1/Pod", (task("p"),), False),
        ("podgroup-u", "batch/v1/Job", (), True),
        ("podgroup-u", "apps/v1/ReplicaSet", (), True),
        ("podgroup-u", "example.com/v1/Trainer", (), True),
        ("podgroup-u", "batch.volcano.sh/v1alpha1/Job", (), False),  # a Job named podgroup
        ("podgroup-u", "", (), False),
        ("job-u", "batch.volcano.sh/v1alpha1/Job", (), False),
        ("g", "example.com/v1/Trainer", (), False),
    ],
)
def test_a_group_made_for_pods_reserves_nothing_once_they_have_left(
    name: str, owner: str, tasks: tuple[Task, ...], *, has_lost_its_pods: bool
):
    made = group(name)
    made["status"] = {"phase": "Inqueue"}
    if owner:
        version, _, kind = owner.rpartition("/")
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": version, "kind": kind, "name": "p", "uid": "u", "controller": True}
        ]
    found = gang(made, tasks)
    assert found.phase is (GangPhase.PENDING if has_lost_its_pods else GangPhase.INQUEUE)
    reason = None if found.problem is None else found.problem.code
    assert reason is (ReasonCode.NOT_ENOUGH_TASKS if has_lost_its_pods else None)


def test_a_gang_that_has_run_waits_since_then():
    marks = {"optsched.io/waiting-since": "1970-01-01T00:01:00.5Z", "other": "x"}
    found = gang(group(annotations=marks))
    assert found.waiting_since_ms == 60_500
    assert found.annotations == {"other": "x"}
    bad = gang(group(annotations={"optsched.io/waiting-since": "today"}))
    assert bad.waiting_since_ms == bad.created_ms


def test_a_group_that_does_not_exist():
    members = (task("b", priority=1, created_ms=5), task("a", priority=3, created_ms=9))
    assert gang_without_group("ns/g", members, "lab") == Gang(
        key="ns/g",
        queue="lab",
        priority=3,
        created_ms=5,
        waiting_since_ms=5,
        tasks=(members[1], members[0]),
        problem=Reason(
            ReasonCode.POD_GROUP_NOT_FOUND, "PodGroup ns/g, which pod ns/a names, does not exist"
        ),
    )


@pytest.mark.parametrize(
    ("status", "is_missed"),
    [
        (TaskStatus.SUCCEEDED, False),
        (TaskStatus.FAILED, False),
        (TaskStatus.RELEASING, False),
        (TaskStatus.RUNNING, True),
    ],
)
def test_pods_at_their_end_miss_no_group(status: TaskStatus, is_missed: bool):
    members = (task("a", status=TaskStatus.SUCCEEDED), task("b", status=status))
    assert (gang_without_group("ns/g", members, "lab").problem is not None) == is_missed


def test_a_group_that_controllers_have_yet_to_make():
    members = {"bare": task("a", uid="u"), "owned": task("a", uid="v", owner="u")}
    for member in members.values():
        problem = gang_without_group("ns/podgroup-u", (member,), "lab").problem
        assert problem is not None
        assert problem.message == (
            "PodGroup ns/podgroup-u of pod ns/a does not exist yet: controllers will create it"
        )


def test_controllers_make_no_group_that_a_user_named_like_theirs():
    problem = gang_without_group("ns/podgroup-mine", (task("a", uid="u"),), "lab").problem
    assert problem is not None
    assert problem.message == "PodGroup ns/podgroup-mine, which pod ns/a names, does not exist"


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        (TaskStatus.PENDING, GangPhase.PENDING),
        (TaskStatus.GATED, GangPhase.PENDING),
        (TaskStatus.BOUND, GangPhase.RUNNING),
        (TaskStatus.RELEASING, GangPhase.RUNNING),
        (TaskStatus.FAILED, GangPhase.COMPLETED),
    ],
)
def test_a_pod_on_its_own_is_a_gang(status: TaskStatus, phase: GangPhase):
    alone = task("p", status, gang="ns/pod:p", priority=9, created_ms=3)
    marks = {"volcano.sh/task-priority": "9", "scheduling.volcano.sh/queue-name": "q", "sla": "1m"}
    assert implicit_gang(alone, "q", 4, marks) == Gang(
        key="ns/pod:p",
        queue="q",
        min_member=1,
        priority=4,
        created_ms=3,
        waiting_since_ms=3,
        phase=phase,
        tasks=(alone,),
        annotations={"sla": "1m"},
        is_implicit=True,
    )


def read_queue(made: Any) -> Queue:
    found, _ = parse_queue(made)
    assert found is not None
    return queue_of(found)


def test_a_whole_queue():
    made = queue(
        "lab",
        weight=3,
        capability={"cpu": "8"},
        deserved={"cpu": "4"},
        guarantee={"resource": {"cpu": "2", "memory": "1Gi"}},
        reclaimable=False,
        parent="dept",
        priority=5,
        dequeueStrategy="fifo",
    )
    made["status"] = {"state": "Closing"}
    made["metadata"].update(
        annotations={"volcano.sh/hierarchy": "root/dept/lab"},
        creationTimestamp="1970-01-01T00:00:01Z",
    )
    assert read_queue(made) == Queue(
        name="lab",
        weight=3,
        capability=(("cpu", 8000),),
        deserved=(("cpu", 4000), ("memory", 2**30)),
        guarantee=(("cpu", 2000), ("memory", 2**30)),
        reclaimable=False,
        parent="dept",
        priority=5,
        created_ms=1000,
        state=QueueState.CLOSING,
        is_fifo=True,
        annotations={"volcano.sh/hierarchy": "root/dept/lab"},
    )


def test_an_empty_capability_limits_nothing_but_a_zero_does():
    assert read_queue(queue("q", capability={})) == Queue("q")
    assert read_queue(queue("q", capability={"cpu": 0})).capability == (("cpu", 0),)


def test_an_invalid_queue_says_why():
    found = read_queue(queue("q", weight=70000))
    assert found.problem is not None
    assert found.problem.code is ReasonCode.INVALID_QUEUE
    assert found.problem.message.startswith("spec.weight: 70000 is out of range")


def test_missing_builtin_queues_are_added():
    root = Queue("root", weight=7)
    assert with_builtin_queues([Queue("lab")]) == (
        Queue("default"),
        Queue("lab"),
        Queue("root", reclaimable=False),
    )
    assert with_builtin_queues([root])[1] is root


def test_priority_classes():
    made = [
        thing("scheduling.k8s.io/v1", "PriorityClass", name, value=value, globalDefault=default)
        for name, value, default in (("a", 10, False), ("b", 5, True), ("c", 3, True))
    ]
    table = priorities(each for each, _ in map(parse_priority_class, made) if each is not None)
    assert [table.value_of(n) for n in ("a", "b", "", "none", "system-cluster-critical")] == [
        10,
        5,
        3,
        None,
        2_000_000_000,
    ]


def test_pods_without_a_class_have_the_policy_of_the_default_class() -> None:
    made = [
        thing("scheduling.k8s.io/v1", "PriorityClass", name, value=1, **more)
        for name, more in (
            ("a", {"preemptionPolicy": "Never", "globalDefault": True}),
            ("b", {"preemptionPolicy": "Never"}),
            ("c", {"globalDefault": True}),
        )
    ]
    classes = [each for each, _ in map(parse_priority_class, made) if each is not None]
    assert priorities(classes).never_preempting == {"", "a", "b"}
    assert priorities(classes[1:]).never_preempting == {"b"}


def test_a_waiting_time_without_a_reading_is_remarked_on() -> None:
    key = "volcano.sh/sla-waiting-time"
    for text, paths in (("3m", []), ("soon", [f"metadata.annotations[{key}]"])):
        obj = {"metadata": {"name": "g", "namespace": "ns", "annotations": {key: text}}}
        group, _ = parse_podgroup(obj)
        assert group is not None
        gang, remarks = gang_of_group(group, (), priorities([]))
        assert [r.path for r in remarks] == paths
        assert gang.problem is None


def test_an_annotation_comes_before_a_label_about_being_evicted() -> None:
    key = "volcano.sh/preemptable"
    assert gang(group(labels={key: "true"})).annotations == {key: "true"}
    both = gang(group(labels={key: "true"}, annotations={key: "false"}))
    assert both.annotations == {key: "false"}


def test_min_resources_as_quotas_count_them_are_no_resources_of_nodes() -> None:
    named = {
        "cpu": "2",
        "requests.cpu": "2",
        "limits.cpu": "4",
        "requests.nvidia.com/gpu": "1",
        "pods": "3",
        "count/pods": "3",
    }
    found = gang(group("g", {"minResources": named}))
    assert found.min_resources == (("cpu", 2000), ("nvidia.com/gpu", 1))
    assert dict(found.min_usage) == {
        "requests.cpu": 2000,
        "limits.cpu": 4000,
        "requests.nvidia.com/gpu": 1,
        "pods": 3,
        "count/pods": 3,
    }


def test_limits_that_only_quotas_count_are_no_resources_of_nodes() -> None:
    named = {"cpu": "2", "nvidia.com/gpu": "0", "requests.nvidia.com/gpu": "8"}
    found = gang(group("g", {"minResources": named}))
    assert found.min_resources == (("cpu", 2000),)
    assert dict(found.min_usage) == {"requests.nvidia.com/gpu": 8}
