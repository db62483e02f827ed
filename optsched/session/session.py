"""One session, which turns a snapshot and a policy into a verified plan.

The live scheduler, the offline solver and every study call `run_session`. These callers differ in
the source of the snapshot and in how they execute the plan.
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
"""Maximum number of attempts of a session.

If the verifier rejects every plan, the second attempt excludes custom actions, and later attempts
exclude the gangs that rules of custom plugins reject.
"""


@dataclass(frozen=True)
class Trace:
    """Times, failures and progress of a session, for metrics and logs.

    Attributes
    ----------
    seconds
        Wall time per phase, such as shuffle, reserve, compile, greedy, solve, verify and explain.
    violations
        The rule violations of rejected plans; empty if the verifier accepts the first plan.
    kept_at
        Where the last rejected plan and its snapshot are stored.
    repairs
        For each rejected plan that was repaired, the dropped gangs and a violation.
    faults
        Failures of custom plugins and of extenders.
    answers
        Calls to extenders and their replies, in the text form that a snapshot stores.
    num_cut_searches
        Number of device searches that each limit stopped, keyed by limit.
    progress, incumbents
        Values and bounds over time, and each search's solution; empty without a watch.

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
    """The result of a session: the plan, and the problem that the next session reuses.

    `flaws` holds contradictions between cluster objects. `opened` holds the keys of tasks whose
    gates open, because their queue admits them but they fit on no node. `separated` holds the
    waiting gangs that the problem lacks (`SessionInput.separated`).
    """

    plan: Plan
    problem: Problem
    trace: Trace
    flaws: tuple[Flaw, ...] = ()
    opened: tuple[str, ...] = ()
    separated: tuple[Gang, ...] = ()


def run_session(
    snapshot: Snapshot, policy: Policy, context: SessionContext, previous: Problem | None = None
) -> Report:
    """Return the plan for a snapshot, with the session's trace and the compiled problem.

    Parameters
    ----------
    snapshot
        The snapshot of the cluster.
    policy
        The policy: actions, rules, levels and budgets.
    context
        The session's dependencies and settings, such as clock, solver and limits.
    previous
        The problem of an earlier session, which speeds up compiling and does not change the plan.

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
    return Report(
        plan=certified.plan,
        problem=rounds.first.problem,
        trace=trace,
        flaws=certified.flaws,
        opened=certified.opened,
        separated=session.separated,
    )


def expected_starts(
    snapshot: Snapshot, policy: Policy, keys: Collection[str]
) -> dict[str, CapacityReservation]:
    """Predict when waiting gangs could start; return their reservations, keyed by gang.

    The prediction assumes that no further gangs arrive and that running pods terminate when their
    manifests say. `is_open` is true for a reservation whose start depends on a pod with an unknown
    end time.
    """
    session = normalise(snapshot, policy, SessionContext())
    return expected(session.snapshot, session.policy, keys)


@dataclass(frozen=True)
class Judgement:
    """The evaluation of given actions on a snapshot.

    Attributes
    ----------
    levels
        The results of all levels, as in a certificate. Each level's bound is its ideal value,
        because no level is solved.
    violations
        The hard-rule violations that the actions cause.
    explain_pending
        Returns a mapping from each gang with pending tasks to the reason why it waits.

    """

    levels: tuple[LevelResult, ...]
    violations: tuple[Violation, ...]
    explain_pending: Callable[[], Mapping[str, Reason]]


def judge_actions(snapshot: Snapshot, policy: Policy, actions: Sequence[Action]) -> Judgement:
    """Verify actions against every hard rule, and compute their value on every level.

    No search is run: the result depends only on the snapshot, the policy and the actions. The
    levels over loans, and not the admission levels, include gangs that borrow.

    Raises
    ------
    ValueError
        An action contains an unknown pod or node, or moves a pod to another node.

    """
    if any(isinstance(a, Evict) and a.to for a in actions):
        raise ValueError("actions that move a pod to another node cannot be evaluated")
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
        chosen = replace(chosen, solution=evaluate_greedy(each.problem, first, each.levels, ""))
    over_gangs, over_victims, over_nodes = chosen.sections
    levels = (*over_gangs, *over_victims, *lent, *over_nodes)
    return Judgement(levels, tuple(attempt.verify(each, tuple(actions))), explain_pending)


def waiting_lines(snapshot: Snapshot, policy: Policy) -> dict[str, tuple[str, ...]]:
    """Return the keys of the waiting gangs of each queue, in the next session's queue order.

    A gang waits if none of its tasks runs, even if its pods do not exist yet. Queue order is not
    start order: a smaller gang may fit first.
    """
    session = normalise(snapshot, policy, SessionContext())
    problem = compile_problem(session.snapshot, None)
    gangs = problem.snapshot.gangs
    waiting: list[int] = []
    for i, gang in enumerate(gangs):
        if problem.queue_of[i] < 0 or any(task.status.counts_as_ready for task in gang.tasks):
            continue
        awaits_pods = not gang.tasks and gang.phase in (GangPhase.PENDING, GangPhase.INQUEUE)
        if awaits_pods or any(task.status is TaskStatus.PENDING for task in gang.tasks):
            waiting.append(i)
    tiers = find_tiers(problem, session.policy).of if session.is_optimised else None
    found: dict[str, list[str]] = {}
    for i in order_gangs(problem, session.rules, waiting, tiers):
        found.setdefault(gangs[i].queue, []).append(gangs[i].key)
    return {queue: tuple(keys) for queue, keys in found.items()}
