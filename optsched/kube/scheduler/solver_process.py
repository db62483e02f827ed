"""The solver's process: started once it is wanted, again when it died, never waited for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from optsched.solver.cpsat.process import Solver

if TYPE_CHECKING:
    from optsched.kube.runtime.timing import Timing

RETRY_S: Final = 10.0

log = logging.getLogger(__name__)


class SolverProcess(Solver, Protocol):
    """A solver that has to load before it can solve."""

    def wait_until_ready(self) -> bool:
        """Start it if need be, and wait; False when it does not come up."""

    @property
    def pid(self) -> int | None:
        """Its process while there is one."""


class SolverSupervisor:
    """Keeps a solver ready; `run` has to be running.

    A process that is still loading would run over its time in its first solve and be killed for
    it, so it is not used before it has said that it is ready.
    """

    def __init__(self, solver: SolverProcess, timing: Timing) -> None:
        self._solver = solver
        self._timing = timing
        self._is_ready = False
        self._wanted = asyncio.Event()
        self._lost = asyncio.Event()

    def request_start(self) -> None:
        """Have it started."""
        self._wanted.set()

    @property
    def available(self) -> Solver | None:
        """The solver, if it can solve now; from now on it is wanted."""
        self.request_start()
        if self._is_ready and self._solver.pid is None:
            self._is_ready = False
            self._lost.set()
        return self._solver if self._is_ready else None

    async def run(self) -> None:
        """Have it ready until cancelled."""
        try:
            await self._wanted.wait()
            while True:
                self._lost.clear()
                self._is_ready = await asyncio.to_thread(self._solver.wait_until_ready)
                if self._is_ready:
                    log.info("solver ready, process %s", self._solver.pid)
                    await self._lost.wait()
                    log.warning("solver lost; until it is back the greedy pipeline decides")
                else:
                    log.error("solver does not start; tried again in %.0f s", RETRY_S)
                    await self._timing.sleep(RETRY_S)
        finally:
            self._is_ready = False
            self._solver.close()
