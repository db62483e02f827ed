"""The harness itself: schedules replay, and the checker finds violations that are planted."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.faults.door import resource_of
from tests.faults.invariants import (
    CORDON_SLACK_S,
    Closed,
    find_false_statuses,
    find_losses,
    find_violations,
)
from tests.faults.schedule import SHORT, FaultKind, draw_schedule
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
    """Two gangs: one runs to its end, a pod of the other is evicted while it runs."""
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
    assert find_violations(history(), CPUS, [Closed("n1", 1.05, 2.0)]) == []
    assert find_losses(history(), {"a": 1, "b": 1}) == []


def bound_elsewhere(moments: list[Moment]) -> list[Moment]:
    return [*moments, moment("a-0", 5.0, "n2", "Succeeded")]


def overfull(moments: list[Moment]) -> list[Moment]:
    return [*moments[:6], moment("c-0", 2.5, "n1"), *moments[6:]]


def evicted_late(moments: list[Moment]) -> list[Moment]:
    return [*moments, moment("a-0", 5.0, "n1", "Succeeded", is_evicted=True)]


def bound_late(moments: list[Moment]) -> list[Moment]:
    return [*moments, moment("d-0", 20.0 + CORDON_SLACK_S, "n2")]


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (bound_elsewhere, "a-0 was bound to n1 and then to n2"),
        (overfull, "n1 held 6 CPUs of 4"),
        (evicted_late, "a-0 was evicted although it had ended"),
        (bound_late, "d-0 was bound to n2 4.0 s after its cordon"),
    ],
)
def test_a_planted_violation_is_found(
    plant: Callable[[list[Moment]], list[Moment]], sentence: str
) -> None:
    closed = [Closed("n2", 19.0, 30.0)]
    assert find_violations(plant(history()), CPUS, closed) == [sentence]


@pytest.mark.parametrize("drawn", range(20))
def test_a_violation_is_found_wherever_it_stands(drawn: int) -> None:
    """Among the moments of other gangs, which change nothing about it."""
    chance = Random(drawn)
    planted = evicted_late(history())
    for number in range(30):
        others = moment(f"x{number}-0", 0.0, "elsewhere", "Running")
        planted.insert(chance.randrange(len(planted)), others)
    assert find_violations(planted, CPUS) == ["a-0 was evicted although it had ended"]


def test_what_is_lost_is_found() -> None:
    stuck = [*history(), moment("c-0", 5.0), moment("c-1", 5.0, "n2", "Running")]
    assert find_losses(stuck, {"a": 1, "c": 2, "d": 1}) == [
        "gang c of 2: {'Pending': 1, 'Running': 1}",
        "gang d of 1: nothing was seen of it",
    ]


def test_a_status_that_is_false_is_found() -> None:
    group = {"metadata": {"name": "a"}, "status": {"succeeded": 1}}
    assert find_false_statuses([group], history()) == []
    group["status"] = {"running": 1}
    assert find_false_statuses([group], history()) == [
        "PodGroup a says succeeded=0, 1 pods are",
        "PodGroup a says running=1, 0 pods are",
    ]


def test_a_seed_is_a_schedule() -> None:
    assert draw_schedule(7, 30.0) == draw_schedule(7, 30.0)
    assert draw_schedule(7, 30.0) != draw_schedule(8, 30.0)
    kinds = {fault.kind for seed in range(40) for fault in draw_schedule(seed, 30.0).faults}
    assert kinds == set(FaultKind)
    assert {f.kind for f in draw_schedule(7, 90.0, kinds=SHORT).faults} <= set(SHORT)


def test_requests_are_counted_by_resource() -> None:
    assert resource_of("/api/v1/namespaces/ns/pods/p/binding") == "/api/v1/namespaces/pods/binding"
    assert resource_of("/api/v1/pods?limit=500") == "/api/v1/pods"
