"""Solve vector bin packing by greedy filling, column generation and integer programs.

`packings` runs the search in a worker process, so that a solver that hangs or crashes does not stop
the command.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.packing.packing_problem import (
    TOLERANCE,
    Items,
    RepeatedBins,
    as_bin,
    volume_bound,
    wrong_with_bins,
)
from optsched.study.packing.patterns import every_bin, full_bins, greedy_packings, usual_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from optsched.problem.arrays import F64, I64
    from optsched.solver.cpsat.process import WorkerProcess
    from optsched.study.packing.packing_problem import Bin, VectorPacking
    from optsched.study.packing.patterns import Copies

BOUND_MET: Final = "the bound is met"
OUT_OF_TIME: Final = "out of time"
NOT_READY: Final = "the solver process did not start"

GREEDY: Final = "greedy"
FULL_BINS: Final = "full bins"
CP_SAT: Final = "cp-sat"
DIVE: Final = "dive"
VOLUME: Final = "volume"
COLUMNS: Final = "columns"

_WAYS: Final = 32
_NOISE: Final = 0.3
_PART: Final = 0.04
_FEW_BINS: Final = 12
_MANY_BINS: Final = 10_000
_FINISH: Final = 4.0
_DIVES: Final = 6
_SHARE: Final = 0.15
_MOST_COLUMNS: Final = 8000
_FULL_ITEMS: Final = 3
_NEXT_TO_NOTHING: Final = 0.02


@dataclass(frozen=True, slots=True)
class PackingResult:
    """A packing and a lower bound, with the names of the methods that found them."""

    bins: Sequence[Bin]  # The bins of the packing; `wrong_with_bins` finds no violated constraint.
    bound: int  # Proved lower bound on the number of bins.
    stopped: str  # The reason why the search ended; empty while the search runs.
    # Names of the methods that found the packing and the bound.
    found_by: str = ""
    bound_by: str = ""

    @property
    def is_proved(self) -> bool:
        """Whether the number of bins is proved optimal."""
        return len(self.bins) == self.bound


def solve_packing(
    problem: VectorPacking,
    clock: Callable[[], float],
    seconds: float = 60.0,
    seed: int = 0,
    report: Callable[[PackingResult], None] = lambda result: None,
) -> PackingResult:
    """Search for a packing with the fewest bins for up to `seconds` seconds.

    Raises ValueError if an item does not fit into an empty bin.

    Parameters
    ----------
    problem
        The instance; every item must fit into an empty bin.
    clock
        Function that returns a time in seconds, for example `time.monotonic`.
    seconds
        Time limit; the last step may exceed it.
    seed
        Seed of the random numbers that perturb scores.
    report
        A function that is called with each better packing or bound.

    """
    for kind in problem.kinds:
        if any(s > c for s, c in zip(kind.sizes, problem.capacity, strict=True)):
            raise ValueError(
                f"{problem.name}: an item of {kind.sizes} does not fit into an empty bin"
            )
    search = _Search(problem, clock, clock() + seconds, np.random.default_rng(seed), report)
    stopped = search.run()
    return search.result(stopped)


def quick_packing(problem: VectorPacking) -> PackingResult:
    """Return the best greedy packing, without column generation or integer programs.

    Raises ValueError if an item does not fit into an empty bin.
    """
    return solve_packing(problem, lambda: 0.0, seconds=0.0)


class _Search:
    """A search for one instance, with the best packing and the best bound so far."""

    def __init__(
        self,
        problem: VectorPacking,
        clock: Callable[[], float],
        end: float,
        random: np.random.Generator,
        report: Callable[[PackingResult], None],
    ) -> None:
        self._problem, self._items = problem, Items.from_problem(problem)
        self._clock, self._end, self._random = clock, end, random
        self._report = report
        self.bound, self._bound_by = volume_bound(problem), VOLUME
        self.best: list[Copies] = []
        self._found_by = GREEDY

    def result(self, stopped: str) -> PackingResult:
        """Return the best packing so far, after an independent check."""
        bins = RepeatedBins(tuple((as_bin(counts), copies) for counts, copies in self.best))
        wrong = wrong_with_bins(self._problem, bins)
        if wrong:
            raise AssertionError(f"{self._problem.name}: {wrong[0]}")
        return PackingResult(bins, self.bound, stopped, self._found_by, self._bound_by)

    def run(self) -> str:
        """Search until the packing is optimal or the time is up; return why the search ended."""
        for counts in greedy_packings(self._items, usual_scores(self._items, _WAYS, self._random)):
            self._offer(counts, GREEDY)
        for step in (self._pack_full_bins, self._generate_columns, self._search_columns):
            if self._is_optimal() or self._is_late():
                break
            step()
        return BOUND_MET if self._is_optimal() else OUT_OF_TIME

    def _is_optimal(self) -> bool:
        return self._num_best <= self.bound

    @property
    def _num_best(self) -> int:
        return _count_bins(self.best)

    def _is_late(self) -> bool:
        return self._clock() >= self._end

    @property
    def _remaining_s(self) -> float:
        return max(self._end - self._clock(), 0.01)

    def _offer(self, bins: Iterable[Copies], how: str) -> None:
        """Remove surplus items from a packing; store the packing if it has the fewest bins so far.

        A packing that lacks items or exceeds the capacity is discarded.
        """
        left = self._items.number.copy()
        trimmed: list[Copies] = []
        for counts, copies in bins:
            missing = copies
            while missing and (kept := np.minimum(counts, left)).any():
                some = kept > 0
                number = min(missing, int((left[some] // kept[some]).min()))
                left -= number * kept
                trimmed.append((kept, number))
                missing -= number
        is_better = not self.best or _count_bins(trimmed) < self._num_best
        if (
            is_better
            and not left.any()
            and self._items.fit(np.array([counts for counts, _ in trimmed])).all()
        ):
            self.best, self._found_by = trimmed, how
            self._report(self.result(""))

    # --- nearly full bins ------------------------------------------------------------------------

    def _pack_full_bins(self) -> None:
        """If a packing that meets the bound has almost no waste, search among nearly full bins."""
        waste = self.bound * self._items.capacity - self._items.total
        if (waste > _NEXT_TO_NOTHING * self._items.capacity).any() or (waste < 0).any():
            return
        from optsched.study.packing.column_generation import fewest_columns

        pool = full_bins(self._items, waste, _FULL_ITEMS, self._is_late)
        if pool is None or len(pool.inside) > _MOST_COLUMNS:
            return
        is_exact = self._items.is_rigid | (waste == 0).all()
        bounds, seconds = (self.bound, self.bound), self._remaining_s / 2
        found = fewest_columns(
            pool.all_counts(), self._items.number, is_exact, bounds, seconds, seconds
        )
        if found is not None:
            self._offer(found, FULL_BINS)

    # --- column generation -----------------------------------------------------------------------

    def _generate_columns(self) -> None:
        from optsched.study.packing.column_generation import Columns

        pool = every_bin(self._items, self._is_late)
        self._columns = Columns(self._items, pool, self._random, lambda: self._end - self._clock())
        for counts, _ in self.best:
            self._columns.master.add(counts)
        for bound in self._columns.bounds():
            if bound > self.bound:
                self.bound, self._bound_by = bound, COLUMNS
                self._report(self.result(""))
            if self._is_optimal():
                return

    # --- integer solutions -----------------------------------------------------------------------

    def _search_columns(self) -> None:
        """Alternate between diving and integer programs over the columns until the time limit."""
        noise = 0.0
        while not self._is_optimal() and not self._is_late():
            for _ in range(_DIVES):
                self._dive(noise)
                noise = _NOISE
                if self._is_optimal() or self._is_late():
                    return
            columns = self._columns
            work = self._remaining_s * _SHARE
            self._choose(self._items.number, [], columns.prices, columns.value, work)

    def _choose(
        self, left: I64, fixed: list[Copies], prices: F64, value: float, work: float
    ) -> None:
        """Pack the remaining items `left` into as few additional bins as possible."""
        from optsched.study.packing.column_generation import fewest_columns

        num_fixed = _count_bins(fixed)
        most = self._num_best - 1 - num_fixed
        least = max(int(np.ceil(value - TOLERANCE)), self.bound - num_fixed)
        for target in sorted({least, most}):
            columns = self._columns.promising(left, prices, target - value, _MOST_COLUMNS)
            if target > most or not columns or self._is_late():
                return
            found = fewest_columns(
                columns, left, self._items.is_rigid, (least, target), work, self._remaining_s
            )
            if found is not None:
                self._offer([*fixed, *found], CP_SAT)
                return

    def _dive(self, noise: float) -> None:
        """Fix the most used columns and re-solve the linear program, until all items are packed."""
        left = self._items.number.copy()
        fixed: list[Copies] = []
        while left.any() and not self._is_late():
            solved = self._columns.solved_for(left)
            if solved is None:
                break
            uses, prices, value = solved
            if _count_bins(fixed) + np.ceil(value - TOLERANCE) >= self._num_best:
                break
            if value <= _FEW_BINS and fixed:
                self._choose(left, fixed, prices, value, _FINISH)
                break
            chosen = self._columns.round_down_uses(uses, left) if value > _MANY_BINS else []
            if not chosen:
                each = self._columns.most_used_columns(uses, left, noise, _PART)
                chosen = [(counts, 1) for counts in each]
            if not chosen:
                break
            fixed += chosen
            for counts, copies in chosen:
                left = left - copies * counts
        if not left.any():
            self._offer(fixed, DIVE)
        self._columns.master.set_demand(self._items.number)


def _count_bins(bins: Iterable[Copies]) -> int:
    return sum(copies for _, copies in bins)


@dataclass(frozen=True, slots=True)
class PackingWork:
    """A packing instance with search limits, to be sent to a worker process."""

    problem: VectorPacking
    # Time limit in seconds, measured by `clock`, which must be a standard library function.
    seconds: float
    seed: int = 0
    clock: Callable[[], float] = time.monotonic

    def run(self, report: Callable[[object], None]) -> str:
        """Run the search in the worker process, as `Work` requires."""
        return solve_packing(self.problem, self.clock, self.seconds, self.seed, report).stopped


def packings(worker: WorkerProcess, work: PackingWork) -> Iterator[PackingResult]:
    """Yield verified packings as they improve; the last result states why the search ended.

    Raises ValueError if an item does not fit into an empty bin.
    """
    best = quick_packing(work.problem)
    if best.is_proved or work.seconds <= 0:
        yield best
        return
    best = replace(best, stopped="")
    yield best
    if not worker.wait_until_ready():
        yield replace(best, stopped=NOT_READY)
        return
    answers = worker.work(work, work.seconds)
    while True:
        try:
            new = next(answers)
        except StopIteration as end:
            stopped = BOUND_MET if best.is_proved else str(end.value)
            break
        if not wrong_with_bins(work.problem, new.bins):
            if len(new.bins) < len(best.bins):
                best = replace(best, bins=new.bins, found_by=new.found_by)
            if new.bound > best.bound:
                best = replace(best, bound=new.bound, bound_by=new.bound_by)
        yield best
    yield replace(best, stopped=stopped)
