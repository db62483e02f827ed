"""Tests of the pipeline's actions enqueue and backfill."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase, Queue, Snapshot
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.shares.queue_limits import Capability
from optsched.problem.compile import compile_problem
from optsched.session.decompile import pending_of
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from tests.support.small import CPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.problem.decisions import Decisions

NODES = [node("n0", 4), node("n1", 4)]


def waiting(
    name: str, cpu: int, phase: GangPhase = GangPhase.PENDING, queue: str = "default"
) -> Gang:
    """Return a gang whose pods do not exist yet."""
    least = ((CPU, cpu * 1000),)
    return Gang(f"ns/{name}", min_member=1, min_resources=least, phase=phase, queue=queue)


def decide(snapshot: Snapshot, rules: RuleSet, *actions: str) -> Decisions:
    return run_greedy(compile_problem(snapshot), rules, GreedyOptions(actions))


def let_in(snapshot: Snapshot, *rules: object) -> set[str]:
    decisions = decide(snapshot, RuleSet.of(*rules), "enqueue")  # type: ignore[arg-type]
    return {g.name for g, e in zip(snapshot.gangs, decisions.enqueued, strict=True) if e}


def with_tasks(made: Gang, cpu: int, number: int) -> Gang:
    """Return the gang with tasks that run on the first node."""
    tasks = gang(made.name, ("w", number, shape(cpu)), queue=made.queue).tasks
    return replace(made, tasks=tuple(running(t, "n0") for t in tasks), phase=GangPhase.RUNNING)


# --- enqueue -------------------------------------------------------------------------------------


def test_gangs_are_let_in_while_the_cluster_times_the_factor_has_room() -> None:
    snapshot = cluster(NODES, [waiting("a", 6), waiting("b", 4), waiting("c", 3)])
    assert let_in(snapshot, Overcommit(1.2)) == {"a", "c"}
    assert let_in(snapshot, Overcommit(2.0)) == {"a", "b", "c"}


def test_what_was_let_in_before_and_does_not_run_counts() -> None:
    snapshot = cluster(NODES, [waiting("a", 6, GangPhase.INQUEUE), waiting("b", 4)])
    assert let_in(snapshot, Overcommit(1.2)) == set()
    assert let_in(snapshot, Overcommit(1.25)) == {"b"}


@pytest.mark.parametrize(("asks", "lets_in"), [(2, True), (3, False)])
def test_a_queue_lets_in_what_its_capability_has_room_for(asks: int, lets_in: bool) -> None:
    queue = Queue("q", capability=((CPU, 5000),))
    begun = waiting("a", 3, GangPhase.INQUEUE, "q")
    snapshot = cluster(NODES, [begun, waiting("b", asks, queue="q")], [queue])
    assert ("b" in let_in(snapshot, Capability())) is lets_in


def test_an_ancestors_capability_counts_and_gangs_let_in_now_too() -> None:
    parent = Queue("p", capability=((CPU, 5000),))
    child = Queue("q", parent="p", capability=((CPU, 8000),))
    snapshot = cluster(NODES, [waiting(n, 2, queue="q") for n in "abc"], [parent, child])
    assert let_in(snapshot, Capability()) == {"a", "b"}


@pytest.mark.parametrize(("asks", "lets_in"), [(3, True), (4, False)])
def test_what_gangs_hold_beyond_their_least_counts_as_free(asks: int, lets_in: bool) -> None:
    queue = Queue("q", capability=((CPU, 4000),))
    elastic = with_tasks(waiting("a", 1, queue="q"), 1, 3)
    snapshot = cluster(NODES, [elastic, waiting("b", asks, queue="q")], [queue])
    assert ("b" in let_in(snapshot, Capability())) is lets_in


def test_a_gang_that_names_no_resources_is_let_in_without_a_vote() -> None:
    free = Gang("ns/free", min_member=1, phase=GangPhase.PENDING)
    full = waiting("full", 9, GangPhase.INQUEUE)
    assert let_in(cluster(NODES, [free, full]), Overcommit(1.0)) == {"free"}


def test_nothing_is_let_in_under_a_closed_queue() -> None:
    closed = Queue("q", parent="missing")
    assert let_in(cluster(NODES, [waiting("a", 1, queue="q")], [closed]), Overcommit()) == set()


# --- backfill ------------------------------------------------------------------------------------


def placed(snapshot: Snapshot, *actions: str) -> set[str]:
    rules = RuleSet.of(GangRule(), Proportion())
    decisions = decide(snapshot, rules, *actions)
    tasks = compile_problem(snapshot).tasks
    return {t.key for t, n in zip(tasks, decisions.node_of, strict=True) if n >= 0}


def test_backfill_alone_places_only_pods_that_request_nothing() -> None:
    asking, idle = gang("asks", ("w", 1, shape(1))), gang("idle", ("w", 2, shape(0)))
    snapshot = cluster(NODES, [asking, idle])
    assert placed(snapshot, "backfill") == {"ns/idle-w-0", "ns/idle-w-1"}
    assert len(placed(snapshot, "allocate")) == 3
    assert len(placed(snapshot, "allocate", "backfill")) == 3


def test_backfill_does_not_break_gangs() -> None:
    small = [node("n0", 4), node("n1", 4)]
    snapshot = cluster(small, [gang("idle", ("w", 21, shape(0)))])
    assert placed(snapshot, "backfill") == set()


def test_a_gang_that_was_refused_knows_why() -> None:
    snapshot = cluster(NODES, [waiting("a", 6), waiting("b", 4)])
    problem = compile_problem(snapshot)
    rules = RuleSet.of(Overcommit(1.2))
    decisions = run_greedy(problem, rules, GreedyOptions(("enqueue",)))
    reason = pending_of(problem, decisions, rules)["ns/b"]
    assert reason.code is ReasonCode.OVERCOMMITTED
    assert "4 cpu" in reason.message


@pytest.mark.parametrize("gated", [True, False])
def test_pods_of_refused_gangs_wait_only_where_the_action_gates(gated: bool) -> None:
    has_pods = replace(
        waiting("a", 99), tasks=gang("a", ("w", 1, shape(1))).tasks, min_resources=((CPU, 99_000),)
    )
    problem = compile_problem(cluster(NODES, [has_pods]))
    options = GreedyOptions(("enqueue", "allocate"), gated=gated)
    decisions = run_greedy(problem, RuleSet.of(Overcommit(1.0)), options)
    assert decisions.refused.tolist() == [gated]
    assert (decisions.node_of >= 0).tolist() == [not gated]
