"""Certify a plan's level values and bounds, and explain why gangs wait."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Certificate, Evict, Plan, are_optimal
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.accounting import Outcome
from optsched.plugins.devices.device_claims import count_cut_searches
from optsched.plugins.shares.fairness import queue_shares
from optsched.session.budgets import Protection, with_budgets
from optsched.session.costly_gangs import is_deferred
from optsched.session.decompile import pending_keys, pending_of
from optsched.session.eviction_blockers import EvictionTrial, explain_blocked_evictions
from optsched.session.lending import LENT_LAST, Decided, find_withheld
from optsched.session.object_diagnostics import budget_flaws, find_flaws
from optsched.session.queue_gates import opened
from optsched.solver.portfolio import UNBOUNDED
from optsched.solver.preemption.joint.bound import bound_with_evictions
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.reasons import Flaw
    from optsched.session.attempt import Attempt
    from optsched.session.bounds import EvictionScope
    from optsched.session.candidates import Candidate
    from optsched.session.eviction_rounds import Rounds
    from optsched.session.session_input import SessionInput

UNEXPLAINED = Reason(ReasonCode.WAITING, "the session explains nothing")
"""The reason given for every waiting gang if `SessionContext.explains` is False."""

_LACKS_CAPACITY = frozenset(
    {ReasonCode.RESOURCES, ReasonCode.FRAGMENTED, ReasonCode.OUTRANKED, ReasonCode.WAITING}
)


@dataclass(frozen=True, eq=False)
class Certified:
    """A plan with its certificate, and diagnostic data.

    Attributes
    ----------
    opened
        Keys of the tasks whose gates open because their queue admits them, although no node fits.
    flaws
        Contradictions between cluster objects.
    num_cut_searches
        Number of device searches that each limit stopped, keyed by limit.

    """

    plan: Plan
    opened: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    num_cut_searches: Mapping[str, int] = field(default_factory=dict)


def certify_plan(
    attempt: Attempt, rounds: Rounds, chosen: Candidate, *, has_refusals: bool
) -> Certified:
    """Return the plan of the chosen candidate, with its certificate and the reasons for waiting."""
    session, each, decisions = attempt.session, chosen.round, chosen.decisions
    rules, explains = session.policy.rules, session.context.explains
    withheld, opened_tasks = None, tuple[str, ...]()
    if not explains:
        pending = dict.fromkeys(pending_keys(each.problem, decisions), UNEXPLAINED)
    else:
        with session.clock.measure("explain"):
            pending = pending_of(each.problem, decisions, rules)
            pending |= _explain_hopeless(rounds, pending)
            trial = EvictionTrial(
                problem=rounds.first.problem,
                rules=session.rules,
                reach=session.reach,
                actions=chosen.actions or (),
                entitlements=each.clearing.entitlements,
                is_late=lambda: session.clock.is_late,
            )
            pending |= explain_blocked_evictions(trial, pending)
            pending |= attempt.reserved.add_expectations(pending)
            decided = replace(first_stage(session, rounds.scope, chosen), decisions=decisions)
            withheld = find_withheld(decided, pending)
            if withheld is not None:
                pending = {key: withheld.explain(key, why) for key, why in pending.items()}
            opened_tasks = opened(Outcome(each.problem, decisions), rules, each.tiers, pending)
    moving = {e.task for e in each.clearing.evictions if e.to}
    for gang in each.problem.snapshot.gangs if moving else ():
        for task in gang.tasks:
            if task.key in moving:
                # A gang with a moved pod does not wait: its pods either run, or their owner
                # recreates them.
                pending.pop(task.gang, None)
    scope = _bound_over_all_plans(attempt, rounds.scope, chosen)
    certificate, num_cut_searches = certify(attempt, scope, chosen, pending)
    if has_refusals:
        limitations = (*certificate.limitations, "the verifier refused a plan")
        certificate = replace(certificate, limitations=limitations)
    if withheld is not None:
        certificate = replace(certificate, kept_idle=(withheld.sentence,))
    flaws: tuple[Flaw, ...] = ()
    if explains:
        with session.clock.measure("explain"):
            reads_topology = rules.find_rule("network-topology") is not None
            flaws = find_flaws(session.given, session.unheld, reads_topology=reads_topology)
            protection = Protection(rounds.first.problem, session.rules, session.reach)
            keeping = protection.keeping(pending)
        pending |= {key: with_budgets(pending[key], kept) for key, kept in keeping.items()}
        if keeping:
            named = {key for kept in keeping.values() for key in kept}
            budgets = (b for b in rounds.first.problem.snapshot.budgets if b.key in named)
            protected = session.protected_namespaces
            flaws = (*flaws, *budget_flaws(b for b in budgets if b.namespace not in protected))
    if session.separated:
        pending |= {gang.key: gang.problem for gang in session.separated if gang.problem}
        pending = dict(sorted(pending.items()))
    plan = Plan(chosen.actions or (), certificate, pending)
    return Certified(plan, opened_tasks, flaws, num_cut_searches)


def first_stage(session: SessionInput, scope: EvictionScope, chosen: Candidate) -> Decided:
    """Return a candidate's decisions before lending, as input for the lending stage."""
    over_gangs = scope.certify(chosen)[0]
    return Decided(
        problem=chosen.round.problem,
        rules=session.policy.rules,
        tiers=chosen.round.tiers,
        decisions=chosen.solution.decisions,
        actions=chosen.actions or (),
        counts_all={"admission", "tasks"} <= set(session.policy.levels),
        is_proved=are_optimal(over_gangs),
    )


def certify(
    attempt: Attempt,
    scope: EvictionScope,
    chosen: Candidate,
    pending: Mapping[str, Reason] | None = None,
) -> tuple[Certificate, Mapping[str, int]]:
    """Return a candidate's certificate, and how many device searches each limit stopped."""
    session = attempt.session
    rules, solution = session.policy.rules, chosen.solution
    actions = chosen.actions or ()
    if not session.is_optimised and any(
        isinstance(a, Evict) and a not in attempt.shuffled for a in actions
    ):
        # The greedy pipeline evicts pods while it places other pods, so its plan is evaluated again
        # with terminating victims.
        previous = chosen.round.problem
        chosen = attempt.evaluate(actions, previous, solution.decisions, solution.stopped)
        solution = chosen.solution
    problem = chosen.round.problem
    over_gangs, over_victims, over_nodes = scope.certify(chosen)
    limitations = list(scope.limitations((*over_gangs, *over_victims)))
    lent = () if chosen.lending is None else chosen.lending.results
    if not are_optimal(lent):
        limitations.append(LENT_LAST)
    limitations += chosen.limitations
    left_out = sorted({*chosen.dropped, *session.left_out})
    if left_out:
        limitations.append(f"gangs left out: {', '.join(left_out)}")
    waiting = (*problem.blocked.values(), *(gang.problem for gang in session.separated))
    if num_later := sum(map(is_deferred, waiting)):
        limitations.append(f"{count_noun(num_later, 'gang')} left to a later session")
    if session.num_coarse_terms:
        what = count_noun(session.num_coarse_terms, "affinity term")
        limitations.append(f"widened or dropped beyond the limit: {what} of running pods")
    if session.protected_namespaces:
        names = ", ".join(session.protected_namespaces)
        limitations.append(f"no evictions, because of too many disruption budgets: {names}")
    num_cut_searches = count_cut_searches(problem)
    if num_cut_searches:
        cuts = (f"{number} by {limit}" for limit, number in sorted(num_cut_searches.items()))
        limitations.append(f"device searches stopped by limits: {', '.join(cuts)}")
    if rules.unmodelled:
        limitations.append(
            f"rules without a constraint for the solver: {', '.join(rules.unmodelled)}"
        )
    levels = (*over_gangs, *over_victims, *lent, *over_nodes)
    is_optimal = are_optimal(levels)
    explains, outcome = session.context.explains, Outcome(problem, chosen.decisions)
    certificate = Certificate(
        levels=levels,
        engine=solution.engine,
        seconds=sum(session.clock.seconds.values()),
        stopped=solution.stopped,
        relaxed=() if is_optimal else solution.relaxed,
        shares=queue_shares(outcome, rules, pending) if explains else (),
        limitations=tuple(limitations),
    )
    return certificate, num_cut_searches


def _explain_hopeless(rounds: Rounds, pending: Mapping[str, Reason]) -> dict[str, Reason]:
    """Return more precise reasons for waiting, keyed by gang, for gangs that no eviction helps."""
    gangs = rounds.first.problem.snapshot.gangs
    found = ((gangs[g].key, reason) for g, reason in rounds.hopeless.items())
    return {
        key: reason
        for key, reason in found
        if reason is not None and key in pending and pending[key].code in _LACKS_CAPACITY
    }


def _bound_over_all_plans(
    attempt: Attempt, scope: EvictionScope, chosen: Candidate
) -> EvictionScope:
    """Return `scope`; if possible, add bounds for all plans that the policy allows."""
    session, first = attempt.session, scope.first
    solver, clock = session.context.solver, session.clock
    if not session.is_optimised or solver is None or clock.is_late:
        return scope
    if not scope.is_open and first.solutions[0].stopped not in UNBOUNDED:
        return scope
    values = scope.values_of(chosen)
    over_gangs, over_victims, _ = scope.certify(chosen)
    is_proved = are_optimal((*over_gangs, *over_victims))
    if values is None or is_proved or clock.left_ms() == 0:
        return scope
    with clock.measure("bound"):
        bounds = bound_with_evictions(
            first.problem,
            session.rules,
            (first.tiers, first.levels),
            values,
            session.reach_with_moves,
            (solver, clock.limits, clock.left_ms),
        )
    return replace(scope, bounds=bounds)
