from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.node_resources import GpuShare, GpuShareRequest, SharedGpu
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.task import TaskShape
from optsched.policy import PolicyError, parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.session.session_input import with_exclusive
from tests.support.small import cluster, gang, node, running

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node
    from optsched.cluster.task import Task
    from optsched.policy.policy import Policy

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: true
      deviceshare.GPUExclusiveRules: RULES
"""
RULES = "[{app: inference, optsched.io/tier: gold}, {team: a}]"
GOLD = {"app": "inference", "optsched.io/tier": "gold"}
SHAPE = TaskShape((("cpu", 100),), shared_gpus=(GpuShareRequest(1, 10),))
both = pytest.mark.parametrize("solver", ["", "solver: none\n"], ids=["cpsat", "none"])


def policy(solver: str = "", rules: str = RULES) -> Policy:
    return parse_policy(CONF.replace("RULES", rules) + solver, "volcano-scheduler.conf")


def pods(name: str, *labels: dict[str, str]) -> Gang:
    made = gang(name, ("w", len(labels), SHAPE), least=1)
    tasks = (replace(t, labels=own) for t, own in zip(made.tasks, labels, strict=True))
    return replace(made, tasks=tuple(tasks))


def host(*modes: str, residents: tuple[Task, ...] = ()) -> Node:
    shared_gpus = tuple(SharedGpu(f"GPU-{i}", 100, 9, mode) for i, mode in enumerate(modes))
    return node("n", 8, shared_gpus=shared_gpus, residents=residents)


def placed(made: Node, *gangs: Gang, solver: str) -> set[str]:
    report = run_session(cluster([made], gangs), policy(solver), SessionContext())
    return {task.partition("/")[2] for task in report.plan.binds}


@both
def test_pods_with_all_labels_of_an_entry_share_no_gpu(solver: str) -> None:
    waiting = pods("g", GOLD, GOLD, GOLD)
    assert len(placed(host("hami-core", "hami-core"), waiting, solver=solver)) == 2


@both
def test_others_may_join_them_and_those_of_another_entry_too(solver: str) -> None:
    plain, half = {"app": "web"}, {"app": "inference"}
    waiting = pods("g", GOLD, {"team": "a"}, {**GOLD, "team": "a"}, plain, half)
    found = placed(host("hami-core"), waiting, solver=solver)
    assert {"g-w-3", "g-w-4"} < found
    assert found & {"g-w-0", "g-w-1", "g-w-2"} in ({"g-w-0", "g-w-1"}, {"g-w-2"})


@both
def test_those_that_run_count_by_their_labels(solver: str) -> None:
    (there,) = pods("r", GOLD).tasks
    there = replace(running(there, "n"), shared_gpus=(GpuShare("GPU-0", 10),))
    made = host("hami-core", "hami-core", residents=(there,))
    assert len(placed(made, pods("g", GOLD, GOLD), solver=solver)) == 1


def test_who_waits_is_told_of_it() -> None:
    waiting = replace(pods("g", GOLD, GOLD), min_member=2)
    report = run_session(cluster([host("hami-core")], [waiting]), policy(), SessionContext())
    reason = report.plan.pending["ns/g"]
    assert reason.code is ReasonCode.IMPOSSIBLE
    assert "has room for 1 only: refused by deviceshare" in reason.message


def test_without_labels_nothing_is_looked_at() -> None:
    snapshot = cluster([host("hami-core")], [pods("g", GOLD)])
    assert with_exclusive(snapshot, policy(rules="[]").rules.masking) is snapshot


def test_a_label_needs_a_text() -> None:
    with pytest.raises(PolicyError, match="must be text, not true"):
        policy(rules="[{gold: true}]")
