"""Tests of PodGroups that the controller creates for bare pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.json_fields import owner_reference
from optsched.api.kinds import (
    JOB,
    KUBERNETES_JOB,
    NAMESPACE,
    POD,
    POD_GROUP,
    QUEUE,
    REPLICA_SET,
    STATEFUL_SET,
    Kind,
    Ref,
)
from optsched.controllers.effects import Create
from optsched.controllers.podgroup import Options, PodGroups
from tests.support.memory import MemoryWorld
from tests.support.usage import least

if TYPE_CHECKING:
    from optsched.controllers.controller import Controller

GROUP = "scheduling.k8s.io/group-name"
MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
QUEUE_NAME = "scheduling.volcano.sh/queue-name"
CONTROLLER = PodGroups(Options()).controller


@pytest.fixture
def world() -> MemoryWorld:
    world = MemoryWorld()
    for name in ("root", "default", "q"):
        world.put(QUEUE, {"metadata": {"name": name}, "status": {"state": "Open"}})
    return world


def owner(
    world: MemoryWorld, kind: Kind, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    meta = {"name": "owner", "uid": "u1", "annotations": annotations or {}}
    world.put(kind, {"metadata": meta, "spec": {"replicas": 2, **spec}})
    return owner_reference(kind, world.get(kind, "default", "owner"))


def pod(
    world: MemoryWorld,
    name: str,
    reference: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> None:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "300m", "memory": "1Gi"}}}]
    meta: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "annotations": annotations or {}}
    meta["labels"] = labels or {}
    if reference is not None:
        meta["ownerReferences"] = [reference]
    spec = {"schedulerName": "volcano", "containers": containers, **spec}
    world.put(POD, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def settle(world: MemoryWorld, controller: Controller = CONTROLLER) -> None:
    """Reconcile all objects until no further write happens."""
    for _ in range(10):
        before = len(world.writes)
        refs = dict.fromkeys(Ref(POD_GROUP, "default", name(g)) for g in world.listed(POD_GROUP))
        for kind, wakes in controller.wakes.items():
            for obj in world.listed(kind):
                refs.update(dict.fromkeys(wakes(obj, world)))
        for ref in refs:
            world.apply(controller.decide(ref, world))
        if len(world.writes) == before:
            return
    raise AssertionError("it never comes to rest")


def name(obj: Any) -> str:
    return obj["metadata"]["name"]


def groups(world: MemoryWorld) -> dict[str, Any]:
    return {name(group): group for group in world.listed(POD_GROUP)}


def group_of(world: MemoryWorld, pod: str) -> str | None:
    return world.get(POD, "default", pod)["metadata"]["annotations"].get(GROUP)


def test_a_pod_alone_has_a_podgroup_of_its_own(world: MemoryWorld) -> None:
    pod(world, "a", priorityClassName="high")
    settle(world)
    assert group_of(world, "a") == "podgroup-uid-a"
    [group] = groups(world).values()
    assert group["spec"] == {
        "minMember": 1,
        "queue": "default",
        "minResources": least(1, {"cpu": "300m", "memory": "1Gi"}),
        "priorityClassName": "high",
    }
    assert group["status"] == {"phase": "Pending"}
    [reference] = group["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"], reference["controller"]) == ("Pod", "uid-a", True)


@pytest.mark.parametrize("kind", [REPLICA_SET, STATEFUL_SET, KUBERNETES_JOB], ids=str)
def test_pods_of_an_owner_share_a_podgroup(world: MemoryWorld, kind: Kind) -> None:
    reference = owner(world, kind, {MIN_MEMBER: "3", "volcano.sh/sla-waiting-time": "1h", "x": "y"})
    for each in ("a", "b"):
        pod(world, each, reference, {QUEUE_NAME: "q"}, {"volcano.sh/preemptable": "true"})
    settle(world)
    [group] = groups(world).values()
    assert name(group) == "podgroup-u1"
    assert group["spec"] == {
        "minMember": 3,
        "queue": "q",
        "minResources": least(3, {"cpu": "900m", "memory": "3Gi"}),
    }
    assert group["metadata"]["annotations"] == {"volcano.sh/sla-waiting-time": "1h"}
    assert group["metadata"]["labels"] == {"volcano.sh/preemptable": "true"}
    assert group["metadata"]["ownerReferences"] == [reference]
    assert {group_of(world, each) for each in ("a", "b")} == {"podgroup-u1"}
    assert len([w for w in world.writes if isinstance(w, Create)]) == 1
    assert len(world.writes) == 3


@pytest.mark.parametrize("text", ["", "-1", "three", "1.5", "99999999999", "²"])
def test_a_minimum_that_is_no_number_is_one(world: MemoryWorld, text: str) -> None:
    pod(world, "a", owner(world, REPLICA_SET, {MIN_MEMBER: text}))
    settle(world)
    assert groups(world)["podgroup-u1"]["spec"]["minMember"] == 1


def test_a_minimum_of_nobody_asks_for_nothing(world: MemoryWorld) -> None:
    pod(world, "a", owner(world, REPLICA_SET, {MIN_MEMBER: "0"}))
    settle(world)
    assert groups(world)["podgroup-u1"]["spec"] == {"minMember": 0, "queue": "default"}


def test_what_an_owner_says_counts_only_where_it_may(world: MemoryWorld) -> None:
    pod(world, "a", owner(world, REPLICA_SET, {MIN_MEMBER: "2", "volcano.sh/x": "y"}))
    settle(world, PodGroups(Options(inherits=())).controller)
    [group] = groups(world).values()
    assert group["spec"]["minMember"] == 1
    assert "annotations" not in group["metadata"]


def test_an_owner_that_only_has_the_name_of_the_right_one_says_nothing(world: MemoryWorld) -> None:
    reference = owner(world, REPLICA_SET, {MIN_MEMBER: "2"})
    pod(world, "a", {**reference, "uid": "earlier"})
    settle(world)
    assert groups(world)["podgroup-earlier"]["spec"]["minMember"] == 1


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, None),
        ({"mode": "soft"}, {"mode": "soft"}),
        ({"mode": "SOFT", "highest-tier": "2"}, {"mode": "soft", "highestTierAllowed": 2}),
        ({"highest-tier": "2"}, {"mode": "hard", "highestTierAllowed": 2}),
        ({"mode": "strict", "highest-tier": "two"}, {"mode": "hard"}),
    ],
)
def test_annotations_of_a_pod_say_how_near_its_group_stays(
    world: MemoryWorld, annotations: dict[str, str], expected: object
) -> None:
    found = {f"volcano.sh/network-topology-{key}": value for key, value in annotations.items()}
    pod(world, "a", annotations=found)
    settle(world)
    assert groups(world)["podgroup-uid-a"]["spec"].get("networkTopology") == expected


def test_a_namespace_may_name_the_queue_of_its_pods(world: MemoryWorld) -> None:
    meta = {"name": "default", "annotations": {QUEUE_NAME: "q"}}
    world.put(NAMESPACE, {"metadata": meta})
    pod(world, "a")
    pod(world, "b", annotations={QUEUE_NAME: "default"})
    settle(world)
    queues = {key: group["spec"]["queue"] for key, group in groups(world).items()}
    assert queues == {"podgroup-uid-a": "q", "podgroup-uid-b": "default"}


@pytest.mark.parametrize(
    "changes",
    [
        {"schedulerName": "default-scheduler"},
        {"schedulingGroup": {"podGroupName": "theirs"}},
        {"annotations": {GROUP: "theirs"}},
        {"annotations": {"scheduling.volcano.sh/group-name": "theirs"}},
    ],
)
def test_pods_of_others_are_left_alone(world: MemoryWorld, changes: dict[str, Any]) -> None:
    pod(world, "a", **changes)
    settle(world)
    assert groups(world) == {}
    assert world.writes == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_are_left_alone(world: MemoryWorld, phase: str) -> None:
    pod(world, "a")
    world.phase("a", phase)
    settle(world)
    assert world.writes == []


@pytest.mark.parametrize(
    ("queue", "code", "words"),
    [
        ("none", "QueueNotFound", "queue none does not exist; open are default, q, root"),
        ("shut", "QueueNotOpen", "queue shut is Closed and takes no new work"),
    ],
)
def test_pods_whose_queue_takes_nothing_are_told_and_wait(
    world: MemoryWorld, queue: str, code: str, words: str
) -> None:
    world.put(QUEUE, {"metadata": {"name": "shut"}, "status": {"state": "Closed"}})
    pod(world, "a", annotations={QUEUE_NAME: queue})
    settle(world)
    assert groups(world) == {}
    assert {(event.name, event.code, event.message) for event in world.events} == {
        ("a", code, f"{code}: {words}")
    }
    world.put(QUEUE, {"metadata": {"name": queue}, "status": {"state": "Open"}})
    settle(world)
    assert group_of(world, "a") == "podgroup-uid-a"


def test_a_queue_wakes_those_that_wait_for_it(world: MemoryWorld) -> None:
    world.put(NAMESPACE, {"metadata": {"name": "default", "annotations": {QUEUE_NAME: "later"}}})
    pod(world, "named", annotations={QUEUE_NAME: "later"})
    pod(world, "by-namespace")
    pod(world, "elsewhere", annotations={QUEUE_NAME: "q"})
    wakes = CONTROLLER.wakes[QUEUE]
    found = {ref.name for ref in wakes({"metadata": {"name": "later"}}, world)}
    assert {"podgroup-uid-named", "podgroup-uid-by-namespace"} <= found
    assert {ref.name for ref in wakes({"metadata": {"name": "q"}}, world)} == {
        "podgroup-uid-elsewhere"
    }


def test_a_set_that_wants_no_pods_has_no_podgroup(world: MemoryWorld) -> None:
    reference = owner(world, REPLICA_SET)
    pod(world, "a", reference)
    settle(world)
    owner(world, REPLICA_SET, replicas=0)
    settle(world)
    assert groups(world) == {}
    world.remove(Ref(POD, "default", "a"))
    settle(world)
    assert groups(world) == {}

    owner(world, REPLICA_SET, replicas=1)
    pod(world, "b", reference)
    settle(world)
    assert set(groups(world)) == {"podgroup-u1"}


def test_a_podgroup_follows_its_owner_and_keeps_what_others_say(world: MemoryWorld) -> None:
    reference = owner(world, STATEFUL_SET, {MIN_MEMBER: "1"})
    topology = {"volcano.sh/network-topology-mode": "soft"}
    pod(world, "a", reference, topology)
    settle(world)
    ref = Ref(POD_GROUP, "default", "podgroup-u1")

    def schedule(group: dict[str, Any]) -> None:
        group["status"] = {"phase": "Running", "running": 1}
        group["metadata"]["annotations"]["volcano.sh/job-allocated-hypernode"] = "h1"

    world.change(ref, schedule)
    owner(world, STATEFUL_SET, {MIN_MEMBER: "2", "volcano.sh/cooldown-time": "1m"})
    world.passes(5)
    pod(world, "b", reference, priorityClassName="high")
    world.get(POD, "default", "b")["spec"]["containers"][0]["resources"]["requests"].pop("memory")
    settle(world)
    group = groups(world)["podgroup-u1"]
    assert group["spec"] == {
        "minMember": 2,
        "queue": "default",
        "minResources": least(2, {"cpu": "600m"}),
        "priorityClassName": "high",
    }
    assert group["status"] == {"phase": "Running", "running": 1}
    assert group["metadata"]["annotations"] == {
        "volcano.sh/network-topology-mode": "soft",
        "volcano.sh/cooldown-time": "1m",
        "volcano.sh/job-allocated-hypernode": "h1",
    }


def test_a_podgroup_that_is_as_it_should_be_is_not_written(world: MemoryWorld) -> None:
    pod(world, "a", owner(world, REPLICA_SET, {MIN_MEMBER: "2"}))
    settle(world)
    assert CONTROLLER.decide(Ref(POD_GROUP, "default", "podgroup-u1"), world) == ()


def test_podgroups_of_others_are_left_alone(world: MemoryWorld) -> None:
    world.put(POD_GROUP, {"metadata": {"name": "training"}, "spec": {"minMember": 4}})
    settle(world)
    assert world.writes == []


@pytest.mark.parametrize("is_annotated", [True, False])
def test_the_podgroup_of_a_job_named_podgroup_is_left_alone(
    world: MemoryWorld, *, is_annotated: bool
) -> None:
    """Its name begins like those of PodGroups for pods, but its job sets its minimum and queue."""
    world.put(JOB, {"metadata": {"name": "podgroup", "uid": "u1"}, "spec": {}})
    reference = owner_reference(JOB, world.get(JOB, "default", "podgroup"))
    meta = {"name": "podgroup-u1", "ownerReferences": [reference]}
    world.put(POD_GROUP, {"metadata": meta, "spec": {"minMember": 2, "queue": "q"}})
    for number in range(2):
        annotations = {GROUP: "podgroup-u1"} if is_annotated else {}
        pod(world, f"podgroup-w-{number}", reference, annotations)
    settle(world)
    assert not world.writes
    world.put(JOB, {"metadata": {"name": "other", "uid": "u2"}, "spec": {}})
    pod(world, "other-w-0", owner_reference(JOB, world.get(JOB, "default", "other")))
    settle(world)
    assert set(groups(world)) == {"podgroup-u1", "podgroup-u2"}


@pytest.mark.parametrize(("uid", "is_kept"), [("mine", True), ("u1", False)])
def test_a_podgroup_of_a_user_is_kept_when_its_owner_has_no_replicas(
    world: MemoryWorld, uid: str, *, is_kept: bool
) -> None:
    reference = owner(world, STATEFUL_SET, replicas=0)
    meta = {"name": f"podgroup-{uid}", "ownerReferences": [reference]}
    world.put(POD_GROUP, {"metadata": meta, "spec": {"minMember": 2}})
    settle(world)
    assert bool(groups(world)) is is_kept


def test_a_podgroup_that_is_on_its_way_out_is_waited_for(world: MemoryWorld) -> None:
    pod(world, "a")
    settle(world)
    ref = Ref(POD_GROUP, "default", "podgroup-uid-a")
    world.change(ref, lambda g: g["metadata"].update(finalizers=["x"], deletionTimestamp="now"))
    pod(world, "a")
    assert CONTROLLER.decide(ref, world) == ()
