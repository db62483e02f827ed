"""The limit up to which gangs may be enqueued beyond the cluster's capacity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.snapshot import Gang, GangPhase, Queue, QueueState
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.capability import Capability
from tests.support.engines import Bench
from tests.support.small import CPU, cluster, gang, node, running, shape

TEN = [node("n0", 10)]


def waits(name: str, needs: int, **fields: object) -> Gang:
    """Return a PodGroup without pods whose minResources request some CPUs."""
    budget = ((CPU, needs * 1000),) if needs else ()
    fields = {"phase": GangPhase.PENDING, **fields}
    return gang(name, min_resources=budget, least=1, **fields)


def runs(cpus: int, **fields: object) -> Gang:
    """Return a running gang of one pod."""
    made = gang("old", ("w", 1, shape(cpus)), phase=GangPhase.RUNNING, **fields)
    return replace(made, tasks=(running(made.tasks[0], "n0"),))


def enqueued(*gangs: Gang, rules: RuleSet | None = None, **cluster_of: object) -> list[str]:
    snapshot = cluster(cluster_of.get("nodes", TEN), gangs, cluster_of.get("queues", ()))
    bench = Bench.of(snapshot, rules or RuleSet.of(Priority(), Overcommit()))
    decisions = bench.greedy(gated=True)
    return [g.name for g, let_in in zip(snapshot.gangs, decisions.enqueued, strict=True) if let_in]


@pytest.mark.parametrize(
    ("factor", "let_in"), [(1.0, ["a", "b"]), (1.2, ["a", "b", "d"]), (2.0, ["a", "b", "c"])]
)
def test_gangs_are_let_in_while_the_cluster_times_the_factor_lasts(
    factor: float, let_in: list[str]
) -> None:
    rules = RuleSet.of(Priority(), Overcommit(factor))
    gangs = [waits("a", 6), waits("b", 4), waits("c", 9), waits("d", 2)]
    assert enqueued(*gangs, rules=rules) == let_in


def test_a_gang_that_names_nothing_is_let_in_whatever_the_state_of_the_cluster() -> None:
    assert enqueued(waits("a", 12), waits("b", 1), waits("c", 0)) == ["a", "c"]


def test_what_is_used_and_what_was_let_in_before_counts() -> None:
    made = gang("old", ("w", 4, shape(1)), phase=GangPhase.RUNNING)
    old = replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))
    before = waits("before", 5, phase=GangPhase.INQUEUE)
    # 12 − 4 used − 5 admitted = 3
    assert enqueued(old, before, waits("a", 4), waits("b", 3)) == ["b"]


def test_more_important_gangs_are_asked_first() -> None:
    assert enqueued(waits("a", 12), waits("b", 12, priority=5)) == ["b"]


def test_resources_that_are_not_asked_for_are_not_looked_at() -> None:
    made = gang("old", ("w", 1, shape(20)), phase=GangPhase.RUNNING)
    old = replace(made, tasks=(running(made.tasks[0], "n0"),))
    by_memory = replace(waits("m", 0), min_resources=(("memory", 0),))
    assert enqueued(old, by_memory, waits("c", 1)) == ["m"]


def test_gangs_in_queues_that_take_nothing_stay_out() -> None:
    queues = [Queue("closed", state=QueueState.CLOSED)]
    gangs = [waits("a", 1, queue="closed"), waits("b", 1, queue="nowhere"), waits("c", 1)]
    assert enqueued(*gangs, queues=queues) == ["c"]


def test_the_older_of_equal_queues_is_asked_until_it_has_no_more() -> None:
    queues = [Queue("qa", created_ms=1), Queue("qb", created_ms=2)]
    gangs = [waits("a1", 5, queue="qa"), waits("a2", 5, queue="qa"), waits("b1", 7, queue="qb")]
    assert enqueued(*gangs, queues=queues) == ["a1", "a2"]


def test_a_queue_expects_no_more_than_the_cluster_leaves_to_it() -> None:
    queues = [Queue("kept", guarantee=((CPU, 3000),)), Queue("inner", parent="q"), Queue("q")]
    old = runs(1, queue="q", min_resources=((CPU, 1000),))
    gangs = [waits("a", 7, queue="inner"), waits("b", 6, queue="q"), waits("c", 10, queue="kept")]
    rules = RuleSet.of(Priority(), Capability())
    assert enqueued(old, *gangs, rules=rules, queues=queues) == ["b", "c"]


@pytest.mark.parametrize(
    ("fields", "let_in"),
    [
        # In Volcano, resources beyond a gang's minResources are elastic and count as idle.
        ({}, ["a"]),
        ({"min_resources": (("memory", 1),)}, ["a"]),
        ({"min_resources": ((CPU, 3000),)}, ["a"]),
        ({"min_resources": ((CPU, 6000),)}, []),
        # Volcano creates a PodGroup for a bare pod, and sets minResources to its request.
        ({"is_implicit": True}, []),
    ],
)
def test_what_a_running_gang_holds_beyond_its_minimum_counts_as_free(
    fields: dict[str, object], let_in: list[str]
) -> None:
    queues = [Queue("q", capability=((CPU, 8000),))]
    rules = RuleSet.of(Priority(), Capability())
    old = runs(6, queue="q", **fields)
    assert enqueued(old, waits("a", 5, queue="q"), rules=rules, queues=queues) == let_in
