"""Measure consolidation: the fewest moves of running pods for gangs on a fragmented cluster.

Run `make bench-session`. The case is KAI-Scheduler's scale test "Consolidation to run multiple
distributed jobs" (test/e2e/scale/kwok_test_functions.go). It has 500 nodes of 8 GPUs with 5 idle
GPUs each, and 41 gangs of 10 pods that request 6 GPUs each. The published time is 456 s until all
pods are placed, with evictions and binds on a cluster of fake nodes. This benchmark measures a
session from snapshot to verified plan.
"""

from __future__ import annotations

import statistics
import tracemalloc
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Evict, LevelStatus, Nominate
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.policy.load import parse_policy
from optsched.session.session import Report, SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

    from bench.conftest import Table
    from optsched.solver.cpsat.process import WorkerProcess

CPU, GPU, PODS = "cpu", "nvidia.com/gpu", "pods"
MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: moving
meaning: Running pods are moved for gangs that wait on a fragmented cluster.
actions: [enqueue, allocate, consolidation, preempt, reclaim, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: predicates}, {name: capacity}]
levels: [guarantee, admission, fair-share, tasks]
solver: {engine: cpsat, budget: 900ms}
"""
NUM_NODES, GPUS, IN_USE = 500, 8, 3
NUM_GANGS, PODS_EACH, ASKED = 41, 10, 6
TARGET_S = 5.0
ROUNDS = 3


def shape(gpus: int) -> TaskShape:
    return TaskShape(((CPU, 1000 * gpus), (GPU, gpus)))


def fragmented() -> Snapshot:
    """Return a cluster with three one-GPU jobs on each node, and the waiting gangs."""
    one, large = shape(1), shape(ASKED)
    gangs, nodes = [], []
    for n in range(NUM_NODES):
        name, here = f"node-{n:04d}", []
        for i in range(IN_USE):
            key = f"jobs/{n:04d}-{i}"
            task = Task(
                f"{key}-0",
                one,
                TaskStatus.RUNNING,
                gang=key,
                node=name,
                created_ms=n,
                owner=key,
                is_movable=True,
            )
            here.append(task)
            gangs.append(Gang(key, queue="a", min_member=1, tasks=(task,), phase=GangPhase.RUNNING))
        offered = ((CPU, 96_000), (GPU, GPUS), (PODS, 110))
        nodes.append(Node(name, offered, residents=tuple(here)))
    for g in range(NUM_GANGS):
        key = f"wants/gang-{g:02d}"
        tasks = tuple(
            Task(f"{key}-{i}", large, TaskStatus.PENDING, gang=key, index=i)
            for i in range(PODS_EACH)
        )
        phase = GangPhase.INQUEUE
        gangs.append(Gang(key, queue="b", min_member=PODS_EACH, tasks=tasks, phase=phase))
    queues = tuple(map(Queue, ("a", "b", "default", "root")))
    return Snapshot(10_000, tuple(nodes), tuple(gangs), queues)


def fewest_moves() -> int:
    """Return the minimum number of moves.

    A node that takes a 6-GPU pod must move 1 of its 3 jobs.
    """
    return NUM_GANGS * PODS_EACH * (IN_USE - (GPUS - ASKED))


def test_consolidation(benchmark: BenchmarkFixture, table: Table, solver: WorkerProcess) -> None:
    snapshot, policy = fragmented(), parse_policy(MODEL, "bench")
    around = SessionContext(solver=solver, limits=Limits(budget_ms=2000))

    def session() -> Report:
        return run_session(snapshot, policy, around)

    report: Report = benchmark.pedantic(session, rounds=ROUNDS, warmup_rounds=1)
    assert report.trace.violations == ()
    evicted = [a for a in report.plan.actions if isinstance(a, Evict)]
    (level,) = (r for r in report.plan.certificate.levels if r.name == "moves")
    assert len(evicted) == fewest_moves() == level.value == level.bound
    assert level.status is LevelStatus.OPTIMAL
    assert report.plan.certificate.is_proved
    assert all(a.action == "consolidation" and a.to not in ("", a.node) for a in evicted)
    nominations = [a for a in report.plan.actions if isinstance(a, Nominate)]
    assert len(nominations) == NUM_GANGS * PODS_EACH
    seconds = statistics.median(benchmark.stats.stats.data)
    name = f"consolidation for {NUM_GANGS} × {PODS_EACH} × {ASKED} GPUs, {NUM_NODES} nodes"
    note = f"{len(evicted)} moved, proved the fewest; peak {peak_mib(session):.0f} MiB"
    table.add(name, seconds, TARGET_S, note)


def peak_mib(session: Callable[[], Report]) -> float:
    """Return the peak MiB of Python and NumPy in a session, without the snapshot."""
    tracemalloc.start()
    session()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20
