"""Solve machine reassignment by simulated annealing and large neighbourhood search with CP-SAT.

Dual prices prove a lower bound. Simulated annealing by shifts and swaps saves most of the cost, and
a second annealing from a lower temperature saves more. CP-SAT then reassigns the processes of a few
machines jointly, while all other processes are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from optsched.study.reassignment.annealing import (
    COOLING,
    REHEATING,
    STYLES,
    Annealing,
    temperature_schedule,
)
from optsched.study.reassignment.assignment_state import AssignmentState, Instance
from optsched.study.reassignment.cost_bounds import better_prices, bound_of, usual_prices
from optsched.study.reassignment.neighbourhoods import Neighbourhoods
from optsched.study.reassignment.reassignment_problem import cost_of, wrong_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import I64
    from optsched.study.reassignment.annealing import Style
    from optsched.study.reassignment.reassignment_problem import Reassignment

BOUND_MET: Final = "the bound is met"
OUT_OF_TIME: Final = "out of time"

START: Final = "start"
ANNEALING: Final = "annealing"
CP_SAT: Final = "cp-sat"


class Stage(Enum):
    """Stages of a reassignment search.

    COOL finds a lower bound, then anneals the initial assignment. WARM anneals the best assignment
    again from a moderate temperature. IMPROVE solves neighbourhoods of the best assignment with
    CP-SAT.
    """

    COOL = "cool"
    WARM = "warm"
    IMPROVE = "improve"


SCHEDULE: Final = (
    (Stage.COOL, 0.5),
    (Stage.WARM, 0.12),
    (Stage.IMPROVE, 0.19),
    (Stage.IMPROVE, 0.19),
)
"""The stages of a search in order, each with the fraction of the effort that it may use."""

_BOUND_SHARE: Final = 0.1
"""Fraction of the first stage's effort that is spent on the lower bound."""

Report: TypeAlias = "Callable[[ReassignmentResult], None]"

_BOUND_STEPS: Final = 20
"""Number of price updates that count as one annealing step, if steps are limited."""

_OFTEN: Final = 0.01
"""Minimum effort between progress reports of annealing, as a fraction of the total effort."""

_NEIGHBOURHOOD_STEPS: Final = 20
"""Number of annealing steps for which one neighbourhood counts, if steps are limited."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of a reassignment search."""

    clock: Callable[[], float]
    seconds: float = 300.0  # Time limit by `clock`; ignored if `steps` is set.
    # Random seed; with odd seeds, large processes are drawn more often.
    seed: int = 0
    # Limit in annealing steps; other work counts as a number of steps. With a step limit, the
    # search does not read a clock, and the same input always gives the same assignment.
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    """An assignment, its cost, and a lower bound on the cost."""

    machine_of: tuple[int, ...]  # Machine of each process; `wrong_with` finds no error in it.
    cost: int  # Cost of the assignment.
    bound: int  # Lower bound on the cost of every assignment.
    stopped: str  # The reason why the search ended; empty while the search runs.
    # Method that found the assignment: `start`, `annealing` or `cp-sat`.
    found_by: str = START
    history: tuple[tuple[float, int], ...] = ()  # (seconds, cost) of each improvement.

    @property
    def is_proved(self) -> bool:
        """Whether the assignment is proved optimal."""
        return self.cost <= self.bound

    @property
    def gap(self) -> float:
        """Relative gap: the difference between cost and bound, as a fraction of the cost."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0


def quick_reassignment(problem: Reassignment) -> ReassignmentResult:
    """Return the initial assignment with the challenge's lower bound; no search is run.

    Raises ValueError if the initial assignment is infeasible, or if costs are too large to be
    summed exactly.
    """
    instance = Instance.from_problem(problem)
    found = _checked(problem, problem.initial, bound_of(instance, usual_prices(instance)))
    return replace(found, history=((0.0, found.cost),))


def solve_reassignment(
    problem: Reassignment, effort: Effort, report: Report = lambda result: None
) -> ReassignmentResult:
    """Return the cheapest feasible assignment that the search finds.

    The search starts from the initial assignment, which must be feasible. `report` is called with
    each better assignment or bound. Raises ValueError if `quick_reassignment` rejects the instance.
    """
    search = _Search(problem, effort, report, problem.initial)
    until = 0.0
    for stage, share in SCHEDULE:
        until += share
        search.run(stage, until)
    return search.result()


def search_reassignment(
    problem: Reassignment,
    effort: Effort,
    stage: Stage,
    start: tuple[int, ...],
    report: Report = lambda result: None,
) -> ReassignmentResult:
    """Run one stage from the feasible assignment `start`, and return its result.

    The stage may use up the entire `effort`.
    """
    search = _Search(problem, effort, report, start)
    search.run(stage, 1.0)
    return search.result()


def _checked(problem: Reassignment, machine_of: tuple[int, ...], bound: int) -> ReassignmentResult:
    wrong = wrong_with(problem, machine_of)
    if wrong:
        raise ValueError(f"this assignment is infeasible: {wrong[0]}")
    return ReassignmentResult(machine_of, cost_of(problem, machine_of).total, bound, "")


class _Search:
    """A search for one instance, with the best assignment and the best bound so far.

    With a step limit, `_steps` counts the annealing steps so far, and the search reads no clock.
    """

    def __init__(
        self, problem: Reassignment, effort: Effort, report: Report, start: tuple[int, ...]
    ) -> None:
        self._problem, self._effort, self._report = problem, effort, report
        self._steps, self._began = 0.0, 0.0 if effort.steps is not None else effort.clock()
        self._random = np.random.default_rng(effort.seed)
        self._instance = Instance.from_problem(problem)
        usual = bound_of(self._instance, usual_prices(self._instance))
        self.best = _checked(problem, start, usual)
        self._history = [(0.0, self.best.cost)]

    def result(self) -> ReassignmentResult:
        """Return the best result and the reason why the search ended."""
        return self._build_result(BOUND_MET if self.best.is_proved else OUT_OF_TIME)

    def _build_result(self, stopped: str) -> ReassignmentResult:
        return replace(self.best, stopped=stopped, history=tuple(self._history))

    def _offer(self, machine_of: I64, found_by: str) -> None:
        """Accept an assignment that costs less than the best one, after an independent check."""
        found = _checked(self._problem, tuple(machine_of.tolist()), self.best.bound)
        if found.cost < self.best.cost:
            self.best = replace(found, found_by=found_by)
            self._history.append((round(self._spent_seconds(), 3), found.cost))
            self._report(self._build_result(""))

    def _spent_seconds(self) -> float:
        """Return the elapsed time in seconds, or 0 if steps are limited."""
        return 0.0 if self._effort.steps is not None else self._effort.clock() - self._began

    def _spent_share(self) -> float:
        """Return the fraction of the effort that is used up, from 0 to 1."""
        effort = self._effort
        if effort.steps is not None:
            return self._steps / max(effort.steps, 1)
        return self._spent_seconds() / effort.seconds if effort.seconds > 0 else 1.0

    def _has_time(self, until: float) -> bool:
        return not self.best.is_proved and self._spent_share() < until

    def run(self, stage: Stage, until: float) -> None:
        """Run a stage until the fraction `until` of the effort is used up."""
        instance, style = self._instance, STYLES[self._effort.seed % len(STYLES)]
        if stage is Stage.COOL:
            self._improve_bound(until * _BOUND_SHARE)
            self._anneal(instance.initial, style, COOLING, until)
        elif stage is Stage.WARM:
            self._anneal(np.array(self.best.machine_of), style, REHEATING, until)
        else:
            start = np.array(self.best.machine_of, np.int64)
            neighbourhoods = Neighbourhoods(self._instance, start, self._random)
            while self._has_time(until):
                self._steps += _NEIGHBOURHOOD_STEPS
                left_s = max(self._effort.seconds - self._spent_seconds(), 0.01)
                if neighbourhoods.step(left_s if self._effort.steps is None else None):
                    self._offer(neighbourhoods.machine_of, CP_SAT)
                if neighbourhoods.is_best:
                    self.best = replace(self.best, bound=self.best.cost)
                    self._report(self._build_result(""))

    def _improve_bound(self, until: float) -> None:
        """Improve the lower bound until the fraction `until` of the effort is used up."""

        def has_time() -> bool:
            self._steps += 1 / _BOUND_STEPS
            return self._spent_share() < until

        instance = self._instance
        # The subgradient steps may aim at any number not far above the optimum.
        aim = self.best.bound + 0.5 * (self.best.cost - self.best.bound)
        prices = better_prices(instance, aim, usual_prices(instance), has_time)
        bound = bound_of(instance, prices)
        if bound > self.best.bound:
            self.best = replace(self.best, bound=bound)
            self._report(self._build_result(""))

    def _anneal(self, start: I64, style: Style, limits: tuple[float, float], until: float) -> None:
        """Anneal the assignment `start` until the fraction `until` of the effort is used up."""
        temperature = temperature_schedule(self._instance, limits)
        annealing = Annealing(AssignmentState(self._instance, start), style, self._random)
        begins = reported = self._spent_share()
        while self._has_time(until):
            share = self._spent_share()
            annealing.step(temperature((share - begins) / (until - begins)))
            self._steps += 1
            if share - reported > _OFTEN or annealing.best_cost <= self.best.bound:
                reported = share
                self._offer(annealing.best, ANNEALING)
        self._offer(annealing.best, ANNEALING)
