"""Tests of the scheduling gates that open although no node has idle capacity."""

from __future__ import annotations

from dataclasses import replace

from optsched.cluster.snapshot import Gang, GangPhase, Queue, Snapshot
from optsched.cluster.task import QueueGate
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from tests.support.small import CPU, cluster, gang, node, shape

POLICY = parse_policy(
    """
solver: none
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: overcommit}]
- plugins: [{name: predicates}, {name: capacity}, {name: nodeorder}]
""",
    "test.conf",
)


def asks(made: Gang, gate: QueueGate = QueueGate.CLOSED) -> Gang:
    """Return the same gang with gated tasks."""
    tasks = tuple(replace(task, gate=gate) for task in made.tasks)
    return replace(made, tasks=tasks, phase=GangPhase.INQUEUE)


def of(name: str, number: int, cpu: int = 2, least: int | None = None, **fields: object) -> Gang:
    return gang(name, ("w", number, shape(cpu)), least=least, **fields)


def opened(*gangs: Gang, ceiling: int = 8) -> tuple[str, ...]:
    """Return the names of the ungated pods, with one node of one CPU and a limited queue."""
    queue = Queue("default", capability=((CPU, ceiling * 1000),))
    snapshot: Snapshot = cluster([node("n", 1)], list(gangs), [queue])
    report = run_session(snapshot, POLICY, SessionContext())
    return tuple(task.removeprefix("ns/") for task in report.opened)


def test_a_gang_is_let_go_when_its_queue_has_room_for_its_minimum() -> None:
    assert opened(asks(of("a", 4))) == ("a-w-0", "a-w-1", "a-w-2", "a-w-3")
    assert opened(asks(of("a", 5))) == ()
    assert opened(asks(of("a", 5, least=3))) == ("a-w-0", "a-w-1", "a-w-2", "a-w-3")


def test_what_was_let_go_before_counts_against_the_queue() -> None:
    open_ = asks(of("a", 3), QueueGate.OPEN)
    assert opened(open_, asks(of("b", 1))) == ("b-w-0",)
    assert opened(open_, asks(of("b", 2))) == ()


def test_of_two_gangs_the_queue_lets_go_as_many_as_it_may_hold() -> None:
    assert opened(asks(of("a", 3)), asks(of("b", 3))) == ("a-w-0", "a-w-1", "a-w-2")


def test_what_is_placed_counts_too_and_is_not_told() -> None:
    placed = asks(of("a", 1, cpu=1))
    assert opened(placed, asks(of("b", 4))) == ()
    assert opened(placed, asks(of("b", 3))) == ("b-w-0", "b-w-1", "b-w-2")


def test_who_does_not_ask_is_not_told() -> None:
    assert opened(of("a", 2)) == ()


def test_who_is_not_let_in_stays_behind_its_gate() -> None:
    waits = replace(asks(of("a", 2)), phase=GangPhase.PENDING, min_resources=((CPU, 4000),))
    assert opened(waits) == ()
