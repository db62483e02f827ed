"""Measure reclaim with a proof that the victims are minimal, or that evictions are useless.

Run `make bench-session`. A session runs from snapshot to plan, with a check of its certificate. The
in-memory benchmark of another scheduler has the same cases. That scheduler takes 121 s to find that
the gang of 80 GPUs does not fit on 200 nodes. Its reclaim for 250 × 8 GPUs on 500 nodes takes 102
s.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict, LevelStatus, Nominate
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.policy.load import parse_policy
from optsched.session.session import Report, SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from bench.conftest import Table
    from optsched.cluster.decisions import Plan
    from optsched.solver.cpsat.process import WorkerProcess

CPU, GPU, PODS = "cpu", "nvidia.com/gpu", "pods"
MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: shares
meaning: Fixed shares; capacity is reclaimed for queues below their share.
actions: [enqueue, allocate, preempt, reclaim, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: predicates}, {name: capacity}]
levels: [guarantee, admission, fair-share, tasks]
solver: {engine: cpsat, budget: 900ms}
"""
ROUNDS = 3


def shape(gpus: int) -> TaskShape:
    return TaskShape(((CPU, 1000 * gpus), (GPU, gpus)))


def full_cluster(num_nodes: int, deserved: tuple[int, int], size: int) -> Snapshot:
    """Return nodes of 8 GPUs full of queue a's one-GPU jobs, and one waiting gang of queue b.

    `deserved` contains the deserved GPUs of queues a and b. `size` is the number of pods of the
    gang. Each of these pods requests 8 GPUs.
    """
    one, eight = shape(1), shape(8)
    gangs, nodes = [], []
    for n in range(num_nodes):
        name, here = f"node-{n:04d}", []
        for i in range(8):
            key = f"jobs/{n:04d}-{i}"
            task = Task(f"{key}-0", one, TaskStatus.RUNNING, gang=key, node=name, created_ms=n)
            here.append(task)
            gangs.append(Gang(key, queue="a", min_member=1, tasks=(task,), phase=GangPhase.RUNNING))
        offered = ((CPU, 96_000), (GPU, 8), (PODS, 110))
        nodes.append(Node(name, offered, residents=tuple(here)))
    key = "wants/gang"
    tasks = tuple(
        Task(f"{key}-{i:03d}", eight, TaskStatus.PENDING, gang=key, index=i) for i in range(size)
    )
    wants = Gang(key, queue="b", min_member=size, tasks=tasks, phase=GangPhase.INQUEUE)
    queues = [Queue(q, deserved=((GPU, n),)) for q, n in zip("ab", deserved, strict=True)]
    every = (*queues, Queue("default"), Queue("root"))
    return Snapshot(10_000, tuple(nodes), (*gangs, wants), every)


def decided(benchmark: BenchmarkFixture, snapshot: Snapshot, solver: WorkerProcess) -> Plan:
    """Return the plan of a timed session."""
    policy = parse_policy(MODEL, "bench")
    around = SessionContext(solver=solver, limits=Limits(budget_ms=2000))
    report: Report = benchmark.pedantic(
        lambda: run_session(snapshot, policy, around), rounds=ROUNDS, warmup_rounds=1
    )
    assert report.trace.violations == ()
    return report.plan


def median(benchmark: BenchmarkFixture) -> float:
    return statistics.median(benchmark.stats.stats.data)


@pytest.mark.parametrize("case", [(200, 1521, 1.0), (500, 3921, 2.0)], ids=str)
def test_one_gpu_short(
    benchmark: BenchmarkFixture,
    table: Table,
    solver: WorkerProcess,
    case: tuple[int, int, float],
) -> None:
    """Queue a can return only 79 of the 80 GPUs, so no pod is evicted."""
    nodes, due, target = case
    plan = decided(benchmark, full_cluster(nodes, (due, 80), 10), solver)
    reason = plan.pending["wants/gang"]
    assert not plan.actions
    assert reason.code is ReasonCode.DESERVED
    assert f"queue a may return 79 {GPU} (a holds {8 * nodes} {GPU}" in reason.message
    name = f"one GPU short, {nodes} nodes, {8 * nodes} running"
    table.add(name, median(benchmark), target, "proved, no pod evicted")


@pytest.mark.parametrize("case", [(200, 1520, 10, 1.0), (500, 2000, 250, 2.0)], ids=str)
def test_reclaim(
    benchmark: BenchmarkFixture,
    table: Table,
    solver: WorkerProcess,
    case: tuple[int, int, int, float],
) -> None:
    """The number of victims equals the number of missing GPUs, which is proved minimal."""
    nodes, due, size, target = case
    plan = decided(benchmark, full_cluster(nodes, (due, 8 * nodes - due), size), solver)
    evicted = [a for a in plan.actions if isinstance(a, Evict)]
    (level,) = (r for r in plan.certificate.levels if r.name == "victims")
    assert len(evicted) == 8 * size == level.value == level.bound
    assert level.status is LevelStatus.OPTIMAL
    assert sum(isinstance(a, Nominate) for a in plan.actions) == size
    name = f"reclaim for {size} × 8 GPUs, {nodes} nodes, {8 * nodes} running"
    table.add(name, median(benchmark), target, f"{len(evicted)} evicted, proved the fewest")
