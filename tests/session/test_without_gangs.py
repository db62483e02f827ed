"""Tests of policies without the gang plugin."""

from __future__ import annotations

from dataclasses import replace

from optsched.cluster.decisions import Enqueue
from optsched.cluster.snapshot import Gang, GangPhase, Queue
from optsched.policy import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.session.session_input import without_gangs
from tests.support.small import CPU, cluster, gang, node, shape

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
    enableJobReady: false
  - name: proportion
solver: none
"""


def test_tasks_start_alone() -> None:
    snapshot = cluster([node("n0", 1)], [gang("g", ("w", 2, shape(1)))])
    plan = run_session(snapshot, parse_policy(CONF, "conf"), SessionContext()).plan
    assert plan.binds == {"ns/g-w-0": "n0"}


def test_what_a_gang_needs_still_decides_whether_it_is_let_in() -> None:
    needs = [
        Gang(f"ns/{name}", "q", min_member=1, min_resources=((CPU, cpu),), phase=GangPhase.PENDING)
        for name, cpu in (("large", 8000), ("small", 1000))
    ]
    queue = Queue("q", capability=((CPU, 1000),))
    snapshot = cluster([node("n0", 8)], needs, [queue])
    plan = run_session(snapshot, parse_policy(CONF, "conf"), SessionContext()).plan
    assert [a.gang for a in plan.actions if isinstance(a, Enqueue)] == ["ns/small"]


def test_nothing_else_of_a_gang_is_lost() -> None:
    made = gang("g", ("w", 2, shape(1)), min_resources=((CPU, 1000),), priority=3)
    (left,) = without_gangs(cluster([], [made])).gangs
    assert left == replace(made, is_loose=True)
