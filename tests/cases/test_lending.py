"""Shared cases about idle GPUs next to jobs that wait for the deserved share of their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import optsched
from optsched.cluster.decisions import Evict
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from optsched.study.simulation.record import Start, Stop
from optsched.study.simulation.simulator import Options, Simulation
from tests.support.replays import times
from tests.support.shared import found, shared

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.cluster.decisions import Plan

EXACT = Limits(budget_ms=None, num_workers=1)


def decide(model: str) -> Plan:
    policy = load_policy(model, _text)
    snapshot = optsched.read(shared("cases", "decisions", "idle.yaml"))
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=EXACT))
    assert report.trace.violations == ()
    return report.plan


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def test_no_offline_case_is_left_out():
    assert {path.name for path in found("cases/offline/*")} <= {"idle_trace.yaml"}


def test_the_default_model_lends_the_idle_node():
    plan = decide("volcano-default")
    assert plan.binds == {"ml/exp-0": "n3"}
    assert not [a for a in plan.actions if isinstance(a, Evict)]
    [level] = [r for r in plan.certificate.levels if r.name.startswith("lent")]
    assert (level.value, level.bound, level.unit) == (8, 8, "nvidia.com/gpu")
    assert plan.certificate.kept_idle == ()


def test_the_compatible_model_says_which_rule_keeps_the_node_idle():
    plan = decide("volcano-compatible")
    assert plan.binds == {}
    [sentence] = plan.certificate.kept_idle
    assert sentence.startswith("proportion keeps 1 cpu, 8 nvidia.com/gpu idle")
    assert (
        "it fits into idle capacity, but proportion lends nothing" in plan.pending["ml/exp"].message
    )


@pytest.mark.parametrize(
    ("model", "started_s"), [("volcano-default", 600), ("volcano-compatible", 36_000)]
)
def test_a_short_job_waits_hours_only_where_nothing_is_lent(model: str, started_s: int):
    given = optsched.read_trace(str(shared("cases", "offline", "idle_trace.yaml")))
    events = Simulation(given.trace, load_policy(model, _text), Options()).run()
    starts = times(events, Start)
    assert starts["dev/exp"] == [pytest.approx(started_s, abs=2)]
    # The loan delays no other job, because the big job waits for the running job anyway.
    assert starts["train/big"] == [pytest.approx(36_000, abs=2)]
    assert not [event for event in events if isinstance(event, Stop)]
