"""Tests of the order of gangs by tiers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.snapshot import Queue
from optsched.cluster.task import TaskStatus
from optsched.problem.compile import compile_problem
from optsched.problem.tiers import priority_tiers, weighted_tier
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang

NOW, PATIENCE = 100_000, 60_000


def made(name: str, priority: int, since: int = NOW, **fields: object) -> Gang:
    return gang(name, ("w", 2, shape(1)), priority=priority, waiting_since_ms=since, **fields)


def begun(one: Gang, *, least: int) -> Gang:
    first = replace(one.tasks[0], status=TaskStatus.RUNNING, node="n0")
    return replace(one, tasks=(first, *one.tasks[1:]), min_member=least)


def tiers_of(*gangs: Gang) -> dict[str, str]:
    """Return the name of each gang's tier, in the order of the tiers."""
    problem = compile_problem(cluster([node("n0")], gangs, now_ms=NOW))
    tiers = priority_tiers(problem, problem.priority, PATIENCE)
    by_tier = sorted(problem.open_gangs.tolist(), key=lambda g: (tiers.of[g], g))
    return {problem.snapshot.gangs[g].name: tiers.names[tiers.of[g]] for g in by_tier}


def test_higher_priorities_come_first() -> None:
    found = tiers_of(made("low", 1), made("high", 9), made("negative", -5), made("other", 9))
    assert list(found.items()) == [
        ("high", "priority 9"),
        ("other", "priority 9"),
        ("low", "priority 1"),
        ("negative", "priority -5"),
    ]


def test_broken_gangs_and_those_that_waited_too_long_come_first_in_their_priority() -> None:
    found = tiers_of(
        made("fresh", 1),
        made("just-in-time", 1, NOW - PATIENCE),
        made("starved", 1, NOW - PATIENCE - 1),
        begun(made("broken", 1), least=2),
        begun(made("runs", 1, since=0), least=1),
        made("important", 2),
    )
    assert list(found.items()) == [
        ("important", "priority 2"),
        ("broken", "broken gangs of priority 1"),
        ("starved", "gangs waiting too long, priority 1"),
        ("fresh", "priority 1"),
        ("just-in-time", "priority 1"),
        ("runs", "priority 1"),  # waiting does not lower the priority of running tasks
    ]


def test_priorities_of_queues_come_before_those_of_gangs() -> None:
    gangs = [
        made("high", 9, queue="less"),
        made("low", 1, queue="more"),
        made("mid", 5, queue="more"),
    ]
    queues = [Queue("less", priority=50), Queue("more", priority=100)]
    problem = compile_problem(cluster([node("n0")], gangs, queues, now_ms=NOW))
    of_queue = problem.queues.priority[problem.queue_of]
    tiers = priority_tiers(problem, problem.priority, PATIENCE, of_queue)
    assert tiers.of.tolist() == [2, 1, 0]
    assert tiers.names == (
        "priority 5 in queues of priority 100",
        "priority 1 in queues of priority 100",
        "priority 9 in queues of priority 50",
    )


def test_one_tier_weighted_by_priority() -> None:
    gangs = [made("a", 4), made("b", 0), made("c", 4)]
    problem = compile_problem(cluster([node("n0")], gangs))
    tiers = weighted_tier(problem, problem.priority)
    assert tiers.of.tolist() == [0, 0, 0]
    assert tiers.factor.tolist() == [4, 1, 4]  # every gang has a factor of at least 1
    assert tiers.mark[0] == tiers.mark[2] != tiers.mark[1]


def test_no_gangs_no_tiers() -> None:
    problem = compile_problem(cluster([node("n0")], []))
    assert priority_tiers(problem, problem.priority, PATIENCE).names == ()
