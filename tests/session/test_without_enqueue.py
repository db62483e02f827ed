"""Policies without the action enqueue still admit gangs."""

from __future__ import annotations

import pytest

from optsched.cluster.decisions import Enqueue
from optsched.cluster.snapshot import GangPhase, Queue, QueueState
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import CPU, cluster, gang, node, shape

POLICY = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [ACTIONS]
tiers:
- rules: [{name: priority}, {name: gang}, {name: overcommit}, {name: proportion}]
levels: [admission]
solver: {engine: ENGINE, budget: 400ms}
"""


@pytest.mark.parametrize("engine", ["cpsat", "none"])
@pytest.mark.parametrize(
    ("actions", "let_in"),
    [("allocate", ["ns/large", "ns/small"]), ("enqueue, allocate", ["ns/small"]), ("backfill", [])],
)
def test_allocate_lets_all_gangs_in_where_enqueue_is_not_listed(
    engine: str, actions: str, let_in: list[str]
) -> None:
    """Volcano's `allocate` also admits gangs, but a closed queue admits none."""
    fields = {"phase": GangPhase.PENDING, "least": 1}
    gangs = [
        gang("large", ("w", 0, shape(1)), min_resources=((CPU, 99_000),), **fields),
        gang("small", ("w", 0, shape(1)), min_resources=((CPU, 1_000),), **fields),
        gang("late", ("w", 0, shape(1)), queue="closed", **fields),
    ]
    queues = [Queue("closed", state=QueueState.CLOSED)]
    text = POLICY.replace("ACTIONS", actions).replace("ENGINE", engine)
    around = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
    snapshot = cluster([node("n")], gangs, queues)
    report = run_session(snapshot, parse_policy(text, "test.yaml"), around)
    assert report.trace.violations == ()
    assert sorted(a.gang for a in report.plan.actions if isinstance(a, Enqueue)) == let_in
