"""Tests of the order of tiers and levels, where priority and shares disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.snapshot import Queue
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import CPU, cluster, gang, node, running, shape

EXACT = Limits(budget_ms=None, deterministic=10.0, num_workers=1)
CONF = """\
actions: "allocate"
solver: {solver}
tiers:
- plugins:
  - name: {first}
- plugins:
  - name: {second}
  - name: gang
  - name: predicates
"""
MODEL = """\
apiVersion: optsched.io/v1alpha1
kind: Model
name: lab
actions: [allocate]
tiers:
- rules:
  - name: priority
  - name: gang
  - name: capacity
  - name: drf
levels: [{levels}]
"""


def bound(snapshot, policy):
    """Return the gangs that get a task."""
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=EXACT))
    assert report.trace.violations == ()
    return sorted({task.rsplit("-", 2)[0].removeprefix("ns/") for task in report.plan.binds})


def growing():
    """Return a node with one idle CPU of four, and two waiting jobs.

    One job has a high priority and holds three CPUs; the other job holds none.
    """
    holds = gang("holds", ("w", 4, shape(1)), least=1, priority=1000)
    tasks = [running(t, "n0") for t in holds.tasks[:3]]
    holds = replace(holds, tasks=(*tasks, holds.tasks[3]))
    return cluster([node("n0")], [holds, gang("nothing", ("w", 1, shape(1)))])


@pytest.mark.parametrize(
    ("solver", "first", "second", "winner"),
    [
        ("none", "priority", "drf", "holds"),
        ("none", "drf", "priority", "nothing"),
        ("cpsat", "priority", "drf", "nothing"),
        ("cpsat", "drf", "priority", "nothing"),
    ],
)
def test_who_grows_is_decided_by_the_first_tier_without_a_solver(
    solver, first, second, winner
) -> None:
    policy = parse_policy(CONF.format(solver=solver, first=first, second=second), "a.conf")
    assert bound(growing(), policy) == [winner]


def starting():
    """Return a half idle cluster, and two waiting gangs.

    One gang has a high priority and a queue that holds the other half.
    """
    holds = gang("holds", ("w", 1, shape(2)), queue="rich")
    holds = replace(holds, tasks=tuple(running(t, "n0") for t in holds.tasks))
    high = gang("high", ("w", 1, shape(2)), queue="rich", priority=1000)
    low = gang("low", ("w", 1, shape(2)), queue="poor")
    queues = [Queue(name, deserved=((CPU, 2000),)) for name in ("rich", "poor")]
    return cluster([node("n0")], [holds, high, low], queues)


@pytest.mark.parametrize(
    ("solver", "first", "second", "winner"),
    [
        ("none", "priority", "capacity", "low"),
        ("none", "capacity", "priority", "low"),
        ("cpsat", "priority", "capacity", "high"),
        ("cpsat", "capacity", "priority", "high"),
    ],
)
def test_who_starts_is_decided_by_priority_with_a_solver_and_by_queues_without(
    solver, first, second, winner
) -> None:
    policy = parse_policy(CONF.format(solver=solver, first=first, second=second), "a.conf")
    assert bound(starting(), policy) == [winner]


@pytest.mark.parametrize(
    ("levels", "starts", "grows"),
    [
        ("admission, fair-share, tasks", "high", "nothing"),
        ("fair-share, admission, tasks", "low", "nothing"),
        ("tasks, admission, fair-share", "high", "holds"),
    ],
)
def test_a_model_says_which_comes_first(levels, starts, grows) -> None:
    policy = parse_policy(MODEL.format(levels=levels), "lab.yaml")
    assert bound(starting(), policy) == [starts]
    assert bound(growing(), policy) == [grows]
