"""Tests of whole sessions on network topologies, including evictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Evict, Nominate
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.cluster.topology import TopologyRequest
from optsched.policy import SolverKind, load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import num_examples
from tests.support.small import cluster, gang, network, node, shape, with_network

if TYPE_CHECKING:
    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Gang, Node, Snapshot
    from optsched.session.session import Report

SOLVED = load_policy("topology-first", Path.read_text)
GREEDY = replace(SOLVED, solver=SolverKind.NONE)
RACK = TopologyRequest(highest_tier=1)


def decide(snapshot: Snapshot, policy: object = SOLVED) -> Report:
    limits = Limits(budget_ms=None, num_workers=1)
    around = SessionContext(solver=InProcess() if policy is SOLVED else None, limits=limits)
    return run_session(snapshot, policy, around)


def prioritised(made: Gang, priority: int) -> Gang:
    tasks = tuple(replace(t, priority=priority) for t in made.tasks)
    return replace(made, tasks=tasks, priority=priority)


def runs(made: Gang, *where: str) -> Gang:
    there = [
        replace(t, status=TaskStatus.RUNNING, node=at, preemptable=True)
        for t, at in zip(made.tasks, where, strict=False)
    ]
    tasks = (*there, *made.tasks[len(where) :])
    return replace(made, tasks=tasks, phase=GangPhase.RUNNING)


def nodes_of(actions: tuple[Action, ...], kind: type) -> list[str]:
    return sorted(a.node for a in actions if isinstance(a, kind))


# --- examples ------------------------------------------------------------------------------------


def test_room_is_made_in_the_rack_where_that_costs_least() -> None:
    nodes = [node(n, 1) for n in ("a1", "a2", "b1", "b2", "c1")]
    low = [runs(gang(f"low-{n}", ("w", 1, shape(1))), n) for n in ("a1", "a2", "b1")]
    high = prioritised(replace(gang("high", ("w", 2, shape(1))), topology=RACK), 10)
    tree = network(["a1", "a2"], ["b1", "b2"], ["c1"])
    report = decide(replace(cluster(nodes, [*low, high]), topology=tree))
    assert report.trace.violations == ()
    assert nodes_of(report.plan.actions, Evict) == ["b1"]
    assert nodes_of(report.plan.actions, Nominate) == ["b1", "b2"]


def test_nobody_leaves_where_no_rack_could_hold_the_gang() -> None:
    nodes = [node(n, 1) for n in ("a1", "b1")]
    low = runs(gang("low", ("w", 1, shape(1))), "a1")
    high = prioritised(replace(gang("high", ("w", 2, shape(1))), topology=RACK), 10)
    tree = network(["a1"], ["b1"])
    for policy in (SOLVED, GREEDY):
        plan = decide(replace(cluster(nodes, [low, high]), topology=tree), policy).plan
        assert plan.actions == ()


# --- whatever comes ------------------------------------------------------------------------------


def random_contest(rng: np.random.Generator) -> Snapshot:
    """Draw running low-priority gangs, and others that request their capacity."""
    nodes = [node(f"n{i}", int(rng.integers(1, 4))) for i in range(int(rng.integers(2, 6)))]
    low = [random_gang(rng, f"r{i}", 0) for i in range(int(rng.integers(1, 4)))]
    high = [random_gang(rng, f"p{i}", 10) for i in range(int(rng.integers(1, 3)))]
    return with_network(rng, cluster(nodes, [*spread(rng, low, nodes), *high]))


def random_gang(rng: np.random.Generator, name: str, priority: int) -> Gang:
    number = int(rng.integers(1, 4))
    what = shape(1 if priority == 0 else int(rng.integers(1, 3)))
    least = int(rng.integers(1, number + 1))
    return prioritised(gang(name, ("w", number, what), least=least), priority)


def spread(rng: np.random.Generator, gangs: list[Gang], nodes: list[Node]) -> list[Gang]:
    """Return the gangs with most tasks running on nodes with idle capacity."""
    room = [n.name for n in nodes for _ in range(dict(n.allocatable)["cpu"] // 1000)]
    rng.shuffle(room)
    return [runs(g, *(room.pop() for t in g.tasks if room and rng.random() < 0.85)) for g in gangs]


@pytest.mark.parametrize("seed", range(num_examples(60)))
@pytest.mark.parametrize("policy", [SOLVED, GREEDY], ids=["solved", "greedy"])
def test_no_plan_breaks_a_gang_apart(policy: object, seed: int) -> None:
    report = decide(random_contest(np.random.default_rng(seed)), policy)
    rules = {v.rule for v in report.trace.violations}
    assert not rules & {"network-topology", "sub-groups"}
