"""Measure the cost of reservations for gangs that have waited too long, with backfilled jobs.

Run `make bench-session`. Every node has a job that ends at a known instant, and one idle GPU. Four
waiting gangs have pods that request whole nodes. Together, these gangs need all nodes. The same
session without reservations is timed in the same run, and both plans are checked.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.api.wellknown import RUNNING_ESTIMATE
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.policy.load import parse_policy
from optsched.session.session import Report, SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from bench.conftest import Table
    from optsched.solver.cpsat.process import WorkerProcess

CPU, GPU, PODS = "cpu", "nvidia.com/gpu", "pods"
POLICY = parse_policy(
    """
apiVersion: optsched.io/v1alpha1
kind: Model
name: reserving
actions: [enqueue, allocate, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: predicates}, {name: proportion}]
levels: [guarantee, admission, fair-share, tasks]
starvationAfter: 60s
reservations: 4
""",
    "reserving.yaml",
)
NOW_MS = 1_000_000_000
FIRST_END_MS = 300_000
ROUNDS = 3
TARGET_RATIO = 2.5
"""The maximum ratio of the session time with reservations to the time without."""


def job(name: str, number: int, gpus: int, estimate_s: int | None, waited_s: int = 1) -> Gang:
    key = f"bench/{name}"
    shape = TaskShape(((CPU, 1000 * gpus), (GPU, gpus)))
    notes = {} if estimate_s is None else {RUNNING_ESTIMATE: f"{estimate_s}s"}
    tasks = tuple(
        Task(f"{key}-{i}", shape, TaskStatus.PENDING, gang=key, index=i) for i in range(number)
    )
    return Gang(
        key,
        min_member=number,
        tasks=tasks,
        phase=GangPhase.INQUEUE,
        annotations=notes,
        created_ms=NOW_MS - waited_s * 1000,
    )


def crowded(num_nodes: int) -> Snapshot:
    """Return nodes with 7 of 8 GPUs in use for 300 s or longer, and the waiting gangs."""
    gangs, nodes = [], []
    offered = ((CPU, 64_000), (GPU, 8), (PODS, 110))
    for n in range(num_nodes):
        name = f"node-{n:04d}"
        old = job(f"old-{n:04d}", 1, 7, (FIRST_END_MS // 1000) + 60 * (n % 10))
        (task,) = old.tasks
        task = replace(task, status=TaskStatus.RUNNING, node=name, started_ms=NOW_MS)
        gangs.append(replace(old, tasks=(task,), phase=GangPhase.RUNNING))
        nodes.append(Node(name, offered, residents=(task,)))
    gangs += [job(f"big-{i}", num_nodes // 4, 8, 3600, waited_s=600 - i) for i in range(4)]
    gangs += [job(f"short-{i:04d}", 1, 1, 200) for i in range(num_nodes // 2)]
    gangs += [job(f"long-{i:04d}", 1, 1, None) for i in range(num_nodes // 2)]
    gangs.sort(key=lambda g: g.key)
    return Snapshot(NOW_MS, tuple(nodes), tuple(gangs), (Queue("default"), Queue("root")))


def placed(report: Report) -> dict[str, int]:
    """Return the number of bound tasks by the prefix of their gang's name."""
    names = [task.partition("/")[2].partition("-")[0] for task in report.plan.binds]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize("num_nodes", [200, 1000])
def test_reservations(
    benchmark: BenchmarkFixture, table: Table, solver: WorkerProcess, num_nodes: int
) -> None:
    snapshot = crowded(num_nodes)
    around = SessionContext(solver=solver, limits=Limits(budget_ms=10_000))

    def without() -> Report:
        return run_session(snapshot, replace(POLICY, reservations=0), around)

    report = benchmark.pedantic(
        lambda: run_session(snapshot, POLICY, around), rounds=ROUNDS, warmup_rounds=1
    )
    assert report.trace.violations == ()
    assert placed(report) == {"short": num_nodes // 2}
    messages = [report.plan.pending[f"bench/big-{i}"].message for i in range(4)]
    assert all("capacity is reserved" in message for message in messages), messages
    assert [b.gang for b in report.problem.snapshot.reservations] == [
        f"bench/big-{i}" for i in range(4)
    ]

    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        plain = without()
        times.append(time.perf_counter() - began)
        assert placed(plain) == {"long": num_nodes // 2, "short": num_nodes // 2}
    seconds, usual = statistics.median(benchmark.stats.stats.data), statistics.median(times)
    assert seconds <= TARGET_RATIO * usual
    note = f"{seconds / usual:.1f} times the session without; 4 gangs have a reservation"
    table.add(f"reservations, {num_nodes} nodes", seconds, TARGET_RATIO * usual, note)
