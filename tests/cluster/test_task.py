"""Tests of tolerations, host ports, shapes and the order of tasks."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import permutations

import pytest

from optsched.cluster.dra_devices import DeviceNeed
from optsched.cluster.node_resources import GpuShareRequest, NumaNeed, RequiredData
from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.task import (
    DeviceRequest,
    HostPort,
    PodTerm,
    SpreadTerm,
    Task,
    TaskShape,
    TaskStatus,
)

NO_SCHEDULE, NO_EXECUTE = TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE
GPU_TAINT = Taint("gpu", "a100", NO_SCHEDULE)


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("gpu", value="a100", effect=NO_SCHEDULE), True),
        (Toleration("gpu", value="a100"), True),
        (Toleration("gpu", value="h100"), False),
        (Toleration("gpu"), False),  # the toleration matches only the empty value
        (Toleration("gpu", exists=True), True),
        (Toleration("gpu", exists=True, effect=NO_SCHEDULE), True),
        (Toleration("gpu", exists=True, effect=NO_EXECUTE), False),
        (Toleration("cpu", exists=True), False),
        (Toleration(exists=True), True),  # the toleration matches every taint
        (Toleration(exists=True, effect=NO_EXECUTE), False),
    ],
)
def test_tolerations_answer_taints_as_upstream(toleration: Toleration, tolerates: bool) -> None:
    assert toleration.tolerates(GPU_TAINT) is tolerates


def test_toleration_of_the_empty_value_answers_a_taint_without_one() -> None:
    assert Toleration("gpu").tolerates(Taint("gpu", "", NO_SCHEDULE))


@pytest.mark.parametrize(
    ("taint", "text"),
    [(GPU_TAINT, "gpu=a100:NoSchedule"), (Taint("spot", "", NO_EXECUTE), "spot:NoExecute")],
)
def test_taints_read_as_kubectl_writes_them(taint: Taint, text: str) -> None:
    assert str(taint) == text


@pytest.mark.parametrize(
    ("one", "other", "collides"),
    [
        (("TCP", "0.0.0.0", 80), ("TCP", "0.0.0.0", 80), True),
        (("TCP", "0.0.0.0", 80), ("TCP", "10.0.0.1", 80), True),
        (("TCP", "10.0.0.1", 80), ("TCP", "10.0.0.1", 80), True),
        (("TCP", "10.0.0.1", 80), ("TCP", "10.0.0.2", 80), False),
        (("TCP", "0.0.0.0", 80), ("UDP", "0.0.0.0", 80), False),
        (("TCP", "0.0.0.0", 80), ("TCP", "0.0.0.0", 81), False),
    ],
)
def test_host_ports_collide_in_both_directions(
    one: tuple[str, str, int], other: tuple[str, str, int], collides: bool
) -> None:
    assert HostPort(*one).collides(HostPort(*other)) is collides
    assert HostPort(*other).collides(HostPort(*one)) is collides


# --- shapes --------------------------------------------------------------------------------------

SELECTOR = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
NODE_TERM = NodeTerm((Requirement("zone", Operator.IN, ("a",)),))
POD_TERM = PodTerm(SELECTOR, ("ns",), None, "zone")
OTHER_VALUE = {
    "request": (("cpu", 2000),),
    "node_selector": (("zone", "a"),),
    "node_affinity": NodeSelector((NODE_TERM,)),
    "preferred_nodes": ((1, NODE_TERM),),
    "tolerations": (Toleration(exists=True),),
    "pod_affinity": (POD_TERM,),
    "pod_anti_affinity": (POD_TERM,),
    "preferred_pods": ((1, POD_TERM),),
    "spread": (SpreadTerm(1, "zone", SELECTOR, "ns"),),
    "host_ports": (HostPort("TCP", "0.0.0.0", 80),),
    "claims": ("ns/data",),
    "device": DeviceRequest(1, 500),
    "shared_gpus": (GpuShareRequest(1, 3000),),
    "device_claims": ("ns/c",),
    "devices": (DeviceNeed("r", "gpu"),),
    "notes": (("volcano.sh/revocable-zone", "*"),),
    "preempts": False,
    "burst": (("cpu", 500),),
    "numa": (NumaNeed(1),),
    "wants": RequiredData(datasets=("x",)),
}
PLAIN = TaskShape((("cpu", 1000),))


def test_alike_shapes_are_one_key() -> None:
    again = TaskShape((("cpu", 1000),))
    assert again is not PLAIN
    assert {PLAIN: 1}[again] == 1


@pytest.mark.parametrize("name", OTHER_VALUE)
def test_every_field_tells_shapes_apart_and_counts_in_the_hash(name: str) -> None:
    other = replace(PLAIN, **{name: OTHER_VALUE[name]})
    assert other != PLAIN
    assert hash(other) != hash(PLAIN)
    assert hash(replace(PLAIN, **{name: OTHER_VALUE[name]})) == hash(other)


def test_the_fields_above_are_all_there_are() -> None:
    assert {f.name for f in fields(TaskShape) if f.init} == OTHER_VALUE.keys()


def test_shapes_that_look_at_other_pods_say_so() -> None:
    looks = {name for name, v in OTHER_VALUE.items() if replace(PLAIN, **{name: v}).looks_at_pods}
    assert looks == {"pod_affinity", "pod_anti_affinity", "spread", "host_ports"}


def test_a_part_of_a_device_is_no_best_effort() -> None:
    assert TaskShape(()).is_best_effort
    assert not PLAIN.is_best_effort
    assert not TaskShape((), device=DeviceRequest(1, 500)).is_best_effort
    assert DeviceRequest(1, 500).is_share
    assert not DeviceRequest(2).is_share


# --- tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "holds", "ready"),
    [
        (TaskStatus.PENDING, False, False),
        (TaskStatus.GATED, False, False),
        (TaskStatus.BOUND, True, True),
        (TaskStatus.RUNNING, True, True),
        (TaskStatus.RELEASING, True, False),
        (TaskStatus.SUCCEEDED, False, True),
        (TaskStatus.FAILED, False, False),
    ],
)
def test_what_statuses_count_for(status: TaskStatus, holds: bool, ready: bool) -> None:
    assert status.holds_resources is holds
    assert status.counts_as_ready is ready


def test_tasks_come_by_priority_then_index_then_age_then_name() -> None:
    def task(name: str, **values: int) -> Task:
        return Task(f"ns/{name}", PLAIN, TaskStatus.PENDING, **values)

    wanted = [
        task("z-important", priority=5, index=9, created_ms=9),
        task("z-first", index=0, created_ms=9),
        task("z-old", index=1, created_ms=1),
        task("a", index=1, created_ms=2),
        task("b", index=1, created_ms=2),
    ]
    for mixed in permutations(wanted):
        assert sorted(mixed, key=lambda t: t.order) == wanted


def test_keys_have_a_namespace_and_a_name() -> None:
    task = Task("team/job-0", PLAIN, TaskStatus.PENDING)
    assert (task.namespace, task.name) == ("team", "job-0")


def test_terms_read_as_what_they_ask_for() -> None:
    assert str(POD_TERM) == f"pods with {SELECTOR} per zone"
    assert str(PodTerm(None, ("ns",), None, "zone")) == "no pods per zone"
    spread = SpreadTerm(2, "zone", SELECTOR, "ns")
    assert str(spread) == f"spread of pods with {SELECTOR} per zone within 2"
    assert str(replace(spread, selector=None)) == "spread of no pods per zone within 2"
