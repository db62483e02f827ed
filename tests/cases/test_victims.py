"""Shared cases about victims, preemptors and rejected plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import optsched
from optsched.cluster.decisions import Evict
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, run_session
from optsched.session.solve_settings import limits_of
from optsched.solver.cpsat.process import InProcess
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.cluster.decisions import Plan


def decide(name: str, model: str = "volcano-default", solver: str = "cpsat") -> Plan:
    """Return the plan for a case, and check that the verifier rejected no plan."""
    chosen = str(shared("cases", "decisions", model)) if "." in model else model
    policy = load_policy(chosen, _text)
    if solver == "none":
        policy = without_solver(policy)
    limits = limits_of(policy, None, deterministic=True, seed=0, gap=None)
    worker = InProcess() if solver == "cpsat" else None
    snapshot = optsched.read(shared("cases", "decisions", name))
    report = run_session(snapshot, policy, SessionContext(solver=worker, limits=limits))
    assert report.trace.violations == ()
    return report.plan


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def evicted(plan: Plan) -> list[str]:
    return sorted(a.task.partition("/")[2] for a in plan.actions if isinstance(a, Evict))


def placed(plan: Plan) -> dict[str, str]:
    """Return the node of each bound or nominated pod, by pod name."""
    coming = (a for a in plan.actions if not isinstance(a, Evict))
    return {a.task.partition("/")[2]: a.node for a in coming if hasattr(a, "node")}


def admitted(plan: Plan) -> int:
    return sum(r.value for r in plan.certificate.levels if r.name.startswith("admission"))


def test_two_jobs_of_a_queue_that_reclaim_share_its_weight():
    plan = decide("starve_reclaim.yaml")
    assert evicted(plan) == ["train-0"]
    assert placed(plan) == {"job1-0": "gpu-1"}


def test_two_jobs_of_a_queue_that_reclaim_share_what_it_deserves():
    plan = decide("starve_reclaim_capacity.yaml", "crater")
    assert evicted(plan) == ["train-0"]
    assert placed(plan) == {"job1-0": "gpu-1"}
    assert "up to 4 nvidia.com/gpu" in plan.pending["ml/job2"].message


def test_a_job_that_waits_for_its_queue_stops_no_other_queue():
    plan = decide("one_bad_bid_stops_all.yaml", "capacity-hierarchical")
    assert evicted(plan) == ["sweep-0", "train-0"]
    assert placed(plan) == {"hotfix-0": "gpu-2", "job1-0": "gpu-1"}
    # The second job of the queue does not change the plan of the other jobs.
    alone = decide("one_bad_bid_without_job2.yaml", "capacity-hierarchical")
    assert (evicted(alone), placed(alone)) == (evicted(plan), placed(plan))


def test_a_queue_that_grows_in_a_session_gives_back_in_the_same_one():
    plan = decide("h1b_joint_admission.yaml", "crater")
    assert len(evicted(plan)) == 1
    assert sorted(placed(plan)) == ["p-0", "q-0"]


@pytest.mark.nightly
def test_urgent_gangs_are_admitted_at_least_as_the_pipeline_admits_them():
    best, greedy = decide("urgent_100.json"), decide("urgent_100.json", solver="none")
    assert admitted(best) >= admitted(greedy) > 0


def test_a_gang_that_loses_pods_has_none_evicted_for_itself():
    """The broken gang either leaves for the urgent gang or starts next to it, never both."""
    plan = decide("crash-hand.yaml")
    assert placed(plan)["hi-0"] == "n0"
    victims = {task.rpartition("-")[0] for task in evicted(plan)}
    assert not victims & {task.rpartition("-")[0] for task in placed(plan)}


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_a_free_node_is_used_and_no_pod_leaves(solver: str):
    plan = decide("free_node_ignored.yaml", solver=solver)
    assert evicted(plan) == []
    assert sorted(placed(plan).values()) == ["n0", "n0"]


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_a_free_node_is_used_beside_a_victim(solver: str):
    plan = decide("c.yaml", "c.conf.yaml", solver)
    assert len(evicted(plan)) == 1
    assert sorted(placed(plan).values()) == ["n1", "n2"]


@pytest.mark.parametrize("model", ["volcano-default", "ci.conf"])
def test_as_many_leave_as_the_start_takes(model: str):
    plan = decide("growth_evicts.json", model)
    assert evicted(plan) == ["low-0", "low-1"]
    assert len(placed(plan)) == 2


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_of_two_gangs_each_loses_one_pod_and_none_ends(solver: str):
    plan = decide("gang_destroyed.json", "gang_destroyed.conf", solver)
    assert [key[0] for key in evicted(plan)] == ["a", "b"]


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_a_training_within_its_gpus_stays_for_a_pod_of_cpu(solver: str):
    assert evicted(decide("gpu.yaml", "gpu.conf.yaml", solver)) == []
