"""Shares of a tree of queues by weights: departments first, then their teams."""

from __future__ import annotations

from collections import Counter

import pytest

from optsched.domain.cluster import Queue
from optsched.engines.cpsat.model import Limits
from optsched.engines.cpsat.solver import InProcess
from optsched.policy.load import parse_policy
from optsched.policy.policy import without_solver
from optsched.session.session import Surroundings, run_session
from tests.support.small import cluster, gang, node, shape

CONF = """
actions: allocate
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - {name: drf, enableHierarchy: true}
  - {name: predicates}
  - {name: capacity}
"""
TEAMS = {"a1": ("root/a/a1", "1/3/2"), "a2": ("root/a/a2", "1/3/1"), "b1": ("root/b/b1", "1/2/1")}


def team(name: str) -> Queue:
    path, weights = TEAMS[name]
    marks = {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}
    return Queue(name, annotations=marks)


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
@pytest.mark.parametrize(
    "wanted",
    [{"a1": 24, "a2": 12, "b1": 24}, {"a1": 36, "b1": 24}],
    ids=["all want more", "a team is idle"],
)
def test_departments_share_by_weight_and_then_their_teams(
    wanted: dict[str, int], solver: bool
) -> None:
    gangs = [gang(name, ("w", 60, shape(1, 1)), least=1, queue=name) for name in wanted]
    nodes = [node(f"n{i}", 6, gpu=6) for i in range(10)]
    snapshot = cluster(nodes, gangs, [team(name) for name in TEAMS])
    policy = parse_policy(CONF, "tree.conf")
    limits = Limits(budget_ms=None, num_workers=1)
    around = Surroundings(solver=InProcess() if solver else None, limits=limits)
    report = run_session(snapshot, policy if solver else without_solver(policy), around)
    gang_of = {task.key: each.name for each in gangs for task in each.tasks}
    assert Counter(gang_of[task] for task in report.plan.binds) == wanted
