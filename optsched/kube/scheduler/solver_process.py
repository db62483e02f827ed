"""Start the solver process on demand and restart a lost one, without blocking sessions."""

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
    """A solver in a separate process, which must finish loading before its first solve."""

    def wait_until_ready(self) -> bool:
        """Start the process if necessary; return whether it became ready."""

    @property
    def pid(self) -> int | None:
        """The id of the solver process, or None if there is none."""


class SolverSupervisor:
    """Keeps a solver process ready while `run` is active.

    A process that is still loading is not used, because it would exceed the time limit of its first
    solve and be killed.
    """

    def __init__(self, solver: SolverProcess, timing: Timing) -> None:
        self._solver = solver
        self._timing = timing
        self._is_ready = False
        self._is_requested = asyncio.Event()
        self._lost = asyncio.Event()

    def request_start(self) -> None:
        """Request the start of the solver process."""
        self._is_requested.set()

    @property
    def available(self) -> Solver | None:
        """The solver, or None if no process is ready; reading this property requests its start."""
        self.request_start()
        if self._is_ready and self._solver.pid is None:
            self._is_ready = False
            self._lost.set()
        return self._solver if self._is_ready else None

    async def run(self) -> None:
        """Keep the solver process ready until cancelled."""
        try:
            await self._is_requested.wait()
            while True:
                self._lost.clear()
                self._is_ready = await asyncio.to_thread(self._solver.wait_until_ready)
                if self._is_ready:
                    log.info("solver ready, process %s", self._solver.pid)
                    await self._lost.wait()
                    log.warning(
                        "solver lost: the greedy pipeline decides until the solver restarts"
                    )
                else:
                    log.error("solver does not start: retry in %.0f s", RETRY_S)
                    await self._timing.sleep(RETRY_S)
        finally:
            self._is_ready = False
            self._solver.close()
