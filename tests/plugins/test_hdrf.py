"""Tests of hierarchical dominant resource fairness over a tree of queues."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.api.wellknown import HIERARCHY, HIERARCHY_WEIGHTS
from optsched.cluster.decisions import Allocate, Evict
from optsched.cluster.snapshot import Gang, GangPhase, Queue, Snapshot
from optsched.plugins.shares.tree_fairness import hierarchy
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.task import TaskShape

CONF = """
actions: "ACTIONS"
solver: none
tiers:
- plugins: [{name: drf, enableHierarchy: true}]
"""


def queue(name: str, path: str, weights: str = "") -> Queue:
    marks = {HIERARCHY: path, **({HIERARCHY_WEIGHTS: weights} if weights else {})}
    return Queue(name, annotations=marks)


def wants(name: str, where: str, number: int, what: TaskShape) -> Gang:
    return gang(name, ("w", number, what), least=0, queue=where)


def host(cpu: int, gpu: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({CPU: cpu * 1000, GPU: gpu, "pods": 500}.items()))


def placed(snapshot: Snapshot) -> Counter[str]:
    policy = parse_policy(CONF.replace("ACTIONS", "allocate"), "x.conf")
    plan = run_session(snapshot, policy, SessionContext()).plan
    return Counter(a.gang.removeprefix("ns/") for a in plan.actions if isinstance(a, Allocate))


def machine(cpu: int, gpu: int) -> list[object]:
    return [replace(node("n0"), allocatable=host(cpu, gpu))]


def test_a_department_is_as_large_as_its_parts_are_when_made_equal() -> None:
    """This is the rescaling case of Volcano's TestHDRF, with GPUs instead of memory."""
    queues = [
        queue("sci", "root/sci", "100/50"),
        queue("dev", "root/eng/dev", "100/50/50"),
        queue("prod", "root/eng/prod", "100/50/50"),
    ]
    gangs = [
        wants("a", "sci", 10, shape(1, 1)),
        wants("b", "dev", 10, shape(1)),
        wants("c", "prod", 10, shape(0, 1)),
    ]
    assert placed(cluster(machine(10, 10), gangs, queues)) == {"a": 5, "b": 5, "c": 5}


def test_what_can_not_grow_does_not_hold_up_its_department() -> None:
    """This is the blocking-nodes case of Volcano's TestHDRF."""
    queues = [
        queue("q1", "root/q1", "100/25"),
        queue("q2", "root/q2", "100/25"),
        queue("q31", "root/q3/q31", "100/25/50"),
        queue("q4", "root/q4", "100/25"),
    ]
    cpu, gpu = shape(1), shape(0, 1)
    gangs = [
        wants("g1", "q1", 30, cpu),
        wants("g2", "q2", 30, cpu),
        wants("g31", "q31", 30, cpu),
        wants("g32", "q31", 30, gpu),
        wants("g4", "q4", 30, gpu),
    ]
    expected = {"g1": 10, "g2": 10, "g31": 10, "g32": 15, "g4": 15}
    assert placed(cluster(machine(30, 30), gangs, queues)) == expected


@pytest.mark.parametrize(
    ("weights", "expected"), [("1/3", {"a": 9, "b": 3}), ("1/1", {"a": 6, "b": 6})]
)
def test_weights_count_where_paths_part(weights: str, expected: dict[str, int]) -> None:
    queues = [queue("qa", "root/a", weights), queue("qb", "root/b", "1/1")]
    gangs = [wants("a", "qa", 12, shape(1)), wants("b", "qb", 12, shape(1))]
    assert placed(cluster(machine(12, 0), gangs, queues)) == expected


def test_departments_share_alike_however_many_queues_they_have() -> None:
    queues = [queue("alone", "root/x"), queue("one", "root/y/one"), queue("two", "root/y/two")]
    gangs = [wants(q.name, q.name, 12, shape(1)) for q in queues]
    assert placed(cluster(machine(12, 0), gangs, queues)) == {"alone": 6, "one": 3, "two": 3}


def test_reclaim_takes_from_who_has_more() -> None:
    queues = [queue("rich", "root/rich"), queue("poor", "root/poor")]
    made = gang("rich", ("w", 8, shape(1)), least=1, queue="rich")
    tasks = tuple(running(t, "n0") for t in made.tasks)
    rich = replace(made, tasks=tasks, phase=GangPhase.RUNNING)
    poor = gang("poor", ("w", 6, shape(1)), least=1, queue="poor")
    text = CONF.replace("ACTIONS", "allocate, reclaim").replace(
        "[{name: drf", "[{name: priority}, {name: drf"
    )
    plan = run_session(
        cluster(machine(8, 0), [rich, poor], queues), parse_policy(text, "x.conf"), SessionContext()
    ).plan
    gone = [a for a in plan.actions if isinstance(a, Evict)]
    assert 1 <= len(gone) <= 4
    assert {a.action for a in gone} == {"reclaim"}


@pytest.mark.parametrize(
    ("path", "weights", "expected"),
    [
        ("root/a/b", "1/2/3", (("root", 1), ("a", 2), ("b", 3))),
        ("root/a", "1", (("root", 1), ("a", 1))),
        ("root/a", "1/-4", (("root", 1), ("a", 1))),
        ("root/a", "1/x", (("root", 1), ("a", 1))),
    ],
)
def test_paths(path: str, weights: str, expected: tuple[tuple[str, float], ...]) -> None:
    assert hierarchy(queue("q", path, weights)) == expected


def test_a_queue_that_says_nothing_is_at_the_top_with_its_own_weight() -> None:
    assert hierarchy(Queue("q", weight=7)) == (("root", 1), ("q", 7))
