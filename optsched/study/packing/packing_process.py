"""Pack in a worker process, so that a solver that hangs or crashes does not stop the command."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from optsched.study.packing.packing_problem import wrong_with_bins
from optsched.study.packing.solve_packing import (
    BOUND_MET,
    PackingResult,
    quick_packing,
    solve_packing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.solver.cpsat.process import WorkerProcess
    from optsched.study.packing.packing_problem import VectorPacking

NOT_READY: Final = "the solver process did not start"


@dataclass(frozen=True, slots=True)
class PackingWork:
    """A packing instance with search limits, to be sent to a worker process."""

    problem: VectorPacking
    seconds: float  # Time limit by `clock`, which must be a function of the standard library.
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
