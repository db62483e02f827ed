"""What a solve outside of a live cluster runs with: the policy's solver, and what it may spend."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from optsched.engines.cpsat.model import Limits
from optsched.engines.cpsat.solver import WorkerProcess
from optsched.policy.policy import SolverKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.policy.policy import Policy


DEFAULT_SECONDS: Final = 10.0
"""What a solve by the clock may take unless somebody says otherwise."""


def limits_of(policy: Policy, seconds: float | None, *, deterministic: bool) -> Limits:
    """What a solve may spend."""
    work = policy.budgets.deterministic_s
    if deterministic:
        return Limits(budget_ms=None, deterministic=seconds or work, num_workers=1)
    budget = DEFAULT_SECONDS if seconds is None else seconds
    return Limits(budget_ms=int(budget * 1000), deterministic=max(budget, work))


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
