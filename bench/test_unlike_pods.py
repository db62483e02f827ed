"""Measure gangs of several task classes that fill their nodes, so that a greedy placement can fail.

Run `make bench-session`. Each gang has pods of 1, 1, 2 and 4 CPUs for two nodes of 4 CPUs. A
scheduler that spreads the small pods over both nodes first never places the large pod. Pods come in
every order of names, with one or many gangs.
"""

from __future__ import annotations

import statistics
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.policy.load import load_policy
from optsched.session.session import Report, SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from bench.conftest import Table
    from optsched.solver.cpsat.process import WorkerProcess

POLICY = load_policy("volcano-default", Path.read_text)
ORDERS = sorted(set(permutations((1, 1, 2, 4))))
ROUNDS = 3


def filled(num_gangs: int) -> Snapshot:
    """Return two nodes of 4 CPUs per gang, and gangs with different orders of pod sizes."""
    shapes = {cpus: TaskShape((("cpu", 1000 * cpus),)) for cpus in (1, 2, 4)}
    gangs = []
    for g in range(num_gangs):
        key = f"bench/g{g:04d}"
        tasks = tuple(
            Task(f"{key}-{i}", shapes[cpus], TaskStatus.PENDING, gang=key, role=f"r{i}", index=i)
            for i, cpus in enumerate(ORDERS[g % len(ORDERS)])
        )
        gangs.append(Gang(key, min_member=4, tasks=tasks, phase=GangPhase.INQUEUE))
    offered = (("cpu", 4000), ("pods", 10))
    nodes = tuple(Node(f"n{i:04d}", offered) for i in range(2 * num_gangs))
    return Snapshot(0, nodes, tuple(gangs), (Queue("default"), Queue("root")))


@pytest.mark.parametrize("num_gangs", [1, 12, 120])
def test_unlike_pods_fill_their_nodes(
    benchmark: BenchmarkFixture, table: Table, solver: WorkerProcess, num_gangs: int
) -> None:
    snapshot = filled(num_gangs)

    def decide() -> Report:
        around = SessionContext(solver=solver, limits=Limits(budget_ms=None))
        return run_session(snapshot, POLICY, around)

    report = benchmark.pedantic(decide, rounds=ROUNDS, warmup_rounds=1)
    assert len(report.plan.binds) == 4 * num_gangs
    assert report.trace.violations == ()
    admission = next(r for r in report.plan.certificate.levels if r.name.startswith("admission"))
    assert admission.value == admission.bound
    seconds = statistics.median(benchmark.stats.stats.data)
    table.add(f"{num_gangs} gangs of 1, 1, 2, 4 CPUs on {2 * num_gangs} nodes of 4", seconds)
