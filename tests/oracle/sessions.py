"""Run sessions on clusters of the oracle without a clock, so that every plan is reproducible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate, Sense
from optsched.formats.snapshots.assembly import assemble
from optsched.policy.load import is_shipped, load_policy
from optsched.policy.policy import SolverKind
from optsched.session.lending import LENT, LENT_FIRST, find_shares, without_lending
from optsched.session.priority_inversions import SPARED
from optsched.session.session import SessionContext, judge_actions, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.oracle.manifests import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.decisions import Action, Plan
    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy
    from optsched.session.session import Judgement, Report
    from tests.oracle.manifests import Cluster

MODELS = Path(__file__).parent / "models"
_MOST_SETS = 500
"""The maximum number of examined sets of borrowing gangs.

With more sets, the session's own judgement decides.
"""
WORK = 0.4
"""The budget of a session per level, in CP-SAT's deterministic seconds."""


@cache
def policy_of(model: str) -> Policy:
    """Return the policy of a built-in model, or of a model of the oracle."""
    name = model if is_shipped(model) else str(MODELS / f"{model}.yaml")
    return load_policy(name, lambda path: path.read_text(encoding="utf-8"))


def snapshot_of(cluster: Cluster) -> Snapshot:
    """Return the snapshot of a cluster, and check that every manifest is readable."""
    document = cluster.document()
    assembled = assemble(document["items"])
    assert not assembled.problems, assembled.problems
    return assembled.snapshot


def decide(snapshot: Snapshot, policy: Policy, work: float = WORK) -> Report:
    """Run a session that reads no clock."""
    limits = Limits(None, work, num_workers=1, num_engines=2)
    solver = None if policy.solver is SolverKind.NONE else InProcess()
    around = SessionContext(solver=solver, limits=limits)
    return run_session(snapshot, policy, around)


@dataclass(frozen=True, eq=False)
class Decided:
    """A cluster and the decisions of a session, which checks share and do not change."""

    cluster: Cluster
    model: str

    @cached_property
    def snapshot(self) -> Snapshot:
        """The snapshot of the cluster."""
        return snapshot_of(self.cluster)

    @cached_property
    def policy(self) -> Policy:
        """The policy of the model."""
        return policy_of(self.model)

    @cached_property
    def report(self) -> Report:
        """The report of the session."""
        return decide(self.snapshot, self.policy)

    @property
    def plan(self) -> Plan:
        """The plan of the session."""
        return self.report.plan

    @cached_property
    def worth(self) -> Worth:
        """The values and violations of the plan."""
        return Worth.of(self.snapshot, self.policy, self.plan.actions)


def without_solver(policy: Policy) -> Policy:
    """Return the same policy with the greedy pipeline instead of a solver."""
    return replace(policy, solver=SolverKind.NONE)


@dataclass(frozen=True)
class Worth:
    """The values of a plan on the levels of a policy, independent of the engine.

    Attributes
    ----------
    levels
        The name, the direction and the value of each level in order of importance. The direction is
        whether a larger value is better.
    violations
        The violated rules.

    """

    levels: tuple[tuple[str, bool, int], ...]
    violations: tuple[str, ...]

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy, actions: Sequence[Action]) -> Worth:
        """Judge actions without the gangs that can start only with loans.

        Sessions count loans on a separate level. Consider all smallest sets of gangs without which
        every queue keeps to its share. The set that leaves the best plan is removed, unless the
        judge of the sessions finds a better choice.
        """
        worth = cls.with_loans(snapshot, policy, actions)
        shares = find_shares(policy.rules)
        if worth.violations or shares is None or not shares.lends:
            return worth
        firm = replace(policy, rules=without_lending(policy.rules))
        gangs = sorted({a.gang for a in actions if isinstance(a, Allocate)})
        num_sets = 0
        for number in range(len(gangs) + 1):
            num_sets += comb(len(gangs), number)
            if num_sets > _MOST_SETS:
                return cls.as_judged(snapshot, policy, actions).without_loans()
            found = [
                each
                for lent in combinations(gangs, number)
                if not (each := cls.with_loans(snapshot, firm, _without(actions, lent))).violations
            ]
            if found:
                return _best([*found, cls.as_judged(snapshot, policy, actions).without_loans()])
        return worth

    def without_loans(self) -> Worth:
        """Return the same values without the levels of loans."""
        kept = tuple(each for each in self.levels if not each[0].startswith(LENT))
        return replace(self, levels=kept)

    @classmethod
    def with_loans(cls, snapshot: Snapshot, policy: Policy, actions: Sequence[Action]) -> Worth:
        """Judge actions and count borrowing gangs like all others."""
        violations = tuple(str(v) for v in judge_actions(snapshot, policy, actions).violations)
        firm = replace(policy, rules=without_lending(policy.rules))
        return cls(_values(judge_actions(snapshot, firm, actions)), violations)

    @classmethod
    def as_judged(cls, snapshot: Snapshot, policy: Policy, actions: Sequence[Action]) -> Worth:
        """Judge actions like a user, with the session's own choice of loans."""
        judged = judge_actions(snapshot, policy, actions)
        return cls(_values(judged), tuple(str(v) for v in judged.violations))


def _values(judged: Judgement) -> tuple[tuple[str, bool, int], ...]:
    return tuple((r.name, r.sense is Sense.MAX, r.value) for r in judged.levels)


def _without(actions: Sequence[Action], gangs: Sequence[str]) -> list[Action]:
    return [a for a in actions if not (isinstance(a, Allocate) and a.gang in gangs)]


def _best(found: Sequence[Worth]) -> Worth:
    best = found[0]
    for each in found[1:]:
        if first_loss(best, each) is not None:
            best = each
    return best


@dataclass(frozen=True)
class Difference:
    """The first level on which one plan is better than another."""

    level: str
    better: int
    worse: int
    is_max: bool

    def __str__(self) -> str:
        return f"level {self.level}: {self.better} against {self.worse}"


def first_loss(plan: Worth, other: Worth) -> Difference | None:
    """Return the first level that differs if `other` is better on this level, or None otherwise."""
    for name, is_max, mine, theirs in _paired(plan, other):
        if mine == theirs:
            continue
        if (theirs > mine) == is_max:
            return Difference(name, theirs, mine, is_max)
        return None
    return None


def _paired(plan: Worth, other: Worth) -> Iterator[tuple[str, bool, int, int]]:
    """Yield the levels of both plans in one order, with 0 for a missing level.

    A plan without victims has no victims level. Without due amounts, a plan has no fair-share
    level.
    """
    mine = {name: value for name, _, value in plan.levels}
    theirs = {name: value for name, _, value in other.levels}
    rest = list(other.levels)
    for name, is_max, _ in plan.levels:
        if name in theirs:
            while rest and rest[0][0] != name and rest[0][0] not in mine:
                extra = rest.pop(0)
                yield extra[0], extra[1], 0, extra[2]
            rest = [r for r in rest if r[0] != name]
        yield name, is_max, mine[name], theirs.get(name, 0)
    for name, is_max, value in rest:
        yield name, is_max, 0, value


def forgoes_admission(plan: Plan) -> bool:
    """Return whether a plan has a worse value of admission on purpose, to evict fewer pods."""
    return not {LENT_FIRST, SPARED}.isdisjoint(plan.certificate.limitations)


def described(plan: Plan) -> str:
    """Return a plan and its certificate as a few lines of text."""
    certificate = plan.certificate
    lines = [f"  {action}" for action in plan.actions]
    lines += [f"  {r.name}: {r.value}, bound {r.bound}, {r.status}" for r in certificate.levels]
    proved = "proved" if certificate.is_proved else "not proved"
    return "\n".join([*lines, f"  {certificate.engine} ({certificate.stopped}), {proved}"])


__all__ = [
    "WORK",
    "Decided",
    "Difference",
    "Worth",
    "decide",
    "described",
    "first_loss",
    "policy_of",
    "snapshot_of",
    "timestamp",
    "without_solver",
]
