"""Share one solver process among many tests, because each start loads OR-Tools for a second."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from optsched.session import solve_settings
from optsched.solver.cpsat.process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.solver.cpsat.level_model import LevelModel, Limits
    from optsched.solver.cpsat.process import OnStep, Solved


@contextmanager
def lasting_solver() -> Iterator[None]:
    """Let the commands in this process share one solver process, which outlives each command."""
    process = WorkerProcess()

    class Lasting:
        """A `WorkerProcess` with a shared process that `close` does not end."""

        def __init__(self, is_stopped: Callable[[], bool] | None = None) -> None:
            self._is_stopped = is_stopped

        def wait_until_ready(self) -> bool:
            return process.wait_until_ready()

        def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
            process._is_stopped = self._is_stopped
            return process.solve(model, limits, on_step)

        def close(self) -> None:
            """Do nothing, because the next command uses the process."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve_settings, "WorkerProcess", Lasting)
        try:
            yield
        finally:
            process.close()
