"""Reassignment in separate processes: reports are checked, and a crashed process does no harm."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.solver.cpsat.process import WorkerProcess
from optsched.study.reassignment.reassignment_problem import cost_of, wrong_with
from optsched.study.reassignment.solve_reassignment import (
    NOT_READY,
    OUT_OF_TIME,
    Effort,
    quick_reassignment,
    reassignments,
)
from tests.support.reassignment import some_reassignment

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBLEM = some_reassignment(6, 40, 8)
LARGE = some_reassignment(7, 120, 16)
"""Too large for one neighbourhood."""


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    found = [WorkerProcess(), WorkerProcess()]
    yield found
    for worker in found:
        worker.close()


def test_two_find_the_same_every_time_and_start_again_when_they_die(
    workers: list[WorkerProcess],
) -> None:
    effort = Effort(time.monotonic, steps=30, seed=1)
    *before, last = reassignments(workers, LARGE, effort)
    assert wrong_with(LARGE, last.machine_of) == []
    assert last.cost == cost_of(LARGE, last.machine_of).total
    assert last.cost < before[0].cost
    assert last.stopped == OUT_OF_TIME
    assert [r.cost for r in before] == sorted((r.cost for r in before), reverse=True)
    *_, again = reassignments(workers, LARGE, effort)
    assert replace(again, history=()) == replace(last, history=())
    going = reassignments(workers, LARGE, effort)
    next(going)
    reached = next(going)
    killed = [worker.pid for worker in workers]
    for pid in killed:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    *_, dead = going
    assert wrong_with(LARGE, dead.machine_of) == []
    assert (dead.stopped, dead.cost < reached.cost) == (OUT_OF_TIME, True)
    assert not {worker.pid for worker in workers} & set(killed)


def test_one_that_is_left_ends_its_workers(workers: list[WorkerProcess]) -> None:
    going = reassignments(workers, PROBLEM, Effort(time.monotonic, seconds=600))
    next(going)
    next(going)
    going.close()
    assert [worker.pid for worker in workers] == [None, None]


def test_without_workers_or_time(
    workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, first = reassignments(workers, PROBLEM, Effort(time.monotonic, seconds=0))
    monkeypatch.setattr(workers[0], "wait_until_ready", lambda: False)
    *_, last = reassignments(workers, PROBLEM, Effort(time.monotonic, seconds=60))
    assert (last.stopped, last.cost) == (NOT_READY, quick_reassignment(PROBLEM).cost)
    assert (first.stopped, first.machine_of) == (OUT_OF_TIME, PROBLEM.initial)
