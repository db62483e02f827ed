"""Solve an instance offline, or resume an earlier solve; record input, progress and status."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.decisions import SolveStatus, changes_level
from optsched.formats.plan import plan_document
from optsched.formats.solve_result import (
    FileSum,
    ModelIdentity,
    Parameters,
    SolveResult,
    checksum,
)
from optsched.policy.load import definition_of
from optsched.policy.policy import SolverKind
from optsched.session.session import SessionContext, run_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from optsched.cluster.decisions import Certificate, Incumbent, Progress
    from optsched.cluster.snapshot import Snapshot
    from optsched.formats.solve_result import InstanceIdentity
    from optsched.policy.policy import Policy
    from optsched.session.ports import Clock
    from optsched.session.session import Report
    from optsched.solver.cpsat.level_model import Limits
    from optsched.solver.cpsat.process import Solver

_PAUSE: Final = 9
"""The pause after a partial result is stored, as a multiple of the time that storing it took.

The pause limits the time for storing to a tenth of a solve's time.
"""


class ResumeError(Exception):
    """Raised if a solve cannot resume from an earlier result; the message names the bad field."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The instance, model and parameters of a result, which are known before the solve."""

    instance: InstanceIdentity
    model: ModelIdentity
    parameters: Parameters
    versions: Mapping[str, str]
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class OfflineSettings:
    """The dependencies of a solve: solver, clock and callbacks.

    Attributes
    ----------
    clock
        The clock, or None if the solve must not read a clock.
    solver, limits
        The solver, or None to use only the greedy pipeline, and the limits of one search.
    is_stopped
        Returns whether a stop was requested.
    show
        Receives every progress report.
    keep
        Receives partial results from time to time; None to store none.
    earlier
        The result from which to resume, which `check_resumable` accepted; None for a new solve.

    """

    clock: Clock | None
    solver: Solver | None
    limits: Limits
    is_stopped: Callable[[], bool] = lambda: False
    show: Callable[[Progress], None] = lambda _: None
    keep: Callable[[SolveResult], None] | None = None
    earlier: SolveResult | None = None


def model_identity(policy: Policy, read: Callable[[Path], str]) -> ModelIdentity:
    """Return the identity of a policy; raises `PolicyError` if a file of the policy is missing."""
    files = tuple(FileSum(path, checksum(text)) for path, text in policy.plugin_files)
    return ModelIdentity(policy.name, policy.source, definition_of(policy, read), files)


def parameters_of(policy: Policy, limits: Limits, schedulers: tuple[str, ...] = ()) -> Parameters:
    """Return the parameters that a result records for a policy and limits."""
    return Parameters(
        solver="none" if policy.solver is SolverKind.NONE else "cpsat",
        time_limit_s=None if limits.budget_ms is None else limits.budget_ms / 1000,
        deterministic_s=limits.deterministic,
        gap=limits.gap,
        seed=limits.seed,
        num_workers=limits.num_workers,
        schedulers=schedulers,
    )


def solve_offline(
    snapshot: Snapshot, policy: Policy, assignment: Assignment, settings: OfflineSettings
) -> tuple[Report, SolveResult]:
    """Solve a snapshot; resume from the earlier result if `settings` has one.

    Returns the session's report and the result, which is partial if the solve was stopped or
    reached a limit.
    """
    recorder = Recorder(assignment, settings)
    around = SessionContext(
        settings.clock,
        settings.solver,
        limits=settings.limits if settings.solver is not None else None,
        watch=recorder,
        start=() if settings.earlier is None else settings.earlier.incumbents,
    )
    report = run_session(snapshot, policy, around)
    plan = report.plan
    if settings.is_stopped():
        ended = SolveStatus.INTERRUPTED
    else:
        ended = solve_status_of(
            plan.certificate, settings.limits, optimises=settings.solver is not None
        )
    result = recorder.result(ended, report.trace.incumbents)
    return report, replace(result, plan=plan_document(plan))


def solve_status_of(certificate: Certificate, limits: Limits, *, optimises: bool) -> SolveStatus:
    """Return the final status of a solve, derived from its certificate."""
    is_close = all(limits.suffices(each.value, each.bound) for each in certificate.levels)
    if not optimises or (is_close and not certificate.relaxed):
        return SolveStatus.COMPLETE
    return SolveStatus.LIMIT


def check_resumable(earlier: SolveResult, assignment: Assignment) -> None:
    """Raise `ResumeError` if a result's instance, model, schedulers or time base differ."""
    pairs = (
        ("instance", earlier.instance.sha256, assignment.instance.sha256),
        ("model", earlier.model.sha256, assignment.model.sha256),
    )
    for what, before, now in pairs:
        if before != now:
            raise ResumeError(
                f"{what}.sha256: the earlier result has {before}, but this solve has {now}: the "
                f"{what} has changed; solve the original one, or omit --resume"
            )
    if earlier.parameters.schedulers != assignment.parameters.schedulers:
        raise ResumeError(
            f"parameters.schedulers: {', '.join(earlier.parameters.schedulers)} in the earlier "
            f"result, but {', '.join(assignment.parameters.schedulers)} here; name the same ones"
        )
    if earlier.parameters.is_deterministic != assignment.parameters.is_deterministic:
        how = "without a clock" if earlier.parameters.is_deterministic else "by the clock"
        raise ResumeError(
            f"parameters.deterministic: the earlier result was solved {how}, and times of both "
            "kinds cannot be combined; resume it in the same way"
        )


@dataclass
class Recorder:
    """Records the partial result of a session; implements `Watch`."""

    assignment: Assignment
    settings: OfflineSettings
    progress: list[Progress] = field(default_factory=list)
    _found: dict[int, Callable[[], Incumbent]] = field(default_factory=dict)
    _known: dict[int, Incumbent] = field(default_factory=dict)
    _next_s: float = 0.0

    def __post_init__(self) -> None:
        earlier = self.settings.earlier
        if earlier is not None:
            self.progress += earlier.progress
            self._known = {each.turn: each for each in earlier.incumbents}
        self._begun_s = max((p.at_s for p in self.progress), default=0.0)

    def progressed(self, progress: Progress) -> None:
        """See `Watch`."""
        later = replace(progress, at_s=round(self._begun_s + progress.at_s, 6))
        if not changes_level(later, self.progress):
            return
        self.progress.append(later)
        self.settings.show(later)
        self._offer_incumbent()

    def previewed(self, progress: Progress) -> None:
        """See `Watch`; the progress of shorter searches is shown but not recorded."""
        self.settings.show(progress)

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        """See `Watch`."""
        self._found[turn] = incumbent
        self._offer_incumbent()

    def _offer_incumbent(self) -> None:
        """Store the partial result if enough time has passed since the last partial result."""
        if self.settings.keep is None or not (self._found or self._known):
            return
        clock = self.settings.clock
        begun_s = 0.0 if clock is None else clock.monotonic()
        if begun_s < self._next_s:
            return
        self._known |= {turn: find() for turn, find in self._found.items()}
        self._found.clear()
        known = tuple(self._known[turn] for turn in sorted(self._known))
        self.settings.keep(self.result(SolveStatus.RUNNING, known))
        if clock is not None:
            now_s = clock.monotonic()
            self._next_s = now_s + _PAUSE * (now_s - begun_s)

    def result(self, ended: SolveStatus, incumbents: tuple[Incumbent, ...]) -> SolveResult:
        """Return the partial result, which has no plan."""
        given = self.assignment
        return SolveResult(
            ended=ended,
            versions=given.versions,
            command=given.command,
            instance=given.instance,
            model=given.model,
            parameters=given.parameters,
            plan=None,
            progress=tuple(self.progress),
            incumbents=incumbents,
        )
