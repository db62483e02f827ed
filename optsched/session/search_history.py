"""The history of a session's searches: reported progress, and incumbents to resume from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Incumbent, LevelResult, LevelStatus, Progress, changes_level
from optsched.plugins.accounting import Outcome
from optsched.problem.arrays import UNPLACED
from optsched.solver.portfolio import NO_SOLVER, evaluate_greedy, is_no_worse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.plugins.extension_points import AnyLevel
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.session.ports import Watch
    from optsched.solver.portfolio import LevelProgress, Solution

RESUMED = "resumed"
"""Engine name of decisions that come from an earlier solve."""

PROVED_BEFORE = "proved before"
"""Reason why a search ended immediately: an earlier solve proved its first solution optimal."""


class History:
    """The progress and incumbents of all searches of a session, reported as soon as they are found.

    Parameters
    ----------
    watch
        Receives progress and incumbents, or None to record nothing.
    elapsed
        Returns the seconds since the session began; None if the session has no clock.

    """

    def __init__(self, watch: Watch | None, elapsed: Callable[[], float] | None) -> None:
        self._watch = watch
        self._elapsed = elapsed
        self.progress: list[Progress] = []
        self.incumbents: list[Incumbent] = []
        self.turn = 0

    def begin(
        self, problem: Problem, levels: Sequence[AnyLevel], start: Solution
    ) -> Callable[[LevelProgress], None] | None:
        """Record that a search starts from a solution; return a callback for progress.

        Returns None without a `Watch`.
        """
        self.turn += 1
        if self._watch is None:
            return None
        search = _Search(self, problem, levels, start)
        for result in start.results:
            search.report_level(result.name, self.elapsed_s, result.value, result.bound)
        self.improved(search.incumbent(start.decisions))
        return search.record_progress

    def end(self, problem: Problem, solution: Solution) -> None:
        """Record the end of a search, and the solution that it returned."""
        if self._watch is None:
            return
        for result in solution.results:
            self.note(Progress(result.name, self.elapsed_s, result.value, result.bound, self.turn))
        binds = binds_of(problem, solution.decisions)
        self.incumbents.append(Incumbent(self.turn, binds, solution.results))

    def adopt(self, other: History) -> None:
        """Merge the history of another search, and report its progress and incumbents."""
        for progress in other.progress:
            self.note(progress)
        for incumbent in other.incumbents:
            self.turn = incumbent.turn
            self.improved(partial(replace, incumbent))
        self.incumbents = other.incumbents

    @property
    def elapsed_s(self) -> float:
        """Seconds since the session began; if no clock is used, the time of the last progress."""
        if self._elapsed is not None:
            return round(self._elapsed(), 6)
        return self.progress[-1].at_s if self.progress else 0.0

    def note(self, progress: Progress) -> None:
        """Record and report progress that changes a level's value or bound."""
        if not changes_level(progress, self.progress):
            return
        self.progress.append(progress)
        if self._watch is not None:
            self._watch.progressed(progress)

    def improved(self, incumbent: Callable[[], Incumbent]) -> None:
        """Report the new incumbent of the current search to the `Watch`, if there is one."""
        if self._watch is not None:
            self._watch.improved(self.turn, incumbent)


class Listener:
    """A `Watch` that forwards progress to a function and ignores solutions."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report

    def progressed(self, progress: Progress) -> None:
        """See `Watch`."""
        self._report(progress)

    def previewed(self, progress: Progress) -> None:
        """See `Watch`."""
        self._report(progress)

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        """See `Watch`; the solution is ignored."""


class _Search:
    """One search: its levels, and their latest bounds."""

    def __init__(
        self, history: History, problem: Problem, levels: Sequence[AnyLevel], start: Solution
    ) -> None:
        self._history, self._problem, self._levels = history, problem, levels
        self._begun_s = history.elapsed_s
        self._bounds: list[int | None] = list(start.proved or (None,) * len(levels))
        self._turn = history.turn

    def record_progress(self, progress: LevelProgress) -> None:
        self._bounds[progress.number] = progress.bound
        if progress.decisions is not None:
            # The bounds of less important levels hold only as long as the value of the improved
            # level does not change.
            below = len(self._bounds) - progress.number - 1
            self._bounds[progress.number + 1 :] = [None] * below
        self.report_level(
            progress.name, round(self._begun_s + progress.at_s, 6), progress.value, progress.bound
        )
        if progress.decisions is not None:
            self._history.improved(self._lazily(progress.decisions))

    def report_level(self, name: str, at_s: float, value: int | None, bound: int | None) -> None:
        self._history.note(Progress(name, at_s, value, bound, self._turn))

    def incumbent(self, decisions: Decisions) -> Callable[[], Incumbent]:
        """Return a function that computes the incumbent from which a search could resume."""
        return self._lazily(lambda: decisions)

    def _lazily(self, decide: Callable[[], Decisions]) -> Callable[[], Incumbent]:
        bounds = tuple(self._bounds)

        def compute_incumbent() -> Incumbent:
            decisions = decide()
            outcome = Outcome(self._problem, decisions)
            pairs = zip(self._levels, bounds, strict=True)
            results = tuple(_result(level, level.value(outcome), bound) for level, bound in pairs)
            return Incumbent(self._turn, binds_of(self._problem, decisions), results)

        return compute_incumbent


def _result(level: AnyLevel, value: int, bound: int | None) -> LevelResult:
    status = LevelStatus.OPTIMAL if value == bound else LevelStatus.FEASIBLE
    return LevelResult(level.name, level.unit, level.sense, value, bound, status)


def binds_of(problem: Problem, decisions: Decisions) -> dict[str, str]:
    """Return the node name of each placed task, keyed by task and sorted by key."""
    nodes, tasks = problem.snapshot.nodes, problem.tasks
    placed = np.flatnonzero(decisions.node_of >= 0).tolist()
    node_of = decisions.node_of.tolist()
    return dict(sorted((tasks[t].key, nodes[node_of[t]].name) for t in placed))


def resume_incumbent(
    problem: Problem, levels: Sequence[AnyLevel], incumbent: Incumbent, greedy: Solution
) -> Solution | None:
    """Return an incumbent's solution, or None if it no longer applies or is worse than `greedy`.

    The solution is not verified yet.
    """
    index_of = {n.name: i for i, n in enumerate(problem.snapshot.nodes)}
    task_of = {t.key: i for i, t in enumerate(problem.tasks)}
    binds = incumbent.binds
    if not (binds.keys() <= task_of.keys() and set(binds.values()) <= index_of.keys()):
        return None
    node_of = np.full(problem.num_tasks, UNPLACED, np.int64)
    for key, name in binds.items():
        node_of[task_of[key]] = index_of[name]
    if ((node_of >= 0) & (greedy.decisions.nominated >= 0)).any():
        return None
    decisions = replace(greedy.decisions, node_of=node_of)
    solution = evaluate_greedy(problem, decisions, levels, NO_SOLVER)
    values = [r.value for r in solution.results]
    if not is_no_worse(levels, values, [r.value for r in greedy.results]):
        return None
    earlier = [(r.name, r.value) for r in incumbent.levels]
    is_same = earlier == [(r.name, r.value) for r in solution.results]
    solution = replace(solution, engine=RESUMED, final=greedy.final)
    if not is_same:
        return solution
    bounds = tuple(r.bound for r in incumbent.levels)
    pairs = zip(levels, solution.results, bounds, strict=True)
    results = tuple(
        r if bound is None else _result(level, r.value, bound) for level, r, bound in pairs
    )
    return replace(solution, results=results, proved=bounds)
