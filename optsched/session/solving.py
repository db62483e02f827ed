"""The solver that a policy asks for, in a process of its own, for as long as it is needed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from optsched.engines.cpsat.solver import WorkerProcess
from optsched.policy.policy import SolverKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.policy.policy import Policy


@contextmanager
def solver_of(policy: Policy) -> Iterator[WorkerProcess | None]:
    """A worker that is ready to solve; None for policies without a solver."""
    if policy.solver is SolverKind.NONE:
        yield None
        return
    worker = WorkerProcess()
    try:
        worker.wait_until_ready()
        yield worker
    finally:
        worker.close()
