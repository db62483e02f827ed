"""Packing in a separate process: a process that hangs or crashes leaves the incumbent."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from optsched.solver.cpsat.process import DIED, OVER_TIME, WorkerProcess
from optsched.study.packing.packing_problem import ItemKind, VectorPacking, wrong_with_bins
from optsched.study.packing.solve_packing import (
    BOUND_MET,
    NOT_READY,
    PackingResult,
    PackingWork,
    packings,
    quick_packing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Two items of 4 and one of 3 fill a bin, but the greedy heuristics start with two of 5.
PROBLEM = VectorPacking(
    "x", (11, 30), (ItemKind((5, 9), 2), ItemKind((4, 8), 4), ItemKind((3, 15), 2))
)


UNPROVED = VectorPacking("x", (10,), (ItemKind((6,), 3),))


@dataclass(frozen=True, slots=True)
class Hangs(PackingWork):
    """A process that reports a wrong solution and never ends."""

    def run(self, report: Callable[[object], None]) -> str:
        report(PackingResult(((),), 99, "", "nobody", "nobody"))
        threading.Event().wait()
        return "never"


@dataclass(frozen=True, slots=True)
class Dies(PackingWork):
    """A process that aborts."""

    def run(self, report: Callable[[object], None]) -> str:
        os.abort()


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess()
    yield process
    process.close()


def test_it_is_solved_and_checked(worker: WorkerProcess) -> None:
    results = list(packings(worker, PackingWork(PROBLEM, 20)))
    assert all(wrong_with_bins(PROBLEM, result.bins) == [] for result in results)
    assert results[-1].stopped == BOUND_MET
    assert results[-1].is_proved


@pytest.mark.parametrize(
    ("work", "stopped"), [(Hangs(UNPROVED, 0.2), OVER_TIME), (Dies(UNPROVED, 60), DIED)]
)
def test_what_was_found_stays(worker: WorkerProcess, work: PackingWork, stopped: str) -> None:
    *_, last = packings(worker, work)
    assert last.stopped.startswith(stopped)
    assert (last.bins, last.bound) == (quick_packing(UNPROVED).bins, 2)
    *_, again = packings(worker, PackingWork(UNPROVED, 20))
    assert again.is_proved


def test_a_process_that_does_not_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess()
    monkeypatch.setattr(worker, "wait_until_ready", lambda: False)
    *_, last = packings(worker, PackingWork(UNPROVED, 20))
    assert (last.stopped, len(last.bins)) == (NOT_READY, 3)
