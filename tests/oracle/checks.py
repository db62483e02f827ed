"""What must hold of every session: no exception, no refused plan, no plan worse than another."""

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
"""Kinds that begin so say that a search missed what its certificate leaves open."""


@dataclass(frozen=True)
class Finding:
    """A property that a session does not have.

    Attributes
    ----------
    kind
        Its class: the check and what it looked at, `dominance admission`.
    model
        Of the session.
    text
        What was seen and what was expected.

    """

    kind: str
    model: str
    text: str

    @property
    def is_open(self) -> bool:
        """Whether the session does not claim what it lacks: counted, and no defect."""
        return self.kind.startswith(OPEN)


def guarded(model: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of a check; an exception is one."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.name}"
        found.append(Finding(f"exception {type(e).__name__}", model, f"{where}: {e}"))
    return found


def check_session(decided: Decided) -> Iterator[Finding]:
    """Check one session on a cluster against itself, the pipeline and a longer search."""
    snapshot, policy, model = decided.snapshot, decided.policy, decided.model
    yield from refused(decided.report, model)
    if decided.plan.certificate.engine == NOTHING:
        yield Finding("no plan", model, "no candidate kept every rule")
    for broken in decided.worth.violations:
        yield Finding("accepted plan breaks a rule", model, broken)
    if policy.solver is SolverKind.NONE:
        return
    text = described(decided.plan)
    yield from _dominated(snapshot, policy, decided.worth, text)
    yield from _worse_with_time(snapshot, policy, decided.worth, text)


def refused(report: Report, model: str) -> Iterator[Finding]:
    """What the verifier refused on the way to the plan, one finding a rule and kind of object."""
    kinds = {f"{v.rule} {v.where.partition(' ')[0]}": [] for v in report.trace.violations}
    for violation in report.trace.violations:
        kinds[f"{violation.rule} {violation.where.partition(' ')[0]}"].append(str(violation))
    for kind, broken in sorted(kinds.items()):
        yield Finding(f"refused {kind}", model, "\n".join(broken))


def _dominated(snapshot: Snapshot, policy: Policy, worth: Worth, text: str) -> Iterator[Finding]:
    """The pipeline's plan, where the optimising session would accept it, is no better."""
    greedy = decide(snapshot, without_solver(policy)).plan
    other = Worth.of(snapshot, policy, greedy.actions)
    if other.violations:
        return
    loss = first_loss(worth, other)
    if loss is not None:
        level = loss.level.partition(",")[0]
        told = f"the pipeline's plan is better: {loss}\n{text}\npipeline\n{described(greedy)}"
        # Where every level over gangs is at its ideal, no second plan is made for scores of nodes.
        kind = f"{OPEN}, dominance" if level == SCORES else "dominance"
        yield Finding(f"{kind} {level}", policy.name, told)


def _worse_with_time(
    snapshot: Snapshot, policy: Policy, worth: Worth, text: str
) -> Iterator[Finding]:
    """A plan of ten times the work is not worse."""
    longer = decide(snapshot, policy, WORK * MORE_WORK).plan
    loss = first_loss(Worth.of(snapshot, policy, longer.actions), worth)
    if loss is not None:
        level = loss.level.partition(",")[0]
        told = f"{MORE_WORK} times the work is worse: {loss}\n{text}\nlonger\n{described(longer)}"
        yield Finding(f"more work is worse {level}", policy.name, told)
