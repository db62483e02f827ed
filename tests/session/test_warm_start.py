"""Tests of sessions that begin with the placements of an earlier search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.decisions import Allocate, Evict, Sense
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session import attempt
from optsched.session.session import SessionContext, run_session
from optsched.session.warm_start import (
    EARLIER,
    LEAST_MS,
    MOST_ACTIONS,
    WarmStart,
    limits_between_sessions,
    without_evictions,
)
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.synthetic_clusters import MixedCluster

WHOLE = load_policy("volcano-default", lambda _: "")
POLICY = without_evictions(WHOLE)
NODES = ("a", "b")
GIB = 1 << 30


def gang(name, *cpus, node="", at=0):
    key = f"ml/{name}"
    tasks = tuple(
        Task(
            f"{key}-{i}",
            TaskShape((("cpu", 1000 * each), ("memory", GIB))),
            TaskStatus.RUNNING if node else TaskStatus.PENDING,
            node=node,
            uid=f"{key}-{i}",
            gang=key,
            role=f"r{i}",
            index=i,
        )
        for i, each in enumerate(cpus)
    )
    phase = GangPhase.RUNNING if node else GangPhase.INQUEUE
    return Gang(key, min_member=len(cpus), tasks=tasks, phase=phase, created_ms=at)


def cluster(*gangs, nodes=NODES, cpu=4):
    offered = (("cpu", 1000 * cpu), ("memory", 64 * GIB), ("pods", 10))
    resident = {t.node: [] for g in gangs for t in g.tasks}
    for each in gangs:
        for task in each.tasks:
            resident[task.node].append(task)
    made = tuple(Node(n, offered, residents=tuple(resident.get(n, ()))) for n in nodes)
    return Snapshot(
        10, made, tuple(sorted(gangs, key=lambda g: g.key)), (Queue("default"), Queue("root"))
    )


def decide(snapshot, warm_start=None, policy=POLICY, solver=None):
    limits = Limits(None, 1.0, num_workers=1)
    context = SessionContext(solver=solver, limits=limits, warm_start=warm_start)
    return run_session(snapshot, policy, context)


def sign(one, other):
    """Return 1 if the first report is better on the first different level."""
    levels = (report.plan.certificate.levels for report in (one, other))
    for a, b in zip(*levels, strict=True):
        if a.value != b.value:
            return 1 if (a.value > b.value) is (a.sense is Sense.MAX) else -1
    return 0


@pytest.fixture(scope="module")
def drawn():
    """Return a cluster on which the solver beats the pipeline, and the solver's plan."""
    snapshot = MixedCluster(num_nodes=20, num_pods=80, num_shapes=20, fill=0.7, seed=1).snapshot()
    found = decide(snapshot, solver=InProcess())
    assert sign(found, decide(snapshot)) == 1
    return snapshot, found


def test_a_session_without_time_to_search_gets_the_plan_of_the_earlier_search(drawn):
    snapshot, found = drawn
    again = decide(snapshot, WarmStart.from_plan(found.plan))
    assert again.plan.certificate.engine == EARLIER
    assert again.plan.binds == found.plan.binds
    assert sign(again, found) == 0
    assert again.trace.violations == ()


def test_the_solver_goes_on_from_it_and_is_never_worse(drawn):
    snapshot, found = drawn
    again = decide(snapshot, WarmStart.from_plan(found.plan), solver=InProcess())
    assert sign(again, found) >= 0


def test_the_same_warm_start_gives_the_same_plan(drawn):
    snapshot, found = drawn
    one, other = (
        decide(snapshot, WarmStart.from_plan(found.plan), solver=InProcess()) for _ in range(2)
    )
    assert one.plan.actions == other.plan.actions


def test_gangs_are_dropped_that_do_not_fit_any_more(drawn):
    """The gangs on two lost nodes are dropped, and other gangs are placed greedily."""
    snapshot, found = drawn
    lost = sorted(set(found.plan.binds.values()))[:2]
    smaller = replace(
        snapshot,
        nodes=tuple(n for n in snapshot.nodes if n.name not in lost),
        gangs=tuple(
            replace(g, tasks=tuple(t for t in g.tasks if t.node not in lost))
            for g in snapshot.gangs
        ),
    )
    again = decide(smaller, WarmStart.from_plan(found.plan))
    assert again.trace.violations == ()
    assert not set(again.plan.binds.values()) & set(lost)
    assert sign(again, decide(smaller)) >= 0


def test_a_warm_start_that_is_no_better_changes_nothing(drawn):
    snapshot, _ = drawn
    greedy = decide(snapshot)
    again = decide(snapshot, WarmStart.from_plan(greedy.plan))
    assert again.plan.certificate.engine == greedy.plan.certificate.engine
    assert again.plan.actions == greedy.plan.actions


def tight():
    """Return two gangs of which only one fits; the pipeline's order starts the smaller one."""
    return cluster(gang("a-small", 2, 1), gang("b-large", 4, 4))


LARGE_FIRST = WarmStart({"ml/b-large": {"ml/b-large-0": "a", "ml/b-large-1": "b"}})


def engine(report):
    return report.plan.certificate.engine


def test_a_small_cluster_shows_what_is_used():
    greedy, again = decide(tight()), decide(tight(), LARGE_FIRST)
    assert {a.gang for a in greedy.plan.actions if isinstance(a, Allocate)} == {"ml/a-small"}
    assert again.plan.binds == LARGE_FIRST.gangs["ml/b-large"]
    assert engine(again) == EARLIER


@pytest.mark.parametrize(
    "binds",
    [
        {"ml/b-large-0": "a", "ml/b-large-1": "gone"},
        {"ml/b-large-0": "a", "ml/b-large-7": "b"},
        {"ml/b-large-0": "a", "ml/b-large-1": "a"},
    ],
    ids=["a node is gone", "a pod is gone", "a node is too small"],
)
def test_a_gang_is_dropped_whole(binds):
    again = decide(tight(), WarmStart({"ml/b-large": binds}))
    assert engine(again) != EARLIER
    assert again.plan.actions == decide(tight()).plan.actions
    assert again.trace.violations == ()


def test_a_gang_is_dropped_whose_capacity_is_taken():
    given = cluster(gang("a-small", 2, 1), gang("b-large", 4, 4), gang("runs", 2, node="b"))
    again = decide(given, LARGE_FIRST)
    assert engine(again) != EARLIER
    assert again.plan.actions == decide(given).plan.actions


@pytest.mark.parametrize("gangs", [(), (gang("runs", 2, node="b"),)], ids=["none", "running"])
def test_a_warm_start_of_gangs_that_no_longer_wait_is_dropped(gangs):
    again = decide(cluster(*gangs), LARGE_FIRST)
    assert engine(again) != EARLIER
    assert again.plan.actions == ()


def test_one_that_breaks_a_rule_is_dropped_and_counts_as_no_refusal(monkeypatch):
    """If the verifier refuses the warm start, the session begins with the pipeline's plan."""
    refused = []
    verify = attempt.verify_actions
    half = (Allocate("ml/b-large-0", "a", "ml/b-large"),)

    def object_to_large(before, actions, rules):
        if any(isinstance(a, Allocate) and a.gang == "ml/b-large" for a in actions):
            refused.extend(found := verify(before, half, rules))
            return found
        return verify(before, actions, rules)

    monkeypatch.setattr(attempt, "verify_actions", object_to_large)
    again = decide(tight(), LARGE_FIRST)
    assert refused
    assert engine(again) != EARLIER
    assert again.plan.actions == decide(tight()).plan.actions
    assert again.trace.violations == ()


def test_a_policy_without_solver_takes_no_warm_start():
    again = decide(tight(), LARGE_FIRST, without_solver(POLICY))
    assert engine(again) != EARLIER


def test_a_search_with_evictions_begins_with_what_was_placed_without():
    """The search used to begin with the pipeline's placements, which were worse.

    More capacity is idle with evictions, so no level over admitted gangs may be worse.
    """
    snapshot = MixedCluster(num_nodes=20, num_pods=80, num_shapes=20, fill=0.9, seed=15).snapshot()
    found = decide(snapshot, solver=InProcess())
    again = decide(snapshot, WarmStart.from_plan(found.plan), WHOLE)
    assert any(isinstance(action, Evict) for action in again.plan.actions)
    assert again.trace.violations == ()
    first, other = (report.plan.certificate.levels[0] for report in (again, found))
    assert first.name == other.name
    assert first.value > other.value


def test_what_is_searched_between_sessions_evicts_nobody():
    assert {"preempt", "reclaim"} <= set(WHOLE.actions)
    assert not {"preempt", "reclaim"} & set(POLICY.actions)
    assert "allocate" in POLICY.actions


def test_what_is_left_of_the_period_is_searched_on():
    """The time that a session needs outside of its searches is reserved."""
    plan = decide(tight()).plan
    assert plan.pending
    seconds = {"solve": 0.4, "greedy": 0.1, "verify": 0.05}
    limits = limits_between_sessions(plan, seconds, 500, 3)
    assert limits is not None
    assert limits.budget_ms is not None
    assert LEAST_MS <= limits.budget_ms < 500 - 150
    assert limits.seed != limits_between_sessions(plan, seconds, 500, 4).seed
    assert limits_between_sessions(plan, seconds, LEAST_MS, 3) is None


def test_it_is_not_where_that_is_of_no_use():
    plan = decide(tight()).plan
    proved = decide(tight(), solver=InProcess()).plan
    assert proved.certificate.is_proved
    assert limits_between_sessions(proved, {}, 500, 0) is None
    assert limits_between_sessions(replace(plan, pending={}), {}, 500, 0) is None
    many = replace(plan, actions=plan.actions * MOST_ACTIONS)
    assert limits_between_sessions(many, {}, 500, 0) is None
