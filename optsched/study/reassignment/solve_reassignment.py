"""Solve machine reassignment by simulated annealing and large neighbourhood search with CP-SAT.

Dual prices prove a lower bound on the cost. Simulated annealing by shifts and swaps saves most of
the cost, and a second annealing from a lower temperature saves more. CP-SAT then reassigns the
processes of a few machines jointly, while all other processes are fixed.

`reassignments` runs the stages of the search in parallel worker processes with different seeds.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from optsched.solver.cpsat.level_model import forward_messages
from optsched.study.reassignment.annealing import (
    COOLING,
    REHEATING,
    STYLES,
    Annealing,
    temperature_schedule,
)
from optsched.study.reassignment.assignment_state import AssignmentState, Instance
from optsched.study.reassignment.cost_bounds import better_prices, bound_of, usual_prices
from optsched.study.reassignment.reassignment_problem import cost_of, wrong_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optsched.problem.arrays import I64
    from optsched.solver.cpsat.process import WorkerProcess
    from optsched.study.reassignment.annealing import Style
    from optsched.study.reassignment.reassignment_problem import Reassignment

BOUND_MET: Final = "the bound is met"
OUT_OF_TIME: Final = "out of time"
NOT_READY: Final = "the solver process did not start"

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
"""Fraction of the first stage's effort that is spent on computing the lower bound."""

Report: TypeAlias = "Callable[[ReassignmentResult], None]"

_BOUND_STEPS: Final = 20
"""Number of dual price updates that count as one annealing step in a search with a step limit."""

_OFTEN: Final = 0.01
"""Minimum effort between two progress reports of annealing, as a fraction of the total effort."""

_NEIGHBOURHOOD_STEPS: Final = 20
"""Number of annealing steps that one neighbourhood counts as, in a search with a step limit."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of a reassignment search."""

    clock: Callable[[], float]
    seconds: float = 300.0  # Time limit, measured by `clock`; ignored if `steps` is set.
    # Random seed; with odd seeds, large processes are drawn more often.
    seed: int = 0
    # Maximum number of annealing steps; price updates and neighbourhoods also count as steps. With
    # a step limit, the search does not read a clock, and the same input always gives the same
    # assignment.
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    """An assignment, its cost, and a lower bound on the cost."""

    # Machine of each process; `wrong_with` finds no violated constraint.
    machine_of: tuple[int, ...]
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
    """Return the initial assignment with the lower bound of the ROADEF challenge; do not search.

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
        """Return the fraction of the effort (steps or time) that is used up, from 0 to 1."""
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
            from optsched.study.reassignment.neighbourhoods import Neighbourhoods

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
        def has_time() -> bool:
            self._steps += 1 / _BOUND_STEPS
            return self._spent_share() < until

        instance = self._instance
        # The target cost of the subgradient steps is an estimate of the optimum.
        aim = self.best.bound + 0.5 * (self.best.cost - self.best.bound)
        prices = better_prices(instance, aim, usual_prices(instance), has_time)
        bound = bound_of(instance, prices)
        if bound > self.best.bound:
            self.best = replace(self.best, bound=bound)
            self._report(self._build_result(""))

    def _anneal(self, start: I64, style: Style, limits: tuple[float, float], until: float) -> None:
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


_OTHER_LOTS: Final = 2**32
"""Seed difference between stages; it must be even, because a seed's parity selects the `Style`."""


@dataclass(frozen=True, slots=True)
class ReassignmentWork:
    """One stage of a search, to be sent to a worker process."""

    problem: Reassignment
    effort: Effort  # Limits of the search; the clock must be a function of the standard library.
    stage: Stage
    start: tuple[int, ...]  # Feasible assignment from which the stage starts.

    def run(self, report: Callable[[object], None]) -> str:
        """Run the stage in the worker process, as `Work` requires."""
        search = _Search(self.problem, self.effort, report, self.start)
        search.run(self.stage, 1.0)
        return search.result().stopped


def reassignments(
    workers: Sequence[WorkerProcess], problem: Reassignment, effort: Effort
) -> Iterator[ReassignmentResult]:
    """Yield verified assignments as they improve; the last result states why the search ended.

    Each worker process has its own seed, and each stage starts from the best result of all workers.
    The found assignment depends on the number of workers, even if the number of steps is limited.
    `effort` applies to each worker. The clock of `effort` must be a function of the standard
    library. Raises ValueError if `quick_reassignment` rejects the instance.
    """
    race = _Race(problem, effort, quick_reassignment(problem))
    yield race.best
    has_time = effort.steps != 0 and (effort.steps is not None or effort.seconds > 0)
    if race.best.is_proved or not has_time:
        yield race.result("")
        return
    if not all([worker.wait_until_ready() for worker in workers]):
        yield race.result(NOT_READY)
        return
    for turn in range(len(SCHEDULE)):
        if not race.best.is_proved:
            yield from race.run(workers, turn)
    yield race.result("")


class _Race:
    """A search by several worker processes, with the best result so far."""

    def __init__(self, problem: Reassignment, effort: Effort, best: ReassignmentResult) -> None:
        self._problem, self._effort, self.best = problem, effort, best
        self._began = effort.clock()
        self._history = [(0.0, best.cost)]
        self._stopped, self._running = OUT_OF_TIME, 0

    def result(self, stopped: str) -> ReassignmentResult:
        """Return the best result, with the reason why the search ended.

        If the result is proved optimal, the reason is `BOUND_MET`. If the result is not proved
        optimal, the reason is `stopped` or, if `stopped` is empty, the reason that the workers
        reported.
        """
        reason = BOUND_MET if self.best.is_proved else stopped or self._stopped
        return replace(self.best, stopped=reason, history=tuple(self._history))

    def run(self, workers: Sequence[WorkerProcess], turn: int) -> Iterator[ReassignmentResult]:
        """Run one stage in all worker processes; each stage and worker has a different seed."""
        stage, share = SCHEDULE[turn]
        effort, start = self._effort, self.best.machine_of
        if effort.steps is not None:
            effort = replace(effort, steps=max(int(effort.steps * share), 1))
        else:
            left = effort.seconds - (effort.clock() - self._began)
            effort = replace(effort, seconds=max(min(left, effort.seconds * share), 0.0))
        seed = len(workers) * effort.seed + turn * _OTHER_LOTS
        queue: SimpleQueue[Any] = SimpleQueue()
        threads = []
        for i, worker in enumerate(workers):
            own = replace(effort, seed=seed + i)
            work = ReassignmentWork(self._problem, own, stage, start)
            threads.append(threading.Thread(target=_listen, args=(worker, work, queue)))
        for thread in threads:
            thread.start()
        try:
            self._running = len(threads)
            while self._running:
                answer = queue.get()
                if isinstance(answer, str):
                    self._stopped = answer
                    self._running -= 1
                elif self._accept_improvement(answer):
                    yield replace(self.best, history=tuple(self._history))
        finally:
            # A listener thread ends when its worker process exits.
            for worker in workers if self._running else ():
                if worker.pid is not None:
                    os.kill(worker.pid, signal.SIGKILL)
            for thread in threads:
                thread.join()

    def _accept_improvement(self, new: ReassignmentResult) -> bool:
        """Check a worker's result; return whether it improves the assignment or the bound."""
        if wrong_with(self._problem, new.machine_of):
            return False
        best, cost = self.best, cost_of(self._problem, new.machine_of).total
        bound = max(best.bound, new.bound)
        # On equal cost, keep the lexicographically smaller assignment, so that the order of
        # messages does not affect the result.
        if (cost, new.machine_of) < (best.cost, best.machine_of):
            self._history.append((round(self._effort.clock() - self._began, 3), cost))
            self.best = replace(best, machine_of=new.machine_of, cost=cost, found_by=new.found_by)
        is_better = self.best is not best or bound > best.bound
        self.best = replace(self.best, bound=bound)
        return is_better


def _listen(worker: WorkerProcess, work: ReassignmentWork, queue: SimpleQueue[Any]) -> None:
    """Put a worker's results into the queue, followed by the reason why the worker stopped."""
    effort = work.effort
    is_timed = effort.steps is None and effort.clock is time.monotonic
    answers = worker.work(work, effort.seconds if is_timed else None)
    queue.put(forward_messages(answers, queue.put))
