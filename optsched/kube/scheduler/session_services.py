"""The current policy, the solver process and the snapshot dumps that sessions use."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final, Protocol

from optsched.formats.plan import write_plan
from optsched.formats.snapshots.writer import encode, write_bundle
from optsched.policy.load import Rejected, Reloaded
from optsched.policy.policy import with_solver
from optsched.solver.cpsat.process import Solver
from optsched.units import format_micro_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot
    from optsched.kube.runtime.timing import Timing
    from optsched.plugins.extension_points import Violation
    from optsched.policy.load import PolicyWatch
    from optsched.policy.policy import Policy, SolverKind
    from optsched.session.ports import Clock

READ_S: Final = 1.0
"""Interval in seconds between reads of the policy file, unless the scheduling period is shorter."""

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
        """Return the current policy, which is the same object until the policy file changes."""
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


RETRY_S: Final = 10.0


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
        """The solver if its process is ready, else None; a read requests the process's start."""
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


KEPT: Final = 20
"""Number of newest snapshot dumps to keep per reason (`sort`); older dumps are deleted."""


class SnapshotDumps:
    """Writes snapshots to a folder; implements `session.ports.Incidents`.

    Only the folder's owner can read the files, because snapshots contain objects of all tenants.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def violated(self, snapshot: Snapshot, plan: Plan, violations: list[Violation]) -> str:
        """Dump a snapshot and a plan that violates rules; return the path (empty on failure)."""
        for violation in violations:
            log.error("plan not executed: %s", violation)
        path = self.dump(snapshot, "violation")
        if path is None:
            return ""
        try:
            with open(path.with_suffix(".plan"), "w", encoding="utf-8", opener=_private) as file:
                file.write(write_plan(plan))
        except OSError as e:
            log.error("plan not dumped: %s", e)
        return str(path)

    def dump(self, snapshot: Snapshot, sort: str) -> Path | None:
        """Write a snapshot as input for `optsched solve`; return its path, or None on failure."""
        time = format_micro_time(snapshot.taken_ms).replace(":", "")
        path = self._folder / f"optsched-{sort}-{time}.json"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bundle(encode(snapshot), path, _private)
            for old in sorted(self._folder.glob(f"optsched-{sort}-*.json"))[:-KEPT]:
                old.unlink()
                old.with_suffix(".plan").unlink(missing_ok=True)
        except (OSError, ValueError) as e:
            log.error("snapshot not dumped: %s", e)
            return None
        log.info("snapshot dumped to %s", path)
        return path


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read; raises OSError if it is a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
