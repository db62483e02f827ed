"""Solving an instance with its result as a value: identities, history, endings, going on again."""

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
"""Keeping what was found may take a tenth of the time: so much longer than it took is waited."""


class ResumeError(Exception):
    """An earlier result that this solve can not resume; its message names a field."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The instance, the model and the parameters of a result: everything known beforehand."""

    instance: InstanceIdentity
    model: ModelIdentity
    parameters: Parameters
    versions: Mapping[str, str]
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Means:
    """The solver, the clock and the callbacks of a solve.

    Attributes
    ----------
    clock
        None where no clock may be read.
    solver, limits
        The solver and its limits.
    is_stopped
        Whether a stop was requested.
    show
        Called with progress as it comes.
    keep
        Called with the partial result, from time to time.
    earlier
        The result to resume, which `check_resumable` has accepted.

    """

    clock: Clock | None
    solver: Solver | None
    limits: Limits
    is_stopped: Callable[[], bool] = lambda: False
    show: Callable[[Progress], None] = lambda _: None
    keep: Callable[[SolveResult], None] | None = None
    earlier: SolveResult | None = None


def model_identity(policy: Policy, read: Callable[[Path], str]) -> ModelIdentity:
    """The identity of a policy; raises `PolicyError` where its file is missing."""
    files = tuple(FileSum(path, checksum(text)) for path, text in policy.plugin_files)
    return ModelIdentity(policy.name, policy.source, definition_of(policy, read), files)


def parameters_of(policy: Policy, limits: Limits, schedulers: tuple[str, ...] = ()) -> Parameters:
    """The parameters that limits stand for."""
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
    snapshot: Snapshot, policy: Policy, assignment: Assignment, means: Means
) -> tuple[Report, SolveResult]:
    """Decide about a snapshot, from where an earlier result ended if there is one.

    Returns the report of the session and the result, which is partial after a stop or where not
    every level was reached.
    """
    recorder = Recorder(assignment, means)
    around = SessionContext(
        means.clock,
        means.solver,
        limits=means.limits if means.solver is not None else None,
        watch=recorder,
        start=() if means.earlier is None else means.earlier.incumbents,
    )
    report = run_session(snapshot, policy, around)
    plan = report.plan
    if means.is_stopped():
        ended = SolveStatus.INTERRUPTED
    else:
        ended = solve_status_of(plan.certificate, means.limits, optimises=means.solver is not None)
    result = recorder.result(ended, report.trace.incumbents)
    return report, replace(result, plan=plan_document(plan))


def solve_status_of(certificate: Certificate, limits: Limits, *, optimises: bool) -> SolveStatus:
    """Why a solve ended, by what its certificate says."""
    is_close = all(limits.suffices(each.value, each.bound) for each in certificate.levels)
    if not optimises or (is_close and not certificate.relaxed):
        return SolveStatus.COMPLETE
    return SolveStatus.LIMIT


def check_resumable(earlier: SolveResult, assignment: Assignment) -> None:
    """Raise `ResumeError` where a result is of another instance or model, or of another time."""
    pairs = (
        ("instance", earlier.instance.sha256, assignment.instance.sha256),
        ("model", earlier.model.sha256, assignment.model.sha256),
    )
    for what, before, now in pairs:
        if before != now:
            raise ResumeError(
                f"{what}.sha256: {before} is not the checksum of what is to be solved, {now}: the "
                f"{what} has changed; solve the one that it was, or leave out --resume"
            )
    if earlier.parameters.schedulers != assignment.parameters.schedulers:
        raise ResumeError(
            f"parameters.schedulers: {', '.join(earlier.parameters.schedulers)} were decided for, "
            f"now it is {', '.join(assignment.parameters.schedulers)}; name the same"
        )
    if earlier.parameters.is_deterministic != assignment.parameters.is_deterministic:
        told = "without a clock" if earlier.parameters.is_deterministic else "by the clock"
        raise ResumeError(
            f"parameters.deterministic: it was solved {told}, and times of both kinds can not be "
            "put together; go on in the same way"
        )


@dataclass
class Recorder:
    """Watches a session and keeps the partial result."""

    assignment: Assignment
    means: Means
    progress: list[Progress] = field(default_factory=list)
    _found: dict[int, Callable[[], Incumbent]] = field(default_factory=dict)
    _known: dict[int, Incumbent] = field(default_factory=dict)
    _next_s: float = 0.0

    def __post_init__(self) -> None:
        earlier = self.means.earlier
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
        self.means.show(later)
        self._offer_incumbent()

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        """See `Watch`."""
        self._found[turn] = incumbent
        self._offer_incumbent()

    def _offer_incumbent(self) -> None:
        """Report the partial result, unless that takes too much of the time."""
        if self.means.keep is None or not (self._found or self._known):
            return
        clock = self.means.clock
        begun_s = 0.0 if clock is None else clock.monotonic()
        if begun_s < self._next_s:
            return
        self._known |= {turn: find() for turn, find in self._found.items()}
        self._found.clear()
        known = tuple(self._known[turn] for turn in sorted(self._known))
        self.means.keep(self.result(SolveStatus.RUNNING, known))
        if clock is not None:
            now_s = clock.monotonic()
            self._next_s = now_s + _PAUSE * (now_s - begun_s)

    def result(self, ended: SolveStatus, incumbents: tuple[Incumbent, ...]) -> SolveResult:
        """The partial result, without a plan."""
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
