"""NUMA nodes in whole sessions: victims release cells, and broken objects affect few pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.node_resources import NumaPart
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.formats.snapshots.assembly import assemble
from optsched.policy import parse_policy
from optsched.session.session import run_session
from tests.conformance.play import alone, solving
from tests.plugins.test_numa_aware import SINGLE, asks, cells, hold, host
from tests.support.small import cluster, gang, running

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot
    from optsched.session.session import SessionContext

POLICY = """actions: enqueue, allocate, preempt, backfill
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: predicates
  - name: numa-aware
"""
both_engines = pytest.mark.parametrize("around", [alone(), solving()], ids=["pipeline", "cp-sat"])


def crowded(status: TaskStatus = TaskStatus.RUNNING) -> Snapshot:
    """Return two four-CPU cells, one of them full, and a task that needs a whole cell."""
    low = gang("low", ("w", 2, asks(4)), least=1, priority=1)
    tasks = tuple(running(t, "n") for t in low.tasks)
    tasks = (replace(tasks[0], status=status), tasks[1])
    low = replace(low, tasks=tasks, phase=GangPhase.RUNNING)
    held = tuple(hold(t.key, (i, 4)) for i, t in enumerate(tasks))
    made = host("n", SINGLE, *cells((4, 0), (4, 0)), holds=held)
    high = gang("high", ("w", 1, asks(4, policy="single-numa-node")), priority=5)
    return cluster([made], [low, high])


@both_engines
def test_victims_give_back_their_cells_in_the_session_that_evicts_them(
    around: SessionContext,
) -> None:
    report = run_session(crowded(), parse_policy(POLICY, "numa.conf"), around)
    assert report.trace.violations == ()
    assert len([a for a in report.plan.actions if isinstance(a, Evict)]) == 1
    promised = [(a.task, a.node) for a in report.plan.actions if isinstance(a, Nominate)]
    assert promised == [("ns/high-w-0", "n")]


@both_engines
def test_room_that_is_being_freed_is_waited_for(around: SessionContext) -> None:
    snapshot = crowded(TaskStatus.RELEASING)
    report = run_session(snapshot, parse_policy(POLICY, "numa.conf"), around)
    assert report.trace.violations == ()
    assert [a for a in report.plan.actions if isinstance(a, Allocate | Evict)] == []
    assert [a.task for a in report.plan.actions if isinstance(a, Nominate)] == ["ns/high-w-0"]


@both_engines
def test_nobody_leaves_where_that_frees_no_cell(around: SessionContext) -> None:
    snapshot = crowded()
    (made,) = snapshot.nodes
    assert made.numa is not None
    mixed = tuple(replace(h, parts=(NumaPart(0, 2), NumaPart(1, 2))) for h in made.numa.holds)
    (low,) = (g for g in snapshot.gangs if g.name == "low")
    # A whole cell requires the eviction of both pods, but the gang keeps one pod.
    made = replace(made, numa=replace(made.numa, holds=mixed))
    report = run_session(
        replace(snapshot, nodes=(made,)), parse_policy(POLICY, "numa.conf"), around
    )
    assert low.min_member == 1
    assert report.trace.violations == ()
    assert [a for a in report.plan.actions if isinstance(a, Allocate)] == []


# --- bad objects ---------------------------------------------------------------------------------


def objects(free: str) -> list[dict[str, Any]]:
    """Return a node with a Numatopology, a pod that needs it, and one that does not."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9"}},
    }
    inside = {
        "apiVersion": "nodeinfo.volcano.sh/v1alpha1",
        "kind": "Numatopology",
        "metadata": {"name": "n"},
        "spec": {
            "policies": {
                "CPUManagerPolicy": "static",
                "TopologyManagerPolicy": "single-numa-node",
            },
            "numares": {"cpu": {"allocatable": free}},
            "cpuDetail": {str(n): {"numa": n // 4, "core": n} for n in range(8)},
        },
    }
    return [node, inside, pod("plain"), pod("needs", "single-numa-node")]


def pod(name: str, policy: str = "none") -> dict[str, Any]:
    limits = {"cpu": "3", "memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "annotations": {"volcano.sh/numa-topology-policy": policy},
        },
        "spec": {
            "schedulerName": "volcano",
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
    }


@both_engines
def test_a_broken_numatopology_harms_those_who_need_it_only(around: SessionContext) -> None:
    policy = parse_policy(POLICY, "numa.conf")
    sound = assemble(objects("0-7"))
    assert sound.problems == ()
    assert run_session(sound.snapshot, policy, around).plan.binds.keys() == {"ns/plain", "ns/needs"}
    broken = assemble(objects("0-x"))
    (problem,) = broken.problems
    assert str(problem) == (
        'Numatopology n: spec.numares[cpu].allocatable: "0-x" is not a list of numbers: '
        "write numbers and ranges such as 0-3,8"
    )
    plan = run_session(broken.snapshot, policy, around).plan
    assert plan.binds == {"ns/plain": "n"}
    (reason,) = plan.pending.values()
    assert reason.message == (
        "no node has NUMA policy single-numa-node: 1 node has a Numatopology that cannot be used; "
        'Numatopology n: spec.numares[cpu].allocatable: "0-x" is not a list of numbers: '
        "write numbers and ranges such as 0-3,8"
    )
