from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from optsched.kube.scheduler.session_services import RETRY_S, SolverSupervisor
from tests.kube.fakes import FakeClock, running, waiting

if TYPE_CHECKING:
    from optsched.solver.cpsat.level_model import LevelModel, Limits
    from optsched.solver.cpsat.process import Solved


class FakeSolver:
    """A process that becomes ready or fails at each start, as scripted."""

    def __init__(self, *comes_up: bool) -> None:
        self._comes_up = list(comes_up)
        self.loads = threading.Event()
        self.loads.set()
        self.starts = 0
        self.is_closed = False
        self.pid: int | None = None

    def wait_until_ready(self) -> bool:
        self.starts += 1
        assert self.loads.wait(10)
        is_up = self._comes_up.pop(0) if self._comes_up else True
        self.pid = self.starts if is_up else None
        return is_up

    def solve(self, model: LevelModel, limits: Limits) -> Solved:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


async def until_ready(keeper: SolverSupervisor) -> None:
    while keeper.available is None:
        await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_it_is_not_used_before_it_is_ready() -> None:
    solver = FakeSolver()
    solver.loads.clear()
    keeper = SolverSupervisor(solver, waiting(FakeClock()))
    async with running(keeper.run()):
        assert keeper.available is None
        while not solver.starts:
            await asyncio.sleep(0.001)
        assert keeper.available is None
        solver.loads.set()
        await until_ready(keeper)
        assert keeper.available is solver
    assert solver.is_closed


@pytest.mark.asyncio
async def test_it_is_not_started_before_it_is_wanted() -> None:
    solver = FakeSolver()
    async with running(SolverSupervisor(solver, waiting(FakeClock())).run()):
        for _ in range(10):
            await asyncio.sleep(0)
    assert solver.starts == 0


@pytest.mark.asyncio
async def test_one_that_died_is_started_again() -> None:
    solver = FakeSolver()
    keeper = SolverSupervisor(solver, waiting(FakeClock()))
    async with running(keeper.run()):
        await until_ready(keeper)
        solver.pid = None
        assert keeper.available is None
        await until_ready(keeper)
    assert solver.starts == 2


@pytest.mark.asyncio
async def test_one_that_does_not_come_up_is_tried_again_after_a_while() -> None:
    slept: list[float] = []
    solver = FakeSolver(False, False)
    keeper = SolverSupervisor(solver, waiting(FakeClock(), slept))
    async with running(keeper.run()):
        await until_ready(keeper)
    assert solver.starts == 3
    assert slept == [RETRY_S, RETRY_S]
