"""Tests of the queue positions of waiting gangs, and of their predicted starts."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext
from optsched.study.prediction.queue_position import (
    PredictionSettings,
    Standing,
    standings,
    waiting,
)
from tests.formats.objects import group, node, pod, queue

MODEL = load_policy("volcano-default", lambda path: path.read_text())
SETTINGS = [
    PredictionSettings(policy, SessionContext(), DecodeOptions())
    for policy in (MODEL, without_solver(MODEL))
]
GROUP = "scheduling.k8s.io/group-name"


def made(minute: int) -> str:
    return f"2026-11-20T09:{minute:02}:00Z"


def gang(name: str, minute: int, cpu: int = 8, on: str = "", **spec: Any) -> list[dict[str, Any]]:
    """Return a gang of one pod, which runs if `on` names a node."""
    marks = spec.pop("annotations", {})
    whole = group(name, {"minMember": 1, **spec}, annotations=marks, creationTimestamp=made(minute))
    asked = {"containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}]}
    where = {"nodeName": on} if on else {}
    state = {"phase": "Running"} if on else {}
    one = pod(f"{name}-0", {**asked, **where}, state, annotations={GROUP: name})
    one["metadata"]["creationTimestamp"] = made(minute)
    return [{**whole, "status": {"phase": "Running" if on else "Inqueue"}}, one]


URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 100,
}
HOURS = {"optsched.io/running-estimate": "3h"}
BUSY = [node("n1"), *gang("busy", 0, on="n1", annotations=HOURS)]


@pytest.mark.parametrize("settings", SETTINGS, ids=["solver", "none"])
def test_the_more_important_and_then_the_older_come_first(settings: PredictionSettings) -> None:
    objects = [
        *BUSY,
        URGENT,
        *gang("younger", 3),
        *gang("older", 2),
        *gang("last", 4, priorityClassName="urgent"),
    ]
    found = standings(objects, settings)
    assert set(found) == {"ns/younger", "ns/older", "ns/last"}
    assert found["ns/younger"] == Standing("ns/younger", "default", 3, 3, ("ns/last", "ns/older"))
    assert found["ns/last"].position == 1


def test_each_queue_has_a_line_of_its_own() -> None:
    objects = [*BUSY, queue("a"), queue("b")]
    objects += [*gang("x", 1, queue="a"), *gang("y", 2, queue="b"), *gang("z", 3, queue="b")]
    found = standings(objects, SETTINGS[0])
    places = {key: (s.queue, s.position, s.num_waiting) for key, s in found.items()}
    assert places == {"ns/x": ("a", 1, 1), "ns/y": ("b", 1, 2), "ns/z": ("b", 2, 2)}


def test_gangs_whose_pods_are_not_made_yet_stand_in_line() -> None:
    [whole, one] = gang("later", 5)
    whole["status"] = {"phase": "Pending"}
    first = gang("first", 1, annotations=HOURS)
    found = waiting([*BUSY, *first, whole], "ns/later", [one], SETTINGS[0])
    assert found is not None
    assert found.standing is not None
    assert found.standing.position == 2
    # The running pod, whose start is unknown, takes three hours, and the next pod three more.
    assert found.expected is not None
    assert found.expected.start_ms == found.now_ms + 6 * 3_600_000


def test_the_expected_start_is_when_running_pods_have_ended() -> None:
    found = waiting([*BUSY, *gang("next", 1)], "ns/next", (), SETTINGS[0])
    assert found is not None
    assert found.expected is not None
    assert found.expected.start_ms == found.now_ms + 3 * 3_600_000
    assert not found.expected.is_open


def test_nobody_knows_when_what_is_before_it_ends() -> None:
    found = waiting([*BUSY, *gang("first", 1), *gang("last", 5)], "ns/last", (), SETTINGS[0])
    assert found is not None
    assert found.standing is not None
    assert found.expected is None


def test_who_runs_stands_nowhere_and_who_is_not_there_is_not_found() -> None:
    found = waiting(BUSY, "ns/busy", (), SETTINGS[0])
    assert found is not None
    assert found.standing is None
    assert found.expected is None
    assert waiting(BUSY, "ns/nobody", (), SETTINGS[0]) is None
