"""Run the stages of a reassignment search in parallel worker processes with different seeds."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from optsched.solver.cpsat.level_model import forward_messages
from optsched.study.reassignment.reassignment_problem import cost_of, wrong_with
from optsched.study.reassignment.solve_reassignment import (
    BOUND_MET,
    OUT_OF_TIME,
    SCHEDULE,
    Effort,
    ReassignmentResult,
    quick_reassignment,
    search_reassignment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optsched.solver.cpsat.process import WorkerProcess
    from optsched.study.reassignment.reassignment_problem import Reassignment
    from optsched.study.reassignment.solve_reassignment import Stage

_OTHER_LOTS: Final = 2**32
"""Seed offset between stages, which must be even: the parity of a seed selects the `Style`."""

NOT_READY: Final = "the solver process did not start"


@dataclass(frozen=True, slots=True)
class ReassignmentWork:
    """One stage of a search, to be sent to a worker process."""

    problem: Reassignment
    effort: Effort  # Limits of the search; the clock must be a function of the standard library.
    stage: Stage
    start: tuple[int, ...]  # Feasible assignment from which the stage starts.

    def run(self, report: Callable[[object], None]) -> str:
        """Run the stage in the worker process, as `Work` requires."""
        found = search_reassignment(self.problem, self.effort, self.stage, self.start, report)
        return found.stopped


def reassignments(
    workers: Sequence[WorkerProcess], problem: Reassignment, effort: Effort
) -> Iterator[ReassignmentResult]:
    """Yield verified assignments as they improve; the last result states why the search ended.

    Each worker process has its own seed, and each stage starts from the best result of all workers.
    The result therefore depends on the number of workers, even if the number of steps is limited.
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

        The reason is `BOUND_MET` if the result is proved optimal. Otherwise the reason is `stopped`
        or, if `stopped` is empty, the reason that the workers reported.
        """
        reason = BOUND_MET if self.best.is_proved else stopped or self._stopped
        return replace(self.best, stopped=reason, history=tuple(self._history))

    def run(self, workers: Sequence[WorkerProcess], turn: int) -> Iterator[ReassignmentResult]:
        """Run one stage on all workers; each stage and each worker has a different seed."""
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
        # On equal cost, keep the smaller assignment, so that the order of messages does not affect
        # the result.
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
