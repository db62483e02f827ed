"""Critical system pods come before all others, and are never evicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.decisions import Evict
from optsched.cluster.snapshot import Gang, Queue, Snapshot
from optsched.plugins.eviction.victims import SYSTEM_PRIORITY, system_first
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import CPU, cluster, gang, node, running, shape

POLICY = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}{conformance}]
- plugins: [{{name: predicates}}, {{name: capacity}}, {{name: nodeorder}}]
solver: {solver}
"""
SOLVING = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))

both_engines = pytest.mark.parametrize("solver", ["none", "cpsat"])


def decide(snapshot: Snapshot, solver: str, conformance: str = ", {name: conformance}"):
    text = POLICY.format(solver=solver, conformance=conformance)
    report = run_session(snapshot, parse_policy(text, "test.conf"), SOLVING)
    assert report.trace.violations == ()
    return report.plan


def in_system(made: Gang) -> Gang:
    """Return the gang in the namespace kube-system."""
    key = f"kube-system/{made.name}"
    tasks = (replace(t, key=f"{key}-{t.index}", gang=key) for t in made.tasks)
    return replace(made, key=key, tasks=tuple(tasks))


def contest(**system: object) -> Snapshot:
    """Return a cluster with capacity for one of two gangs; other orders prefer the user's gang."""
    user = gang("user", ("w", 2, shape(2)), queue="a", priority=9, created_ms=0)
    agent = in_system(gang("agent", ("w", 2, shape(2)), queue="b", created_ms=5))
    agent = replace(agent, **system)
    queues = [
        Queue("a", priority=9, deserved=((CPU, 4000),)),
        Queue("b", deserved=((CPU, 1000),)),
    ]
    return cluster([node("n")], [user, agent], queues)


@both_engines
def test_system_pods_come_before_more_important_ones_of_other_queues(solver: str) -> None:
    plan = decide(contest(), solver)
    assert plan.binds.keys() == {"kube-system/agent-0", "kube-system/agent-1"}


@both_engines
def test_that_is_what_the_plugin_conformance_does(solver: str) -> None:
    plan = decide(contest(), solver, conformance="")
    assert plan.binds.keys() == {"ns/user-w-0", "ns/user-w-1"}


@both_engines
@pytest.mark.parametrize("queue", ["a", "b"])
def test_they_preempt_in_their_queue_and_are_never_evicted(solver: str, queue: str) -> None:
    user = gang("user", ("w", 1, shape(4)), least=0, queue="a", priority=9)
    user = replace(user, tasks=(running(user.tasks[0], "n"),))
    agent = in_system(gang("agent", ("w", 1, shape(4)), queue=queue))
    plan = decide(cluster([node("n")], [user, agent], [Queue("a"), Queue("b")]), solver)
    evicted = [a.task for a in plan.actions if isinstance(a, Evict)]
    assert evicted == (["ns/user-w-0"] if queue == "a" else [])

    held = replace(agent, tasks=(running(agent.tasks[0], "n"),))
    urgent = gang("urgent", ("w", 1, shape(4)), queue=queue, priority=SYSTEM_PRIORITY + 1)
    plan = decide(cluster([node("n")], [held, urgent], [Queue("a"), Queue("b")]), solver)
    assert plan.actions == ()


def test_only_gangs_that_need_it_are_raised() -> None:
    user = gang("user", ("w", 1, shape()), priority=7)
    critical = gang("critical", ("w", 1, shape()), priority=SYSTEM_PRIORITY + 1000)
    plain = cluster([node("n")], [user, critical])
    assert system_first(plain) is plain
    marked = gang("marked", ("w", 1, shape()))
    marked = replace(marked, tasks=(replace(marked.tasks[0], priority=SYSTEM_PRIORITY),))
    raised = system_first(cluster([node("n")], [user, critical, marked, in_system(user)]))
    assert {g.key: g.priority for g in raised.gangs} == {
        "ns/user": 7,
        "ns/critical": SYSTEM_PRIORITY + 1000,
        "ns/marked": SYSTEM_PRIORITY,
        "kube-system/user": SYSTEM_PRIORITY,
    }
