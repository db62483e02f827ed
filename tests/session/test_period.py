"""A session aims to end within its period: searches share the time after compilation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Evict
from optsched.policy.load import load_policy
from optsched.session import eviction_rounds
from optsched.session.session import SessionContext, run_session
from optsched.session.snapshot_equivalence import period_for
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.evictions import full_cluster
from tests.support.synthetic_clusters import MixedCluster

if TYPE_CHECKING:
    from optsched.session.session import Report
    from optsched.solver.cpsat.level_model import LevelModel
    from optsched.solver.cpsat.process import OnStep, Solved

SNAPSHOT = full_cluster(np.random.default_rng(2))
POLICY = load_policy("volcano-default", Path.read_text)
LIMITS = Limits(budget_ms=400, num_workers=1)


@dataclass
class SteppingClock:
    """A clock that advances by a fixed step at each reading."""

    step_s: float
    at_s: float = 0.0

    def now_ms(self) -> int:
        return int(self.at_s * 1000)

    def monotonic(self) -> float:
        self.at_s += self.step_s
        return self.at_s


@dataclass
class Recording(InProcess):
    """A solver without time limit that records its budgets."""

    budgets: list[int | None] = field(default_factory=list)

    def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
        self.budgets.append(limits.budget_ms)
        return super().solve(model, replace(limits, budget_ms=None), on_step)


def hold(step_s: float, period_ms: int | None) -> tuple[Report, list[int | None]]:
    solver = Recording()
    clock = SteppingClock(step_s)
    around = SessionContext(clock=clock, solver=solver, limits=LIMITS, period_ms=period_ms)
    return run_session(SNAPSHOT, POLICY, around), solver.budgets


def test_a_quick_session_searches_for_its_whole_budget() -> None:
    _, budgets = hold(0.0, 1000)
    assert budgets == hold(0.0, None)[1]


def test_a_slow_session_searches_for_less() -> None:
    _, free = hold(0.03, None)
    _, bound = hold(0.03, 1000)
    assert free[0] is not None
    assert bound[0] is not None
    assert free[0] // 2 <= bound[0] < free[0]


@pytest.mark.parametrize("step_s", [0.005, 0.02])
def test_a_late_session_still_evicts(step_s: float) -> None:
    """Searches keep half of the budget in a late session; otherwise no preemption would happen."""
    _, free = hold(step_s, None)
    report, budgets = hold(step_s, 1)
    assert free[0] is not None
    assert budgets[0] == free[0] // 2
    assert any(isinstance(action, Evict) for action in report.plan.actions)


def test_a_late_session_leaves_out_what_is_optional() -> None:
    _, free = hold(0.01, None)
    _, late = hold(0.01, 1)
    assert 0 < len(late) < len(free)


@pytest.mark.parametrize(
    ("period_s", "budget_ms", "expected"),
    [(1.0, 400, 1000), (5.0, 400, 5000), (0.1, 100, 250), (1.0, 1600, 4000), (1.0, None, 1000)],
)
def test_the_period_has_room_for_searches(
    period_s: float, budget_ms: int | None, expected: int
) -> None:
    assert period_for(period_s, Limits(budget_ms=budget_ms)) == expected


@pytest.mark.parametrize(("num_nodes", "expected"), [(4, 1), (30, 0)])
def test_victims_of_all_gangs_together_are_searched_where_time_is_enough(
    monkeypatch: pytest.MonkeyPatch, num_nodes: int, expected: int
) -> None:
    """A model that cannot even be presolved in time would cost the time of other searches."""
    asked: list[int] = []

    def find_nothing(*_: object) -> None:
        asked.append(1)

    monkeypatch.setattr(eviction_rounds, "find_victims_jointly", find_nothing)
    crowded = MixedCluster(num_nodes, 4 * num_nodes, 24, 2, 2, 1.0, seed=5).snapshot()
    limits = Limits(budget_ms=40, num_workers=1)
    around = SessionContext(SteppingClock(0.0), InProcess(), limits=limits)
    run_session(crowded, POLICY, around)
    assert len(asked) == expected
