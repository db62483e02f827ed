"""Small clusters with one right decision, which the pages on preemption and queues describe."""

from __future__ import annotations

from pathlib import Path

import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.formats.snapshots.instance_files import read_instance
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess

FOLDER = Path(__file__).parent / "decided_clusters"
LIMITS = Limits(budget_ms=None, num_workers=1, deterministic=0.2)
DECIDED = [
    ("idle_node_beside_a_lost_one", "volcano-default", {"ml/job": 2}, 0),
    ("lost_nomination", "volcano-default", {"ml/nom": 1}, 0),
    ("loan_that_must_leave_whole", "volcano-default", {"ml/late": 1}, 6),
    ("guarantee_beyond_the_minimum", "crater", {"ml/x": 3}, 3),
    ("guarantee_beside_own_pods", "volcano-default", {"ml/waits": 1}, 4),
    ("reclaim_for_a_gang_with_a_master", "volcano-default", {"ml/mpi": 2}, 2),
    ("min_resources_beyond_the_pods", "volcano-default", {"ml/high": 1, "ml/other": 0}, 1),
    ("preempted_beside_a_node_that_is_lent", "volcano-default", {"ml/x": 1}, 0),
    ("nominated_task_of_a_placed_queue", "drf-lexicographic", {"ml/g17": 2}, 0),
]


@pytest.mark.parametrize(
    ("name", "model", "starts", "num_victims"),
    [pytest.param(*case, id=case[0]) for case in DECIDED],
)
def test_a_cluster_is_decided_as_the_pages_say(
    name: str, model: str, starts: dict[str, int], num_victims: int
) -> None:
    snapshot = read_instance(FOLDER / f"{name}.json").snapshot
    policy = load_policy(model, Path.read_text)
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=LIMITS))
    assert report.trace.violations == ()
    actions = report.plan.actions
    placed = [a.gang for a in actions if isinstance(a, Allocate | Nominate)]
    assert {gang: placed.count(gang) for gang in starts} == starts
    assert sum(isinstance(a, Evict) for a in actions) == num_victims
