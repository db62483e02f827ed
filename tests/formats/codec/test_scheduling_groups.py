"""PodGroups of `scheduling.k8s.io` are gangs as well."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.topology import TopologyRequest
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from tests.formats.objects import group, meta, pod

GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}
IN_G = {"schedulingGroup": {"podGroupName": "g"}}


def scheduling_group(spec: dict[str, Any], version: str = "v1beta1", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "metadata": meta("g", **more),
        "spec": spec,
    }


def priority_class(name: str, value: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def gang(*objects: dict[str, Any]) -> Any:
    found = assemble(objects)
    assert encoded_again(found.snapshot) == found.snapshot
    return found.snapshot.gang_by_key["ns/k8s:g"]


def encoded_again(snapshot: Any) -> Any:
    return assemble(encode(snapshot)).snapshot


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3", "v1alpha2"])
def test_pods_start_together(version: str):
    found = gang(scheduling_group(GANG, version), pod("a", IN_G), pod("b", IN_G))
    assert found.min_member == 2
    assert [task.key for task in found.tasks] == ["ns/a", "ns/b"]
    assert (found.queue, found.phase, found.topology) == ("default", GangPhase.INQUEUE, None)
    assert not found.is_implicit


def test_or_each_by_itself():
    assert (
        gang(scheduling_group({"schedulingPolicy": {"basic": {}}}), pod("a", IN_G)).min_member == 1
    )


def test_pods_may_have_to_be_where_a_label_is_the_same():
    constraint = {"topology": [{"key": "topology.kubernetes.io/zone"}]}
    found = gang(scheduling_group({**GANG, "schedulingConstraints": constraint}))
    assert found.topology == TopologyRequest(label="topology.kubernetes.io/zone")
    assert found.topology.is_hard


def test_the_newest_version_counts():
    old = {"schedulingPolicy": {"gang": {"minCount": 5}}}
    both = scheduling_group(old, "v1alpha3"), scheduling_group(GANG)
    assert gang(*both).min_member == 2


def test_volcanos_of_the_same_name_are_others():
    named = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
    objects = group("g"), scheduling_group(GANG), pod("a", IN_G), pod("b", IN_G, **named)
    gangs = assemble(objects).snapshot.gang_by_key
    assert [t.key for t in gangs["ns/g"].tasks] == ["ns/b"]
    assert [t.key for t in gangs["ns/k8s:g"].tasks] == ["ns/a"]


@pytest.mark.parametrize("marks", ["labels", "annotations"])
def test_a_mark_names_the_queue(marks: str):
    marked = {marks: {"scheduling.volcano.sh/queue-name": "team"}}
    assert gang(scheduling_group(GANG, **marked)).queue == "team"


@pytest.mark.parametrize(
    ("spec", "priority"),
    [
        ({"priority": 3, "priorityClassName": "high"}, 3),
        ({"priorityClassName": "high"}, 7),
        ({"priorityClassName": "gone"}, 0),
        ({}, 5),
    ],
)
def test_its_own_priority_comes_before_that_of_pods(spec: dict[str, Any], priority: int):
    objects = priority_class("high", 7), pod("a", {**IN_G, "priority": 5})
    assert gang(scheduling_group({**GANG, **spec}), *objects).priority == priority


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({}, "spec.schedulingPolicy is missing"),
        ({"schedulingPolicy": {}}, "write basic or gang"),
        ({"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}}, "has both basic and gang"),
        ({"schedulingPolicy": {"gang": {}}}, "gang.minCount is missing"),
        ({"schedulingPolicy": {"gang": {"minCount": 0}}}, "minCount"),
        (
            {**GANG, "schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
            "several labels",
        ),
        ({**GANG, "resourceClaims": [{"name": "gpus"}]}, "devices for the whole PodGroup"),
        ({**GANG, "parentCompositePodGroupName": "all"}, "CompositePodGroup"),
    ],
)
def test_what_is_not_understood_keeps_it_waiting(spec: dict[str, Any], text: str):
    found = gang(scheduling_group(spec), pod("a", IN_G))
    assert found.problem.code is ReasonCode.INVALID_POD_GROUP
    assert text in found.problem.message


def test_pods_wait_for_a_group_that_is_not_there():
    found = gang(pod("a", IN_G))
    assert found.problem.code is ReasonCode.POD_GROUP_NOT_FOUND
    assert "PodGroup ns/g of scheduling.k8s.io, which pod ns/a names" in found.problem.message


def test_groups_of_other_schedulers_pods_are_not_ours():
    theirs = pod("a", {**IN_G, "schedulerName": "default-scheduler"})
    assert assemble([scheduling_group(GANG), theirs]).snapshot.gangs == ()
