"""The current policy, reloaded when its file changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from optsched.policy.load import Rejected, Reloaded
from optsched.policy.policy import with_solver

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.policy.load import PolicyWatch
    from optsched.policy.policy import Policy, SolverKind
    from optsched.session.ports import Clock

READ_S: Final = 1.0
"""Seconds between two reads of the policy file; shorter if the scheduling period is shorter."""

log = logging.getLogger(__name__)


class PolicyFile:
    """The last valid policy, with the command-line overrides applied.

    `on_verdict` is called with the mistakes in a changed policy file, or with an empty string if
    the file is valid.
    """

    def __init__(
        self,
        watch: PolicyWatch,
        clock: Clock,
        on_verdict: Callable[[str], None],
        *,
        solver: SolverKind | None = None,
        period_s: float | None = None,
    ) -> None:
        self._watch = watch
        self._clock = clock
        self._on_verdict = on_verdict
        self._solver = solver
        self._period_s = period_s
        self._read_s = clock.monotonic()
        self._policy = with_solver(watch.policy, solver)
        self._log_policy()

    @property
    def period_s(self) -> float:
        """Seconds from the start of a session to the earliest start of the next session."""
        if self._period_s is not None:
            return self._period_s
        return self._policy.budgets.period_ms / 1000

    def current(self) -> Policy:
        """Return the current policy; the same object until the policy file changes."""
        now_s = self._clock.monotonic()
        if now_s - self._read_s >= min(READ_S, self.period_s):
            self._read_s = now_s
            match self._watch.poll():
                case Reloaded(policy):
                    self._policy = with_solver(policy, self._solver)
                    log.info("policy %s reloaded", policy.source)
                    self._log_policy()
                    self._on_verdict("")
                case Rejected(problems):
                    text = "\n".join(map(str, problems))
                    log.error("policy not reloaded, the last valid policy stays in use:\n%s", text)
                    self._on_verdict(text)
                case _:
                    pass
        return self._policy

    def _log_policy(self) -> None:
        log.info("policy %s: %s", self._policy.source, ", ".join(self._policy.actions))
        for warning in self._policy.warnings:
            log.warning("%s", warning)
