"""Tests of gangs that fit, but not by placing their pods one by one in any order."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import cluster, gang, node, shape

POLICY = load_policy("volcano-default", Path.read_text)


@pytest.mark.parametrize("sizes", sorted(set(permutations((1, 1, 2, 4)))), ids=str)
def test_a_gang_of_unlike_pods_fills_two_nodes(sizes: tuple[int, ...]):
    roles = [(f"r{i}", 1, shape(cpu)) for i, cpu in enumerate(sizes)]
    snapshot = cluster([node("n0", 4), node("n1", 4)], [gang("g", *roles)])
    around = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
    report = run_session(snapshot, POLICY, around)
    assert len(report.plan.binds) == len(sizes)
    assert report.trace.violations == ()
