"""Check every session for exceptions, rejected plans, and plans worse than another plan."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.policy.policy import SolverKind
from optsched.session.session import NOTHING
from tests.oracle.sessions import (
    WORK,
    Worth,
    decide,
    described,
    first_loss,
    forgoes_admission,
    without_solver,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy
    from optsched.session.session import Report
    from tests.oracle.sessions import Decided

MORE_WORK, SCORES = 10, "node score"
OPEN = "open"
"""The prefix of findings where the certificate does not exclude a better plan."""


@dataclass(frozen=True)
class Finding:
    """A property that a session violates.

    Attributes
    ----------
    kind
        The check and its subject, for example `dominance admission`.
    model
        The model of the session.
    text
        The observed and the expected result.

    """

    kind: str
    model: str
    text: str

    @property
    def is_open(self) -> bool:
        """Whether the certificate allows for the better plan, so that the finding is no defect."""
        return self.kind.startswith(OPEN)


def guarded(model: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Return the findings of a check, including an exception."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.name}"
        found.append(Finding(f"exception {type(e).__name__}", model, f"{where}: {e}"))
    return found


def check_session(decided: Decided) -> Iterator[Finding]:
    """Check one session against its certificate, the pipeline and a longer search."""
    snapshot, policy, model = decided.snapshot, decided.policy, decided.model
    yield from refused(decided.report, model)
    if decided.plan.certificate.engine == NOTHING:
        yield Finding("no plan", model, "no candidate kept every rule")
    for broken in decided.worth.violations:
        yield Finding("accepted plan breaks a rule", model, broken)
    if policy.solver is SolverKind.NONE:
        return
    text = described(decided.plan)
    if forgoes_admission(decided.plan):
        # Plans with more victims have better admission, so they must not count as better.
        return
    yield from _dominated(snapshot, policy, decided.worth, text)
    yield from _worse_with_time(snapshot, policy, decided.worth, text)


def refused(report: Report, model: str) -> Iterator[Finding]:
    """Yield the violations of rejected plans, one finding per rule and object type."""
    kinds = {f"{v.rule} {v.where.partition(' ')[0]}": [] for v in report.trace.violations}
    for violation in report.trace.violations:
        kinds[f"{violation.rule} {violation.where.partition(' ')[0]}"].append(str(violation))
    for kind, broken in sorted(kinds.items()):
        yield Finding(f"refused {kind}", model, "\n".join(broken))


def _dominated(snapshot: Snapshot, policy: Policy, worth: Worth, text: str) -> Iterator[Finding]:
    """The pipeline's plan is not better, unless the optimising session would reject that plan."""
    greedy = decide(snapshot, without_solver(policy)).plan
    other = Worth.of(snapshot, policy, greedy.actions)
    if other.violations:
        return
    loss = first_loss(worth, other)
    if loss is not None:
        level = loss.level.partition(",")[0]
        told = f"the pipeline's plan is better: {loss}\n{text}\npipeline\n{described(greedy)}"
        # If every gang level has its ideal value, the session makes no second plan for node scores.
        kind = f"{OPEN}, dominance" if level == SCORES else "dominance"
        yield Finding(f"{kind} {level}", policy.name, told)


def _worse_with_time(
    snapshot: Snapshot, policy: Policy, worth: Worth, text: str
) -> Iterator[Finding]:
    """A plan with ten times the work is not worse."""
    longer = decide(snapshot, policy, WORK * MORE_WORK).plan
    if forgoes_admission(longer):
        return
    loss = first_loss(Worth.of(snapshot, policy, longer.actions), worth)
    if loss is not None:
        level = loss.level.partition(",")[0]
        told = f"{MORE_WORK} times the work is worse: {loss}\n{text}\nlonger\n{described(longer)}"
        yield Finding(f"more work is worse {level}", policy.name, told)
