"""Deleted pods count against the capability of their queue until they have ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.api.wellknown import EVICTED
from optsched.cluster.decisions import Allocate, Nominate
from optsched.cluster.relocation import with_terminating
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.cluster.task import TaskStatus
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import load_policy
from optsched.policy.policy import SolverKind
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import CPU, cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.decisions import Action, Plan
    from optsched.cluster.snapshot import Snapshot

POLICY = load_policy("capacity-hierarchical", Path.read_text)
UID = "9b1f"


def one_that_terminates(
    *, capability: int = 4, parent: str = "root", **changes: object
) -> Snapshot:
    """Return queue q with a terminating 4-CPU pod on n0, a waiting 4-CPU pod, and an idle n1."""
    old = gang("old", ("w", 1, shape(4)), queue="q", phase=GangPhase.RUNNING)
    task = replace(old.tasks[0], uid=UID, status=TaskStatus.RELEASING, node="n0")
    old = replace(old, tasks=(replace(task, **changes),))
    new = gang("new", ("w", 1, shape(4)), queue="q")
    queues = [Queue("q", parent=parent, capability=((CPU, capability * 1000),))]
    return cluster([node("n0", 8), node("n1", 8)], [old, new], queues)


def decide(snapshot: Snapshot, solver: SolverKind) -> Plan:
    policy = replace(POLICY, solver=solver)
    limits = Limits(budget_ms=None, num_workers=1)
    context = SessionContext(solver=InProcess(), limits=limits)
    report = run_session(snapshot, policy, context)
    assert report.trace.violations == ()
    return report.plan


def broken(snapshot: Snapshot, *actions: Action) -> list[str]:
    return [str(v) for v in verify_actions(snapshot, actions, POLICY.rules)]


@pytest.mark.parametrize("solver", [SolverKind.NONE, SolverKind.CPSAT])
class TestSessions:
    def test_nothing_starts_in_the_quota_of_a_deleted_pod(self, solver: SolverKind) -> None:
        plan = decide(one_that_terminates(), solver)
        assert plan.binds == {}
        assert not any(isinstance(action, Nominate) for action in plan.actions)
        assert plan.pending["ns/new"].message == (
            "queue q has capability 4 cpu, 0 cpu are in use, "
            "4 cpu are held by pods that terminate, 4 cpu are requested"
        )

    def test_the_rest_of_the_quota_is_used(self, solver: SolverKind) -> None:
        assert "ns/new-w-0" in decide(one_that_terminates(capability=8), solver).binds

    def test_the_quota_of_a_victim_is_free(self, solver: SolverKind) -> None:
        assert "ns/new-w-0" in decide(one_that_terminates(is_evicted=True), solver).binds

    def test_an_ancestor_counts_it(self, solver: SolverKind) -> None:
        snapshot = one_that_terminates(capability=8, parent="p")
        queues = (*snapshot.queues, Queue("p", capability=((CPU, 4000),)))
        snapshot = replace(snapshot, queues=tuple(sorted(queues, key=lambda q: q.name)))
        plan = decide(snapshot, solver)
        assert plan.binds == {}
        assert "queue p, an ancestor of q," in plan.pending["ns/new"].message

    def test_a_node_that_is_not_ready_reports_no_end(self, solver: SolverKind) -> None:
        snapshot = one_that_terminates()
        lost, idle = snapshot.nodes
        snapshot = replace(snapshot, nodes=(replace(lost, ready=False), idle))
        assert "ns/new-w-0" in decide(snapshot, solver).binds


def test_the_verifier_refuses_starts_and_nominations():
    refused = ["capability: queue q: 8 cpu would be in use, the capability is 4 cpu"]
    snapshot = one_that_terminates()
    assert broken(snapshot, Allocate("ns/new-w-0", "n1", "ns/new")) == refused
    assert broken(snapshot, Nominate("ns/new-w-0", "n0", "ns/new")) == refused
    victim = one_that_terminates(is_evicted=True)
    assert broken(victim, Allocate("ns/new-w-0", "n1", "ns/new")) == []


@pytest.mark.parametrize(("uid", "counts"), [(UID, False), ("another", True)])
def test_the_record_on_the_pod_group_names_victims(uid: str, *, counts: bool):
    snapshot = one_that_terminates()
    gangs = [
        replace(each, annotations={EVICTED: f"old-w-0={uid}"}) if each.name == "old" else each
        for each in snapshot.gangs
    ]
    snapshot = replace(snapshot, gangs=tuple(gangs))
    assert bool(broken(snapshot, Allocate("ns/new-w-0", "n1", "ns/new"))) == counts


def test_victims_of_a_session_are_evicted():
    running = one_that_terminates(status=TaskStatus.RUNNING)
    for still_request in (False, True):
        after = with_terminating(running, {"ns/old-w-0"}, still_request=still_request)
        assert broken(after, Allocate("ns/new-w-0", "n1", "ns/new")) == []
