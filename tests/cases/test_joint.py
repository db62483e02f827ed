"""Shared cases in which a plan with evictions is better, so that bounds must allow for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.formats.snapshots.instance_files import read_instance
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.evictions import bounds_of
from tests.support.shared import shared
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape


@pytest.mark.parametrize(
    ("case", "model", "least"),
    [
        ("min_FALSEPROOF_norej_volcano-default", "volcano-default", 2000),
        ("min_FALSEPROOF_norej_crater", "crater", 2000),
        ("h1b_joint_admission", "crater", 2),
    ],
)
def test_what_starts_by_evictions_is_within_the_bound(case: str, model: str, least: int) -> None:
    snapshot = read_instance(shared("cases", "decisions", f"{case}.yaml")).snapshot
    known = {"admission, first in line, priority 100": 2}
    levels, bounds = bounds_of(snapshot, load_policy(model, Path.read_text), known)
    assert bounds is not None
    bound = bounds.levels[[level.name for level in levels].index("admission, priority 100")]
    assert bound is not None
    assert bound >= least


def test_one_victim_is_enough_for_two_gangs_of_the_case() -> None:
    snapshot = read_instance(shared("cases", "decisions", "h2_joint_victims.yaml")).snapshot
    known = {"admission, priority 100": 4}
    _, bounds = bounds_of(snapshot, load_policy("volcano-default", Path.read_text), known)
    assert bounds is not None
    assert bounds.victims == 1


@pytest.mark.parametrize(
    ("case", "model", "number"),
    [
        ("h2_joint_victims", "volcano-default", 2),
        ("min_FALSEPROOF_norej_volcano-default", "volcano-default", 1),
        ("h1b_joint_admission", "crater", 2),
    ],
)
def test_one_victim_lets_the_gangs_of_the_case_start(case: str, model: str, number: int) -> None:
    snapshot = read_instance(shared("cases", "decisions", f"{case}.yaml")).snapshot
    around = SessionContext(solver=InProcess(), limits=Limits(None, num_workers=1))
    report = run_session(snapshot, load_policy(model, Path.read_text), around)
    assert report.trace.violations == ()
    assert len([a for a in report.plan.actions if isinstance(a, Evict)]) == 1
    assert len([a for a in report.plan.actions if isinstance(a, Allocate | Nominate)]) == number


def test_a_gang_with_idle_room_has_no_pod_evicted_for_others_of_the_case() -> None:
    """No pod is evicted for a gang that fits idle capacity.

    Queue a could reclaim a node and leave its idle capacity to gangs of the queue that lends the
    node.
    """
    case = shared("cases", "decisions", "min_FALSEPROOF_norej_crater.yaml")
    around = SessionContext(solver=InProcess(), limits=Limits(None, num_workers=1))
    report = run_session(
        read_instance(case).snapshot, load_policy("crater", Path.read_text), around
    )
    assert not any(isinstance(action, Evict) for action in report.plan.actions)
    assert report.plan.binds == {"ml/g0-0": "n0"}
    assert not report.plan.certificate.is_proved


def test_one_victim_is_enough_for_two_gangs() -> None:
    one, two = shape(cpu=1, gpu=2), shape(cpu=1, gpu=4)
    small, large = gang("v1", ("w", 1, one), queue="a"), gang("v2", ("w", 1, two), queue="a")
    gangs = [
        replace(small, tasks=(running(small.tasks[0], "n1"),), phase=GangPhase.RUNNING),
        replace(large, tasks=(running(large.tasks[0], "n2"),), phase=GangPhase.RUNNING),
        *(gang(name, ("w", 1, one), queue="a", priority=100) for name in "pq"),
    ]
    nodes = [node("n1", cpu=64, gpu=2), node("n2", cpu=64, gpu=4)]
    snapshot = cluster(nodes, gangs, [Queue("a")])
    known = {"admission, priority 100": 4}
    _, bounds = bounds_of(snapshot, load_policy("volcano-default", Path.read_text), known)
    assert bounds is not None
    assert bounds.victims == 1


def test_a_queue_above_its_due_makes_room_for_two_gangs() -> None:
    old = gang("old", ("w", 1, shape(cpu=2)), queue="b")
    gangs = [
        replace(old, tasks=(running(old.tasks[0], "n1"),), phase=GangPhase.RUNNING),
        gang("g0", ("w", 1, shape(cpu=1)), queue="a", priority=100),
        gang("g1", ("w", 1, shape(cpu=1)), queue="b", priority=100),
    ]
    queues = [Queue(name, deserved=((CPU, 1000),)) for name in "ab"]
    snapshot = cluster([node("n1", cpu=2)], gangs, queues)
    levels, bounds = bounds_of(snapshot, load_policy("crater", Path.read_text))
    assert bounds is not None
    assert bounds.levels[[level.name for level in levels].index("admission, priority 100")] == 2000


def test_what_nobody_is_entitled_to_is_no_room() -> None:
    old = gang("old", ("w", 1, shape(cpu=2, gpu=1)), queue="a", priority=100)
    gangs = [
        replace(old, tasks=(running(old.tasks[0], "n1"),), phase=GangPhase.RUNNING),
        gang("new", ("w", 1, shape(cpu=1)), queue="b", priority=1),
    ]
    queues = [Queue("a", deserved=((CPU, 2000), (GPU, 1))), Queue("b", deserved=((CPU, 1000),))]
    snapshot = cluster([node("n1", cpu=2, gpu=1)], gangs, queues)
    levels, bounds = bounds_of(snapshot, load_policy("crater", Path.read_text))
    assert bounds is not None
    assert bounds.levels[[level.name for level in levels].index("admission, priority 1")] == 0
