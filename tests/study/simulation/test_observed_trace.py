"""Tests of cluster snapshots as a trace: arrivals and ends of gangs, and node failures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.task import TaskStatus
from optsched.cluster.trace import NodeChange, NodeEvent
from optsched.study.simulation.replay_trace import trace_of_record
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node, Snapshot

T0 = 1_000_000


def at(seconds: int, *gangs: Gang, nodes: tuple[Node, ...] = (node("n0"), node("n1"))) -> Snapshot:
    return cluster(nodes, gangs, now_ms=T0 + seconds * 1000)


def waiting(name: str, made_s: int, **fields: object) -> Gang:
    return gang(name, ("w", 1, shape(1)), created_ms=T0 + made_s * 1000, **fields)


def placed(which: Gang, since_s: int, status: TaskStatus = TaskStatus.RUNNING) -> Gang:
    tasks = (
        replace(running(t, "n0"), started_ms=T0 + since_s * 1000, status=status)
        for t in which.tasks
    )
    return replace(which, tasks=tuple(tasks))


def test_gangs_arrive_when_they_were_made_and_run_until_they_are_gone() -> None:
    a = waiting("a", 12)
    trace = trace_of_record([at(0), at(20, a), at(30, placed(a, 25)), at(60)], "watched")
    (arrival,) = trace.arrivals
    assert (arrival.at_ms, arrival.duration_ms) == (12_000, 35_000)
    assert [(t.status, t.node, t.started_ms) for t in arrival.gang.tasks] == [
        (TaskStatus.PENDING, "", 0)
    ]
    assert trace.start_ms == T0


def test_what_is_over_has_ended_although_it_is_still_there() -> None:
    a = waiting("a", 1)
    done = placed(a, 10, TaskStatus.SUCCEEDED)
    trace = trace_of_record([at(0), at(10, placed(a, 10)), at(50, done), at(90, done)], "w")
    assert trace.arrivals[0].duration_ms == 40_000


def test_who_runs_in_the_first_picture_goes_on_where_it_is() -> None:
    a = placed(waiting("a", -500), -400)
    trace = trace_of_record([at(0, a), at(10, a), at(20)], "w")
    (arrival,) = trace.arrivals
    assert (arrival.at_ms, arrival.duration_ms) == (0, 20_000)
    assert arrival.gang.tasks[0].node == "n0"
    assert all(n.residents == () for n in trace.nodes)


def test_what_is_still_there_in_the_end_runs_for_ever() -> None:
    a, b = placed(waiting("a", 0), 1), waiting("b", 3)
    trace = trace_of_record([at(0, a), at(9, a, b)], "w")
    assert [(x.gang.name, x.at_ms, x.duration_ms) for x in trace.arrivals] == [
        ("a", 0, None),
        ("b", 3_000, None),
    ]


def test_who_left_without_having_run_is_left_out() -> None:
    assert trace_of_record([at(0), at(9, waiting("a", 3)), at(20)], "w").arrivals == ()


def test_nodes_fail_and_come_back_with_the_pictures_that_show_it() -> None:
    n0, n1 = node("n0"), node("n1")
    trace = trace_of_record(
        [
            at(0, nodes=(n0,)),
            at(10, nodes=(n0, n1)),
            at(20, nodes=(replace(n0, ready=False), n1)),
            at(30, nodes=(n0, n1)),
        ],
        "w",
    )
    assert [n.name for n in trace.nodes] == ["n0", "n1"]
    assert trace.node_events == (
        NodeEvent(0, "n1", NodeChange.DOWN),
        NodeEvent(10_000, "n1", NodeChange.UP),
        NodeEvent(20_000, "n0", NodeChange.DOWN),
        NodeEvent(30_000, "n0", NodeChange.UP),
    )


def test_there_is_a_first_picture() -> None:
    with pytest.raises(ValueError, match="at least one snapshot is needed"):
        trace_of_record([], "w")
