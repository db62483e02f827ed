"""Predictions for hypothetical jobs."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.cluster.reasons import ReasonCode
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext
from optsched.study.prediction.hypothetical_jobs import (
    AddedObjects,
    Clash,
    Predictions,
    Start,
    Victim,
    predict,
)
from optsched.study.prediction.queue_position import PredictionSettings
from tests.formats.objects import group, node, pod, queue

HOUR = "2026-11-20T09:00:00Z"
MODEL = load_policy("volcano-default", lambda path: path.read_text())
GROUP = "scheduling.k8s.io/group-name"


def gang(name: str, size: int, cpu: int, on: str = "", **more: Any) -> list[dict[str, Any]]:
    """Return a PodGroup and its pods, which run if `on` names a node.

    `more` are further fields of the PodGroup's spec.
    """
    marks = more.pop("annotations", {})
    state = {"phase": "Running"} if on else {}
    asked = {"resources": {"requests": {"cpu": str(cpu)}}}
    spec = {"containers": [{"name": "c", **asked}], **({"nodeName": on} if on else {})}
    made = {"creationTimestamp": HOUR}
    whole = group(name, {"minMember": size, **more}, annotations=marks, **made)
    head = {**whole, "status": {"phase": "Running"}} if on else whole
    pods = (pod(f"{name}-{i}", spec, state, annotations={GROUP: name}, **made) for i in range(size))
    return [head, *pods]


def asked(objects: list[Any], added: list[Any], *, solver: bool = False) -> Predictions:
    policy = MODEL if solver else without_solver(MODEL)
    return predict(
        objects, AddedObjects(added), PredictionSettings(policy, SessionContext(), DecodeOptions())
    )


NODES = [node("n1"), node("n2")]
"""Of eight CPUs each."""


def test_a_job_that_fits_starts_and_is_told_where() -> None:
    found = asked(NODES, gang("new", 2, 8))
    [answer] = found.added
    assert (answer.gang, answer.start, answer.num_pods) == ("ns/new", Start.NOW, 2)
    assert sorted(answer.places) == ["ns/new-0", "ns/new-1"]
    assert sorted(answer.places.values()) == ["n1", "n2"]
    assert answer.reason is None
    assert answer.expected is None


def test_one_that_does_not_fit_is_told_why_and_when() -> None:
    busy = gang("busy", 2, 8, "n1", annotations={"optsched.io/running-estimate": "2h"})
    busy[2]["spec"]["nodeName"] = "n2"
    found = asked([*NODES, *busy], gang("new", 1, 8))
    [answer] = found.added
    assert answer.start is Start.LATER
    assert answer.reason is not None
    assert answer.reason.code is ReasonCode.MIN_RESOURCES or "cpu" in answer.reason.message
    assert answer.expected is not None
    assert answer.expected.start_ms == found.taken_ms + 2 * 3_600_000
    assert not answer.expected.is_open


def test_pods_that_start_now_are_waited_for() -> None:
    """The predicted start accounts for the pods that start in the current session."""
    hour = {"optsched.io/running-estimate": "1h"}
    first = gang("first", 2, 8, annotations=hour)
    found = asked([*NODES, *first], gang("new", 1, 8))
    [answer] = found.added
    assert answer.start is Start.LATER
    assert answer.expected is not None
    assert answer.expected.start_ms == found.taken_ms + 3_600_000


def test_where_nobody_says_when_pods_end_the_time_is_the_earliest() -> None:
    found = asked([*NODES, *gang("busy", 1, 8, "n1"), *gang("too", 1, 8, "n2")], gang("new", 1, 8))
    [answer] = found.added
    assert answer.start is Start.LATER
    assert answer.expected is not None
    assert answer.expected.is_open


def test_one_that_no_cluster_of_this_size_holds_never_starts() -> None:
    [answer] = asked(NODES, gang("new", 3, 8)).added
    assert answer.start is Start.NEVER
    assert answer.reason is not None
    assert answer.reason.code is ReasonCode.IMPOSSIBLE
    assert answer.expected is None


def test_who_would_have_to_leave_is_named() -> None:
    shares = [queue(name, reclaimable=True, deserved={"cpu": "8"}) for name in ("a", "b")]
    lent = gang("lent", 4, 4, "n1", queue="a", minMember=1)
    for each in lent[3:]:
        each["spec"]["nodeName"] = "n2"
    found = asked([*NODES, *shares, *lent], gang("new", 2, 4, queue="b"))
    [answer] = found.added
    assert answer.start is Start.SOON
    assert len(answer.places) == 2
    assert {victim.gang for victim in answer.victims} == {"ns/lent"}
    assert answer.victims[0] == Victim(
        answer.victims[0].pod, answer.victims[0].node, "ns/lent", "reclaim"
    )
    assert len(answer.victims) == 2


def test_others_who_start_no_more_are_named() -> None:
    waiting = gang("waiting", 2, 8)
    urgent = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 10}
        | {"metadata": {"name": "urgent"}}
    ]
    found = asked([*NODES, *waiting], [*urgent, *gang("new", 1, 8, priorityClassName="urgent")])
    assert [answer.start for answer in found.added] == [Start.NOW]
    assert found.starts_no_more == ("ns/waiting",)
    assert found.starts_too == ()


def test_another_queue_of_the_same_name_counts_in_its_place() -> None:
    small = queue("small", capability={"cpu": "4"})
    waiting = gang("waiting", 1, 8, queue="small")
    assert asked([*NODES, small, *waiting], [small]).starts_too == ()
    found = asked([*NODES, small, *waiting], [queue("small", capability={"cpu": "8"})])
    assert found.added == ()
    assert found.starts_too == ("ns/waiting",)


def test_more_nodes_start_what_waits() -> None:
    found = asked([*NODES, *gang("wide", 3, 8)], [node("n3")])
    assert found.starts_too == ("ns/wide",)


def test_pods_that_are_there_are_not_taken_for_new_ones() -> None:
    with pytest.raises(Clash) as raised:
        asked([*NODES, *gang("same", 1, 1, "n1")], gang("same", 1, 1))
    assert raised.value.names == ("Pod ns/same-0", "PodGroup ns/same")


def test_a_pod_alone_is_a_gang_of_its_own() -> None:
    [answer] = asked(NODES, [pod("alone", namespace="ns")]).added
    assert (answer.gang, answer.start) == ("ns/pod:alone", Start.NOW)


def test_jobs_that_are_asked_about_together_compete() -> None:
    found = asked([node("n1")], [*gang("a", 1, 8), *gang("b", 1, 8)])
    assert sorted(answer.start for answer in found.added) == [Start.LATER, Start.NOW]


def withheld(name: str, size: int, cpu: int) -> AddedObjects:
    """Return a gang whose pods are created only after its admission."""
    whole, *pods = gang(name, size, cpu, minResources={"cpu": str(size * cpu)})
    return AddedObjects([whole], {f"ns/{name}": pods})


def test_pods_of_a_job_come_when_its_gang_is_let_in() -> None:
    settings = PredictionSettings(without_solver(MODEL), SessionContext(), DecodeOptions())
    [answer] = predict(NODES, withheld("new", 2, 8), settings).added
    assert (answer.start, answer.num_pods) == (Start.NOW, 2)
    assert len(answer.places) == 2
    full = [*NODES, *gang("a", 1, 8, "n1"), *gang("b", 1, 8, "n2")]
    [answer] = predict(full, withheld("new", 2, 8), settings).added
    assert (answer.start, answer.num_pods) == (Start.LATER, 2)
    assert answer.reason is not None
    assert answer.reason.code is ReasonCode.OVERCOMMITTED
    assert answer.places == {}
    [answer] = predict(NODES, withheld("new", 3, 8), settings).added
    assert (answer.start, answer.num_pods) == (Start.NEVER, 3)


def test_the_answer_is_the_same_every_time() -> None:
    objects = [*NODES, *gang("busy", 1, 8, "n1")]
    assert asked(objects, gang("new", 2, 4)) == asked(objects, gang("new", 2, 4))


def other(name: str, cpu: int, on: str, **meta: Any) -> dict[str, Any]:
    """Return a running pod of another scheduler."""
    resources = {"requests": {"cpu": str(cpu)}}
    spec = {"nodeName": on, "schedulerName": "default-scheduler"}
    containers = [{"name": "c", "resources": resources}]
    return pod(name, {**spec, "containers": containers}, {"phase": "Running"}, **meta)


@pytest.mark.parametrize("solver", [False, True])
def test_pods_of_other_schedulers_may_leave(solver: bool) -> None:
    objects = [node("n1"), queue("team", weight=1), other("web", 6, "n1")]
    [answer] = asked(objects, gang("new", 1, 4, queue="team"), solver=solver).added
    assert answer.start is Start.LATER
    assert answer.reason is not None
    assert "the gang would start without 1 pod of other schedulers, ns/web" in answer.reason.message


def test_pods_of_other_schedulers_may_hold_the_share_of_a_queue() -> None:
    objects = [
        *(node("n1"), node("n2"), queue("team", weight=1), queue("rest", weight=1)),
        *(other("web-a", 6, "n1"), other("web-b", 6, "n2")),
        *gang("busy", 1, 1, "n1", queue="rest"),
    ]
    [answer] = asked(objects, gang("new", 2, 2, queue="team")).added
    assert answer.start is Start.LATER
    assert answer.reason is not None
    assert answer.reason.message.startswith("queue team deserves 3 cpu")
    assert "other schedulers" not in answer.reason.message
    [answer] = asked(objects, gang("new", 2, 4, queue="team")).added
    assert answer.start is Start.LATER
    assert answer.reason is not None
    assert "2 pods of other schedulers, ns/web-a and others" in answer.reason.message


@pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
def test_pods_that_every_node_runs_do_not_leave(kind: str) -> None:
    owner = {"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u", "controller": True}
    objects = [node("n1"), other("agent", 6, "n1", ownerReferences=[owner])]
    [answer] = asked(objects, gang("new", 1, 4)).added
    assert answer.start is Start.NEVER
    assert answer.reason is not None
    assert "other schedulers" not in answer.reason.message


def test_a_gang_that_no_empty_node_holds_never_starts_with_or_without_them() -> None:
    [answer] = asked([node("n1"), other("web", 6, "n1")], gang("new", 1, 9)).added
    assert answer.start is Start.NEVER
