"""Vector bin packing: greedy bins, then columns, then integers, with a bound that is proved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.domain.packing import volume_bound, wrong_with_bins
from optsched.engines.packing.filling import Scores, fillings, packings, usual_scores
from optsched.engines.packing.items import Items, as_bin
from optsched.engines.packing.pricing import best_bins

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.domain.packing import Bin, VectorPacking
    from optsched.engines.cpsat.covering import CoverMaster
    from optsched.problem.arrays import F64, I64

BOUND_MET: Final = "the bound is met"
OUT_OF_TIME: Final = "out of time"

GREEDY: Final = "greedy"
CP_SAT: Final = "cp-sat"
DIVE: Final = "dive"
VOLUME: Final = "volume"
COLUMNS: Final = "columns"

_UNIT: Final = 1 << 30
"""A price of one bin, in whole numbers."""

_WAYS: Final = 32
_COLUMNS: Final = 40
_CLEAR: Final = 1e-6
_NOISE: Final = 0.3


@dataclass(frozen=True, slots=True)
class PackingResult:
    """A packing and how good it is.

    Attributes
    ----------
    bins
        Checked by `wrong_with_bins`.
    bound
        No packing has fewer bins.
    stopped
        Why it ended; empty while it goes on.
    found_by, bound_by
        Which step found these bins, and which proved that bound.

    """

    bins: tuple[Bin, ...]
    bound: int
    stopped: str
    found_by: str = ""
    bound_by: str = ""

    @property
    def is_proved(self) -> bool:
        """Whether nobody can do with fewer bins."""
        return len(self.bins) == self.bound


def solve_packing(
    problem: VectorPacking,
    clock: Callable[[], float],
    seconds: float = 60.0,
    seed: int = 0,
    report: Callable[[PackingResult], None] = lambda result: None,
) -> PackingResult:
    """Pack into as few bins as can be found in a time.

    Parameters
    ----------
    problem
        What to pack; every item fits into a bin.
    clock
        Seconds, such as `time.monotonic`.
    seconds
        When to end at the latest, but for the step that is under way.
    seed
        Of the disturbed scores.
    report
        Told of everything that is better than before, bins or bound.

    Raises
    ------
    ValueError
        An item does not fit into an empty bin.

    """
    for kind in problem.kinds:
        if any(s > c for s, c in zip(kind.sizes, problem.capacity, strict=True)):
            raise ValueError(f"{problem.name}: an item of {kind.sizes} fits into no empty bin")
    search = _Search(problem, clock, clock() + seconds, np.random.default_rng(seed), report)
    stopped = search.run()
    return search.result(stopped)


def quick_packing(problem: VectorPacking) -> PackingResult:
    """What there is before anything is searched.

    Raises
    ------
    ValueError
        As `solve_packing`.

    """
    return solve_packing(problem, lambda: 0.0, seconds=0.0)


class _Search:
    """What is known of one instance."""

    def __init__(
        self,
        problem: VectorPacking,
        clock: Callable[[], float],
        end: float,
        random: np.random.Generator,
        report: Callable[[PackingResult], None],
    ) -> None:
        self._problem, self._items = problem, Items.of(problem)
        self._clock, self._end, self._random = clock, end, random
        self._report = report
        self.bound, self._bound_by = volume_bound(problem), VOLUME
        self.best: list[I64] = []
        self._found_by = GREEDY

    def result(self, stopped: str) -> PackingResult:
        """The best so far, checked."""
        bins = tuple(as_bin(counts) for counts in self.best)
        wrong = wrong_with_bins(self._problem, bins)
        if wrong:
            raise AssertionError(f"{self._problem.name}: {wrong[0]}")
        return PackingResult(bins, self.bound, stopped, self._found_by, self._bound_by)

    def run(self) -> str:
        self._greedy(self._items)
        if self._is_done():
            return BOUND_MET
        from optsched.engines.cpsat.covering import CoverMaster

        master = CoverMaster(self._items.number)
        for counts in self.best:
            master.add(counts)
        self._grow(master)
        if self._is_done():
            return BOUND_MET
        noise = 0.0
        while not self._is_done() and not self._is_late():
            self._choose(master)
            if not self._is_done():
                self._dive(master, noise)
            noise = _NOISE
        return OUT_OF_TIME if not self._is_done() else BOUND_MET

    def _is_done(self) -> bool:
        return len(self.best) <= self.bound

    def _is_late(self) -> bool:
        return self._clock() >= self._end

    @property
    def _left(self) -> float:
        return max(self._end - self._clock(), 0.01)

    def _offer(self, bins: Sequence[I64], how: str) -> None:
        """Take bins that cover everything, without what is there too often."""
        left, trimmed = self._items.number.copy(), []
        for counts in bins:
            kept = np.minimum(counts, left)
            left -= kept
            if kept.any():
                trimmed.append(kept)
        is_better = not self.best or len(trimmed) < len(self.best)
        if is_better and not left.any() and self._items.fit(np.array(trimmed)).all():
            self.best, self._found_by = trimmed, how
            self._report(self.result(""))

    def _raise(self, bound: int, how: str) -> None:
        if bound > self.bound:
            self.bound, self._bound_by = bound, how
            self._report(self.result(""))

    def _greedy(self, items: Items) -> None:
        for bins in packings(items, usual_scores(items, _WAYS, self._random)):
            self._offer(bins, GREEDY)

    # --- columns ---------------------------------------------------------------------------------

    def _grow(self, master: CoverMaster) -> None:
        """Generate columns until the bound is as good as it gets."""
        while not self._is_late():
            solved = master.solve(self._left)
            if solved is None:
                return
            _, prices = solved
            if self._add_greedy(master, self._items, prices):
                continue
            whole = np.floor(prices * _UNIT).astype(np.int64)
            found = best_bins(self._items, whole, _UNIT, _COLUMNS, self._is_late)
            self._raise(-(-int(whole @ self._items.number) // found.most), COLUMNS)
            grown = sum([master.add(counts) for counts in found.bins])
            if not grown or self._is_done() or self.bound >= prices @ self._items.number - _CLEAR:
                return

    def _add_greedy(self, master: CoverMaster, items: Items, prices: F64) -> int:
        """Bins filled by price that are worth more than one."""
        ways = 2 * _WAYS
        weight = self._random.dirichlet(np.ones(len(items.capacity)), ways)
        weight[::2] = weight[::2] * 0.5 + 0.5 / len(items.capacity)
        size = weight @ items.relative.T
        worth = prices / np.maximum(size, 1e-3) ** self._random.uniform(0.3, 1.2, (ways, 1))
        worth = worth * self._random.uniform(0.8, 1.2, worth.shape)
        worth[:, prices <= 0] = -1
        found = fillings(items, Scores(weight * 1e-6, np.zeros(ways), worth))
        found = np.unique(found[found @ prices > 1 + _CLEAR], axis=0)
        return sum([master.add(counts) for counts in found])

    # --- integers --------------------------------------------------------------------------------

    def _choose(self, master: CoverMaster) -> None:
        """The fewest of the columns that there are."""
        from optsched.engines.cpsat.covering import fewest_columns

        found = fewest_columns(
            master.columns,
            self._items,
            (self.bound, len(self.best) - 1),
            self._left / 3,
        )
        if found is not None:
            self._offer(found, CP_SAT)

    def _dive(self, master: CoverMaster, noise: float) -> None:
        """Fix the most used columns one after the other, and price again for what is left."""
        self._descend(master, noise)
        master.need(self._items.number)

    def _descend(self, master: CoverMaster, noise: float) -> None:
        left, fixed = self._items.number.copy(), list[np.ndarray]()
        while left.any() and not self._is_late():
            items = Items(self._items.sizes, left, self._items.capacity)
            master.need(left)
            uses = self._priced_again(master, items)
            if uses is None:
                return
            counts = self._most_used(master, uses, left, noise)
            fixed.append(counts)
            left = left - counts
            if len(fixed) >= len(self.best):
                return
        self._offer(fixed, DIVE)

    def _priced_again(self, master: CoverMaster, items: Items) -> F64 | None:
        for _ in range(20):
            solved = master.solve(self._left)
            if solved is None or self._is_late():
                return None
            uses, prices = solved
            if not self._add_greedy(master, items, prices):
                break
        return uses

    def _most_used(self, master: CoverMaster, uses: F64, left: I64, noise: float) -> I64:
        """The most used column, cut to what is left; the fullest of equally used ones."""
        uses = np.minimum(uses, 1) * self._random.uniform(1 - noise, 1, len(uses))
        # Columns that came after the last solve have no uses yet.
        table = np.minimum(np.array(master.columns[: len(uses)]), left)
        uses = np.where(self._items.fit(table) & table.any(axis=1), uses, -1)
        fill = (table @ self._items.relative).sum(axis=1)
        return np.asarray(table[np.lexsort((-fill, -uses.round(6)))[0]], np.int64)
