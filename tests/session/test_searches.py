"""A large budget begins with short searches, whose plans compete."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Incumbent, LevelStatus
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.session.session_clock import SessionClock
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess, Solved
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.decisions import Progress
    from optsched.session.session import Report
    from optsched.solver.cpsat.level_model import LevelModel
    from optsched.solver.cpsat.process import OnStep

POLICY = load_policy("volcano-default", Path.read_text)
# The pipeline starts the first gang; the last gang alone would fill both nodes.
SNAPSHOT = cluster(
    [node("n0", cpu=6), node("n1", cpu=6)],
    [gang("a", ("w", 2, shape(5))), gang("b", ("w", 1, shape(6))), gang("c", ("w", 2, shape(6)))],
)
GREEDY, BEST = 10_000, 12_000


class StoppedClock:
    """A clock that does not advance."""

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


@dataclass
class Solving(InProcess):
    """A solver that fails above `most_ms`, proves bounds if `proves`, and records budgets."""

    most_ms: int
    proves: bool = True
    late_s: float = 0.0
    budgets_ms: list[int] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)

    def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
        if limits.budget_ms is None:
            self.work_s.append(limits.deterministic)
        else:
            self.budgets_ms.append(limits.budget_ms)
            if limits.budget_ms > self.most_ms:
                return Solved((), "out of luck")
        late = on_step and (lambda step: on_step(replace(step, at_s=step.at_s + self.late_s)))
        solved = super().solve(model, replace(limits, budget_ms=None), late)
        if self.proves:
            return solved
        first = replace(solved.updates[0], bound=None, status=LevelStatus.FEASIBLE)
        return Solved((first,), "out of time")


@dataclass
class Listening:
    """A watch that records the progress of a session."""

    told: list[Progress] = field(default_factory=list)
    previews: list[Progress] = field(default_factory=list)
    incumbents: list[Incumbent] = field(default_factory=list)

    def progressed(self, progress: Progress) -> None:
        self.told.append(progress)

    def previewed(self, progress: Progress) -> None:
        self.previews.append(progress)

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        assert turn == 1
        self.incumbents.append(incumbent())


def decide(solver: Solving, budget_ms: int, watch: Listening | None = None) -> Report:
    limits = Limits(budget_ms=budget_ms, num_workers=1)
    return run_session(
        SNAPSHOT, POLICY, SessionContext(StoppedClock(), solver, limits=limits, watch=watch)
    )


def admission(report: Report) -> int:
    return report.plan.certificate.levels[0].value


def test_what_a_shorter_search_finds_competes() -> None:
    assert admission(decide(Solving(most_ms=0), 4000)) == GREEDY
    solver = Solving(most_ms=400, proves=False)
    assert admission(decide(solver, 4000)) == BEST
    assert solver.budgets_ms == [360, 3550]


def test_a_shorter_search_is_previewed_and_not_recorded() -> None:
    watch = Listening()
    decide(Solving(most_ms=400, proves=False, late_s=3.0), 4000, watch)
    values = [p.incumbent for p in watch.previews if p.level.startswith("admission")]
    assert values[0] == GREEDY
    assert values[-1] == BEST
    assert {p.turn for p in watch.previews} == {0}
    assert {p.turn for p in watch.told} == {1}
    assert BEST not in [p.incumbent for p in watch.told if p.level.startswith("admission")]


def test_a_shorter_search_that_ends_soon_is_not_previewed() -> None:
    watch = Listening()
    decide(Solving(most_ms=400, proves=False), 4000, watch)
    assert watch.told
    assert not watch.previews


def test_a_longer_search_follows_where_the_shorter_one_proves_nothing() -> None:
    solver = Solving(most_ms=4000, proves=False)
    decide(solver, 40_000)
    assert [round(budget_ms, -2) for budget_ms in solver.budgets_ms] == [400, 4000, 35_600]


def test_a_proof_of_a_shorter_search_ends_the_session_and_is_told() -> None:
    solver, watch = Solving(most_ms=400), Listening()
    report = decide(solver, 4000, watch)
    assert report.plan.certificate.is_proved
    assert solver.budgets_ms == [360]
    assert watch.told[-1].incumbent == report.plan.certificate.levels[-1].value
    assert watch.incumbents == list(report.trace.incumbents)
    assert set(watch.incumbents[0].binds) == {"ns/c-w-0", "ns/c-w-1"}


@pytest.mark.parametrize(
    ("budget_ms", "expected"),
    [(400, ()), (3999, ()), (4000, (400,)), (40_000, (400, 4000))],
)
def test_only_large_budgets_begin_with_shorter_ones(
    budget_ms: int, expected: tuple[int, ...]
) -> None:
    limits = Limits(budget_ms=budget_ms)
    shorter = SessionClock(StoppedClock(), limits, None).shorter_limits
    assert tuple(each.budget_ms for each in shorter) == expected


@pytest.mark.parametrize(
    ("work_s", "expected"), [(3.9, ()), (4.0, (0.4,)), (10.0, (1.0,)), (40.0, (0.4, 4.0))]
)
def test_without_a_clock_much_work_begins_with_less(
    work_s: float, expected: tuple[float, ...]
) -> None:
    shorter = SessionClock(None, Limits(None, work_s), None).shorter_limits
    assert tuple(each.deterministic for each in shorter) == pytest.approx(expected)


def test_without_a_clock_more_work_follows_where_less_did_not_prove_every_level() -> None:
    for proves, expected in ((True, [0.4]), (False, [0.4, 4.0])):
        solver = Solving(most_ms=10**6, proves=proves)
        limits = Limits(None, 4.0, num_workers=1)
        report = run_session(SNAPSHOT, POLICY, SessionContext(None, solver, limits=limits))
        assert admission(report) == BEST
        assert solver.work_s == pytest.approx(expected)


def test_what_is_resumed_has_been_through_the_shorter_searches() -> None:
    solver = Solving(most_ms=10**6)
    left = Incumbent(1, {"ns/c-w-0": "n0", "ns/c-w-1": "n1"}, ())
    limits = Limits(budget_ms=40_000, num_workers=1)
    around = SessionContext(StoppedClock(), solver, limits=limits, start=(left,))
    assert admission(run_session(SNAPSHOT, POLICY, around)) == BEST
    assert solver.budgets_ms == [39_950]
