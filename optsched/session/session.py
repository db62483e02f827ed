"""One session: it turns a snapshot and a policy into a verified plan.

The live scheduler, the offline solver and every study make the same call. They differ in where the
snapshot comes from and in how the plan is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Evict
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.plugins.custom.isolation import Fault
from optsched.problem.compile import compile_problem, has_many_unused_resources
from optsched.session.acceptance import NOTHING, accept_candidate
from optsched.session.attempt import Attempt, begin_attempt
from optsched.session.backfill_reservations import expected, reserve
from optsched.session.certification import UNEXPLAINED, certify_plan, first_stage
from optsched.session.context import SessionContext
from optsched.session.decompile import pending_of
from optsched.session.eviction_rounds import Rounds
from optsched.session.lending import separate_loans
from optsched.session.searches import run_searches
from optsched.session.session_input import find_tiers, normalise
from optsched.solver.greedy.pipeline import order_gangs
from optsched.solver.portfolio import evaluate_greedy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from optsched.cluster.decisions import Action, Incumbent, LevelResult, Plan, Progress
    from optsched.cluster.reasons import Flaw, Reason
    from optsched.cluster.snapshot import CapacityReservation, Gang, Snapshot
    from optsched.plugins.extension_points import Violation
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem
    from optsched.session.repair import Repair

__all__ = ["NOTHING", "UNEXPLAINED", "Judgement", "Report", "SessionContext", "Trace"]

_MAX_ATTEMPTS = 4
"""Maximum number of attempts of a session. If the verifier rejects every plan, the next attempt
drops custom actions first, then the gangs that rules of custom plugins reject."""


@dataclass(frozen=True)
class Trace:
    """Times, failures and progress of a session, for metrics and logs.

    Attributes
    ----------
    seconds
        Wall time by phase: shuffle, reserve, compile, greedy, solve, verify, explain and so on.
    violations
        Violations of the plans that were rejected; empty in a healthy scheduler.
    kept_at
        Where the last rejected plan and its snapshot are stored.
    repairs
        Rejected plans that competed again without the gangs at fault.
    faults
        Failures of custom plugins and of extenders.
    answers
        Calls to extenders and their replies, in the form of a snapshot.
    num_cut_searches
        Number of device searches that ended without a result, by the limit that ended them.
    progress, incumbents
        Values and bounds over time, and the solution of each search; empty without a watch.

    """

    seconds: dict[str, float] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    kept_at: str = ""
    repairs: tuple[Repair, ...] = ()
    faults: tuple[Fault, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    progress: tuple[Progress, ...] = ()
    incumbents: tuple[Incumbent, ...] = ()
    num_cut_searches: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The outcome of a session: the plan, and the problem that the next session reuses.

    `flaws` are contradictions between objects. `opened` are the keys of tasks without a node whose
    gates open, because their queues admit them.
    """

    plan: Plan
    problem: Problem
    trace: Trace
    flaws: tuple[Flaw, ...] = ()
    opened: tuple[str, ...] = ()


def run_session(
    snapshot: Snapshot, policy: Policy, context: SessionContext, previous: Problem | None = None
) -> Report:
    """Return the plan for a snapshot, with a trace of the session.

    Parameters
    ----------
    snapshot
        The cluster.
    policy
        Actions, rules, levels and budgets.
    context
        Dependencies and settings: clock, solver, limits.
    previous
        The problem of an earlier session; makes compiling cheaper and changes nothing else.

    """
    if previous is not None and has_many_unused_resources(previous):
        previous = None
    session = normalise(snapshot, policy, context)
    violations: list[Violation] = []
    for left in reversed(range(_MAX_ATTEMPTS)):
        attempt = begin_attempt(session, previous)
        searched = run_searches(attempt)
        rounds = searched.rounds
        accepted = accept_candidate(attempt, rounds, searched.candidates, is_last=left == 0)
        violations += accepted.violations
        if accepted.is_nothing and session.policy.proposers:
            session = session.without_proposers(str(accepted.violations[0]))
        elif accepted.is_nothing and accepted.blocked:
            session = session.without_gangs(accepted.blocked)
        else:
            break
    certified = certify_plan(
        attempt, rounds, accepted.candidate, has_refusals=bool(accepted.violations)
    )
    for verb, failure in session.extenders.failures:
        session.faults.add(Fault("extender", "extender", verb, failure, "its service"))
    trace = Trace(
        seconds=dict(session.clock.seconds),
        violations=tuple(violations),
        kept_at=accepted.kept_at,
        repairs=accepted.repairs,
        faults=session.faults.recorded,
        answers=session.extenders.entries,
        progress=tuple(session.history.progress),
        incumbents=tuple(session.history.incumbents),
        num_cut_searches=dict(certified.num_cut_searches),
    )
    return Report(certified.plan, rounds.first.problem, trace, certified.flaws, certified.opened)


def expected_starts(
    snapshot: Snapshot, policy: Policy, keys: Collection[str]
) -> dict[str, CapacityReservation]:
    """Return, by key, reservations with the times at which waiting gangs could start.

    The prediction assumes that no further gangs arrive, and that running pods end as their
    manifests say. A reservation `is_open` if a pod that has to end first does not say when.
    """
    session = normalise(snapshot, policy, SessionContext())
    return expected(session.snapshot, session.policy, keys)


@dataclass(frozen=True)
class Judgement:
    """The value of actions on a snapshot, wherever the actions come from.

    Attributes
    ----------
    levels
        Levels as in a certificate. Nothing is solved, so their bounds are ideals.
    violations
        Rules that the actions break.
    explain_pending
        Returns why gangs with pending tasks wait, by key.

    """

    levels: tuple[LevelResult, ...]
    violations: tuple[Violation, ...]
    explain_pending: Callable[[], Mapping[str, Reason]]


def judge_actions(snapshot: Snapshot, policy: Policy, actions: Sequence[Action]) -> Judgement:
    """Verify actions against every hard rule and compute their value on every level.

    Nothing is solved, and only the snapshot, the policy and the actions count. Gangs that borrow
    count on the levels `lent`, not as admitted.

    Raises
    ------
    ValueError
        An action names a pod or node that does not exist, or moves a pod to another node.

    """
    if any(isinstance(a, Evict) and a.to for a in actions):
        raise ValueError("actions that move a pod to another node can not be judged")
    session = normalise(snapshot, policy, SessionContext())
    reserved = reserve(session.snapshot, session.policy, None, is_ordered=session.is_optimised)
    attempt = Attempt(session, reserved.snapshot, reserved)
    chosen = attempt.evaluate(tuple(actions), None)
    each = chosen.round
    scope = Rounds(each).scope
    first, lending = separate_loans(first_stage(session, scope, chosen), each.levels)
    explain_pending = partial(pending_of, each.problem, chosen.decisions, session.policy.rules)
    lent = () if lending is None else lending.results
    if lending is not None:
        chosen = replace(chosen, answer=evaluate_greedy(each.problem, first, each.levels, ""))
    over_gangs, over_victims, over_nodes = chosen.sections
    levels = (*over_gangs, *over_victims, *lent, *over_nodes)
    return Judgement(levels, tuple(attempt.verify(each, tuple(actions))), explain_pending)


def waiting_lines(snapshot: Snapshot, policy: Policy) -> dict[str, tuple[str, ...]]:
    """Return the keys of waiting gangs, by queue, in the queue order of the next session.

    These are gangs without running tasks, whether or not their pods exist. Queue order is not start
    order: a smaller gang may fit first.
    """
    session = normalise(snapshot, policy, SessionContext())
    problem = compile_problem(session.snapshot, None)
    gangs = problem.snapshot.gangs
    waiting = [i for i, gang in enumerate(gangs) if problem.queue_of[i] >= 0 and _is_waiting(gang)]
    tiers = find_tiers(problem, session.policy).of if session.is_optimised else None
    found: dict[str, list[str]] = {}
    for i in order_gangs(problem, session.rules, waiting, tiers):
        found.setdefault(gangs[i].queue, []).append(gangs[i].key)
    return {queue: tuple(keys) for queue, keys in found.items()}


def _is_waiting(gang: Gang) -> bool:
    """Return whether a gang has pending tasks, or waits for its pods, and no task of it runs."""
    if any(task.status.counts_as_ready for task in gang.tasks):
        return False
    if gang.tasks:
        return any(task.status is TaskStatus.PENDING for task in gang.tasks)
    return gang.phase in (GangPhase.PENDING, GangPhase.INQUEUE)
