"""Settings of a solve outside a live cluster: the solver of the policy, and the limits."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from optsched.policy.policy import SolverKind
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.policy.policy import Policy


DEFAULT_SECONDS: Final = 10.0
"""The default time limit of a solve in seconds of wall-clock time."""


ENGINES: Final = 2
"""Maximum number of engines of an offline solve; a long offline solve delays no pods."""


def limits_of(
    policy: Policy,
    seconds: float | None,
    *,
    deterministic: bool,
    seed: int = 0,
    gap: float | None = None,
) -> Limits:
    """Return the limits of a solve; if `gap` is set, the solver stops at this gap on each level."""
    work = policy.budgets.deterministic_s
    if deterministic:
        work = seconds or work
        return Limits(None, work, num_workers=1, seed=seed, gap=gap, num_engines=ENGINES)
    budget = DEFAULT_SECONDS if seconds is None else seconds
    work = max(budget, work)
    return Limits(int(budget * 1000), work, seed=seed, gap=gap, num_engines=ENGINES)


@contextmanager
def solver_of(
    policy: Policy, is_stopped: Callable[[], bool] | None = None
) -> Iterator[WorkerProcess | None]:
    """Yield a worker process that is ready to solve, or None if the policy has no solver.

    Once `is_stopped` returns True, the worker's solves stop with the best solution so far.
    """
    if policy.solver is SolverKind.NONE:
        yield None
        return
    worker = WorkerProcess(is_stopped)
    try:
        worker.wait_until_ready()
        yield worker
    finally:
        worker.close()
