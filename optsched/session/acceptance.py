"""Choose the best candidate plan that the verifier accepts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Plan
from optsched.problem.decisions import Decisions
from optsched.session.candidates import Candidate, rank_candidates
from optsched.session.certification import certify, first_stage
from optsched.session.lending import lend_idle
from optsched.session.loans_before_victims import lend_before_victims
from optsched.session.priority_inversions import avoid_inversions
from optsched.session.repair import (
    Repair,
    blame_custom_rules,
    name_users_as_preemptors,
    repair_candidate,
    trim_candidate,
)
from optsched.session.searches import propose_greedily
from optsched.solver.portfolio import Solution, SolveRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.reasons import Reason
    from optsched.plugins.extension_points import Violation
    from optsched.session.attempt import Attempt
    from optsched.session.bounds import EvictionScope
    from optsched.session.eviction_rounds import Rounds

NOTHING = "none"
"""Engine name of a plan without actions, which is used if every other plan violates a rule."""


@dataclass(frozen=True, eq=False)
class Accepted:
    """The candidate that the verifier accepted, and the violations of rejected candidates.

    Attributes
    ----------
    candidate
        The accepted candidate, or a plan without actions if all candidates were rejected.
    violations
        The rule violations of rejected candidates.
    blocked
        Maps a gang's key to the reason why rules of custom plugins reject the gang.
    repairs
        For each rejected candidate that was repaired, the dropped gangs and a violation.
    kept_at
        Where the last rejected plan and its snapshot are stored.

    """

    candidate: Candidate
    violations: tuple[Violation, ...] = ()
    blocked: Mapping[str, Reason] = field(default_factory=dict)
    repairs: tuple[Repair, ...] = ()
    kept_at: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether the verifier rejected every candidate."""
        return self.candidate.solution.engine == NOTHING


def accept_candidate(
    attempt: Attempt, rounds: Rounds, candidates: Sequence[Candidate], *, is_last: bool
) -> Accepted:
    """Return the best candidate that satisfies every hard rule, or a plan without actions.

    A rejected candidate is repaired, and the repaired candidate is ranked with the others. If only
    rules of custom plugins reject a candidate, it is repaired only in the last attempt. An earlier
    attempt drops the candidate, and the next attempt excludes the gangs that the custom rules
    reject.
    """
    session, first = attempt.session, rounds.first
    found: list[Violation] = []
    repairs: list[Repair] = []
    blocked: dict[str, Reason] = {}
    kept_at = ""
    waiting = rank_candidates(candidates)
    while waiting:
        best = waiting.pop(0)
        best = attempt.with_actions(best)
        lend = partial(_lend_and_verify, attempt, rounds.scope)
        lent, violations = lend(best)
        if not violations:
            lent = lend_before_victims(attempt, rounds.scope, best, lent, lend)
            lent = avoid_inversions(attempt, lent, waiting, lend)
            return Accepted(lent, tuple(found), blocked, tuple(repairs), kept_at)
        trimmed = trim_candidate(attempt, best)
        if trimmed is not None:
            waiting = rank_candidates([trimmed, *waiting])
            continue
        is_first_refusal = not found
        found += violations
        actions = best.actions or ()
        blamed = blame_custom_rules(attempt.before, session.rules, actions, violations)
        blocked |= blamed
        if session.context.incidents is not None and not blamed:
            plan = Plan(actions, certify(attempt, rounds.scope, best)[0])
            answers = session.extenders.entries
            recorded = replace(attempt.before, answers=answers) if answers else attempt.before
            kept_at = session.context.incidents.violated(recorded, plan, violations)
        if blamed and not is_last:
            continue
        repaired = repair_candidate(attempt, best, violations)
        if repaired is not None:
            repairs.append(Repair(repaired.dropped, violations[0]))
            waiting = rank_candidates([repaired, *waiting])
        # So far, the greedy pipeline has proposed only plans that are better than the rejected
        # plan. Other plans of the greedy pipeline may still be better than the next candidate.
        if waiting and is_first_refusal and rounds.can_evict:
            greedy = propose_greedily(attempt, first, waiting[0])
            waiting = rank_candidates([*waiting, *greedy])
    solution = Solution(Decisions.nothing(first.problem), (), NOTHING, "no plan kept every rule")
    nothing = Candidate(first, solution, actions=())
    return Accepted(nothing, tuple(found), blocked, tuple(repairs), kept_at)


def _lend_and_verify(
    attempt: Attempt, scope: EvictionScope, chosen: Candidate
) -> tuple[Candidate, list[Violation]]:
    """Add loans to a candidate and verify it; return the candidate and its violations.

    Loans are placements beyond a queue's deserved share. If the verifier rejects the candidate with
    loans, the candidate without loans is verified and returned.
    """
    session, each = attempt.session, chosen.round
    lent = chosen
    with session.clock.measure("lend"):
        solver = session.context.solver
        limits = None if solver is None else session.clock.lending_limits
        request = None if solver is None or limits is None else SolveRequest(solver, limits)
        lending = lend_idle(first_stage(session, scope, chosen), request)
        if lending is not None:
            solution = replace(chosen.solution, decisions=lending.decisions)
            lent = replace(chosen, actions=attempt.list_actions(each, solution), lending=lending)
    with session.clock.measure("verify"):
        actions = lent.actions or ()
        violations = attempt.verify(each, actions)
        if violations:
            renamed = name_users_as_preemptors(attempt, actions)
            if renamed != actions and not attempt.verify(each, renamed):
                return replace(lent, actions=renamed), []
        if not violations or actions == chosen.actions:
            return lent, violations
        return chosen, attempt.verify(each, chosen.actions or ())
