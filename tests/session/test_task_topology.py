"""Tests of the number of server-worker pairs on different nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.snapshot import Node
from optsched.cluster.task import TaskShape
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.shared import shared
from tests.support.small import cluster, gang

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import Gang

MI = 1 << 20
PS, WORKER = ((("cpu", cpu), ("memory", mi * MI)) for cpu, mi in ((1000, 1000), (2000, 3800)))
NEAR = {"volcano.sh/task-topology-affinity": "ps,worker"}
FAR = {"volcano.sh/task-topology-anti-affinity": "ps"}
ROLES = ("ps", "worker")


def host(number: int) -> Node:
    return Node(f"n{number}", (("cpu", 8000), ("memory", 16 * 1024 * MI), ("pods", 110)))


def training(name: str, notes: dict[str, str], created_ms: int) -> Gang:
    roles = (("ps", 2, TaskShape(PS)), ("worker", 4, TaskShape(WORKER)))
    return gang(name, *roles, annotations=notes, created_ms=created_ms)


def pairs_apart(gangs: Sequence[Gang], *, solver: bool) -> list[int]:
    """Return the number of separated server-worker pairs by gang."""
    policy = load_policy(str(shared("experiments", "conf", "tt.conf")), Path.read_text)
    limits = Limits(budget_ms=None, num_workers=1)
    around = SessionContext(solver=InProcess() if solver else None, limits=limits)
    snapshot = cluster([host(i) for i in range(6)], gangs)
    report = run_session(snapshot, policy if solver else without_solver(policy), around)
    assert report.trace.violations == ()
    node_of = report.plan.binds
    found = []
    for each in gangs:
        nodes = {role: [node_of[t.key] for t in each.tasks if t.role == role] for role in ROLES}
        found.append(sum(a != b for a in nodes["ps"] for b in nodes["worker"]))
    return found


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
@pytest.mark.parametrize(("notes", "least"), [(NEAR | FAR, 4), (NEAR, 2)], ids=["apart", "near"])
def test_the_fewest_pairs_are_apart_whoever_came_first(
    notes: dict[str, str], least: int, solver: bool
) -> None:
    """A job of 2 servers and 4 workers needs 10 CPUs, so it spans two nodes of 8 CPUs."""
    for turn in range(3):
        gangs = [training(f"tf{i}", notes, created_ms=(i + turn) % 3) for i in range(3)]
        assert pairs_apart(gangs, solver=solver) == [least] * 3
