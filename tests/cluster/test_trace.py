"""Tests of the valid contents of a trace, and of the omission of invalid parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.snapshot import Queue
from optsched.cluster.trace import Arrival, NodeChange, NodeEvent, Trace, sound_trace
from tests.support.small import gang, node, shape

DOWN, UP = NodeChange.DOWN, NodeChange.UP


def arrival(name: str, at: int = 0, tasks: int = 1, **fields: object) -> Arrival:
    what = fields.pop("shape", shape(cpu=1))
    least = fields.pop("least", None)
    given = gang(name, ("w", tasks, what), least=least, queue=fields.pop("queue", "default"))  # type: ignore[arg-type]
    return Arrival(at, given, fields.pop("duration_ms", 1000), **fields)  # type: ignore[arg-type]


def trace(*arrivals: Arrival, events: tuple[NodeEvent, ...] = ()) -> Trace:
    nodes = (node("b", cpu=4), node("a", cpu=2, gpu=2))
    return Trace("small", nodes, (Queue("default"),), arrivals, events)


def kept(found: Trace) -> list[str]:
    return [a.gang.name for a in found.arrivals]


def test_a_sound_trace_stays_as_it_is() -> None:
    given = trace(arrival("a"), arrival("b", at=5), events=(NodeEvent(3, "a", DOWN),))
    found, problems = sound_trace(given)
    assert problems == ()
    assert (found.arrivals, found.node_events) == (given.arrivals, given.node_events)
    assert [n.name for n in found.nodes] == ["a", "b"]
    assert sound_trace(found) == (found, ())


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"duration_ms": -1}, "jobs.csv:7: Gang ns/bad: duration_ms: -1 is below zero"),
        ({"estimate_ms": -5}, "jobs.csv:7: Gang ns/bad: estimate_ms: -5 is below zero"),
        ({"at": -2}, "jobs.csv:7: Gang ns/bad: at_ms: -2 is below zero"),
        ({"tasks": 0}, "jobs.csv:7: Gang ns/bad: tasks: 0 is too small"),
        ({"least": 2}, "jobs.csv:7: Gang ns/bad: min_member: 2 is more than the 1 tasks"),
        ({"queue": "other"}, "jobs.csv:7: Gang ns/bad: queue: other is not a queue of this trace"),
        ({"shape": shape(cpu=5)}, "min_member: 1 can never start: none of its tasks fits"),
        ({"shape": shape(1, gpu=3)}, "min_member: 1 can never start: none of its tasks fits"),
        ({"tasks": 7}, "min_member: 7 can never start: 6 of its tasks fit"),
    ],
)
def test_what_is_wrong_is_left_out_and_told(bad: dict[str, object], told: str) -> None:
    wrong = replace(arrival("bad", **bad), where="jobs.csv:7")  # type: ignore[arg-type]
    found, problems = sound_trace(trace(arrival("a"), wrong, arrival("z")))
    assert kept(found) == ["a", "z"]
    assert told in str(problems[0])
    assert len(problems) == 1


def test_what_all_tasks_take_together_counts() -> None:
    big, small = shape(cpu=3), shape(cpu=2)
    mixed = Arrival(0, gang("g", ("b", 1, big), ("s", 3, small), least=4), 1)
    _, problems = sound_trace(trace(mixed))
    assert "cpu: 9000 is more than the 6000 of the whole cluster" in str(problems[0])


def test_elastic_gangs_need_room_for_their_minimum_only() -> None:
    found, problems = sound_trace(trace(arrival("a", tasks=9, least=2)))
    assert kept(found) == ["a"]
    assert problems == ()


def test_a_clock_that_goes_back_costs_as_few_rows_as_can_be() -> None:
    times = {"a": 0, "ahead": 900, "b": 10, "c": 20, "back": 3, "d": 20}
    found, problems = sound_trace(trace(*(arrival(n, at=t) for n, t in times.items())))
    assert kept(found) == ["a", "b", "c", "d"]
    assert [p.key for p in problems] == ["ns/ahead", "ns/back"]
    assert "out of order: the events around it are at 20 ms" in str(problems[1])


@given(st.lists(st.integers(0, 9), max_size=12))
def test_time_never_goes_back_and_no_more_is_lost_than_must_be(times: list[int]) -> None:
    found, problems = sound_trace(trace(*(arrival(f"g{i}", at=t) for i, t in enumerate(times))))
    left = [a.at_ms for a in found.arrivals]
    assert left == sorted(left)
    assert len(left) == _longest(times)
    assert len(left) + len(problems) == len(times)


def _longest(times: list[int]) -> int:
    best: list[int] = []
    for i, t in enumerate(times):
        best.append(1 + max((best[j] for j in range(i) if times[j] <= t), default=0))
    return max(best, default=0)


def test_names_are_taken_once() -> None:
    _, problems = sound_trace(trace(arrival("a"), arrival("a", at=1)))
    assert "Gang ns/a: occurs more than once" in str(problems[0])
    other = arrival("c")
    clash = replace(other, gang=replace(other.gang, tasks=arrival("a").gang.tasks))
    _, problems = sound_trace(trace(arrival("a"), clash))
    assert "tasks: ns/a-w-0 is also the name of another task" in str(problems[0])


def test_tasks_may_sit_on_nodes_of_the_trace_only() -> None:
    given = arrival("a")
    assigned = replace(given.gang.tasks[0], node="nowhere")
    _, problems = sound_trace(trace(replace(given, gang=replace(given.gang, tasks=(assigned,)))))
    assert "node: nowhere is not a node of this trace" in str(problems[0])


def test_nodes_fail_once_before_they_come_back() -> None:
    times = [(1, "a", DOWN), (2, "a", DOWN), (3, "a", UP), (4, "x", DOWN), (2, "b", DOWN)]
    events = tuple(
        NodeEvent(at, name, change, f"t:{i}") for i, (at, name, change) in enumerate(times)
    )
    found, problems = sound_trace(trace(events=events))
    assert found.node_events == (events[0], events[2])
    assert [str(p) for p in problems] == [
        "t:4: Node b: at_ms: 2 is out of order: the events around it are at 4 ms",
        "t:1: Node a: is down already",
        "t:3: Node x: is not a node of this trace",
    ]


def test_the_first_of_two_nodes_of_one_name_counts() -> None:
    given = trace(arrival("a"))
    found, problems = sound_trace(replace(given, nodes=(*given.nodes, node("a", cpu=9))))
    assert [n.name for n in found.nodes] == ["a", "b"]
    assert [str(p) for p in problems] == [
        "Node a: occurs more than once; the first occurrence applies"
    ]
