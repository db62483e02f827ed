"""The policy in force, read again when its file changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from optsched.policy.policy import with_solver
from optsched.policy.reload import Rejected, Reloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.policy.policy import Policy, SolverKind
    from optsched.policy.reload import PolicyWatch
    from optsched.session.ports import Clock

READ_S: Final = 1.0
"""How often the file is read."""

log = logging.getLogger(__name__)


class PolicyFile:
    """The last good policy, with what the command line says on top.

    `on_verdict` is told what is wrong with a file that has changed, nothing once it is good again.
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
        self._policy = self._adapted(watch.policy)
        self._greet()

    @property
    def period_s(self) -> float:
        """From the start of a session to the start of the next."""
        if self._period_s is not None:
            return self._period_s
        return self._policy.budgets.period_ms / 1000

    def current(self) -> Policy:
        """The policy in force; the very same object until it changes."""
        now_s = self._clock.monotonic()
        if now_s - self._read_s >= min(READ_S, self.period_s):
            self._read_s = now_s
            self._poll()
        return self._policy

    def _poll(self) -> None:
        match self._watch.poll():
            case Reloaded(policy):
                self._policy = self._adapted(policy)
                log.info("policy %s read again", policy.source)
                self._greet()
                self._on_verdict("")
            case Rejected(problems):
                text = "\n".join(map(str, problems))
                log.error("policy not read again, the last good one stays:\n%s", text)
                self._on_verdict(text)
            case _:
                pass

    def _adapted(self, policy: Policy) -> Policy:
        return with_solver(policy, self._solver)

    def _greet(self) -> None:
        log.info("policy %s: %s", self._policy.source, ", ".join(self._policy.actions))
        for warning in self._policy.warnings:
            log.warning("%s", warning)
