"""Candidate plans of an attempt: those of its rounds, and those of the greedy pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import LevelStatus
from optsched.cluster.snapshot import GangPhase
from optsched.plugins.extension_points import is_node_level
from optsched.problem.compile import compile_problem
from optsched.problem.running import running_tasks
from optsched.session.backfill_reservations import reserve
from optsched.session.candidates import Candidate, rank_candidates
from optsched.session.decompile import actions_of
from optsched.session.repair import repair_candidate
from optsched.session.rounds import pipeline_with_evictions
from optsched.solver.portfolio import NO_SOLVER, evaluate_greedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.session.attempt import Attempt
    from optsched.session.candidates import Round
    from optsched.session.evicting_pipeline import EvictingPipeline
    from optsched.session.eviction_rounds import Rounds


def list_candidates(attempt: Attempt, rounds: Rounds) -> list[Candidate]:
    """Return the plans that the solver and the pipeline propose, with and without evictions."""
    first, session = rounds.first, attempt.session
    if not session.is_optimised:
        return [Candidate(first, first.answers[0])]
    candidates = list_searched(rounds)
    best = rounds.cleared or first
    # Where pods may be evicted the pipeline proposes a plan, however little time is left.
    if not _is_best(best, can_evict=rounds.can_evict) and (
        rounds.can_evict or session.clock.has_time
    ):
        candidates += propose_greedily(attempt, first, Candidate(best, best.answers[0]))
    return candidates


def list_searched(rounds: Rounds) -> list[Candidate]:
    """Return the plans of rounds: those of the solver, and those with which it began."""
    candidates: list[Candidate] = []
    for each in (rounds.cleared, rounds.first, rounds.joint):
        if each is None:
            continue
        # Where the solver has kept the pipeline's decisions they compete only once.
        distinct = {id(answer.decisions): answer for answer in reversed(each.answers)}
        candidates += [Candidate(each, answer) for answer in reversed(distinct.values())]
    return candidates


def _is_best(found: Round, *, can_evict: bool) -> bool:
    """Whether no other candidate can be better on a level over gangs.

    The bounds of a round know nothing of evictions beyond its own: where the policy allows some,
    only ideals count.
    """
    answer = found.answers[0]
    if can_evict:
        if found.clearing.evictions:
            return False
        answer = evaluate_greedy(found.problem, answer.decisions, found.levels, "")
    pairs = zip(found.levels, answer.results, strict=False)
    return all(
        result.status is LevelStatus.OPTIMAL for level, result in pairs if not is_node_level(level)
    )


def propose_greedily(attempt: Attempt, first: Round, best: Candidate) -> Iterator[Candidate]:
    """Yield plans of the pipeline with Volcano's choice of victims, where they beat the best one.

    The first one orders gangs by the tiers of the levels, the second by the plugins. The third
    keeps other gangs off reserved capacity, as a session without a solver does. Gangs whose victims
    no gang of this policy is entitled to are dropped. The pipeline follows other rules, so this is
    no defect and counts as no repair.
    """
    session = attempt.session
    before = first.answers[-1].decisions
    for number, pipeline in enumerate(_list_pipelines(attempt, first)):
        if number and not session.clock.has_time:
            return
        with session.clock.measure("greedy"):
            decisions = pipeline.decisions
            if decisions.equals(before):
                continue
            before = decisions
            actions = attempt.with_devices(actions_of(pipeline.problem, decisions, first.tiers))
            found = attempt.evaluate(actions, first.problem, decisions, NO_SOLVER)
        if rank_candidates([best, found])[0] is best:
            continue
        violations = attempt.verify(found.round, actions)
        kept = repair_candidate(attempt, found, violations) if violations else found
        if kept is not None:
            yield replace(kept, dropped=())


def _list_pipelines(attempt: Attempt, first: Round) -> Iterator[EvictingPipeline]:
    """Yield the pipelines with evictions: by the tiers of the levels, and by plugins alone."""
    session, problem = attempt.session, first.problem
    is_gated = any(gang.phase is GangPhase.PENDING for gang in problem.snapshot.gangs)
    # Without victims the order of tiers gives the plan of the first round.
    if first.evicting is not None and (is_gated or len(running_tasks(problem))):
        yield first.evicting
    yield pipeline_with_evictions(attempt, problem, first.tiers, None)
    if attempt.reserved.bookings and session.clock.has_time:
        start = attempt.reserved.snapshot
        kept = reserve(start, session.policy, problem, is_ordered=False).snapshot
        without = compile_problem(kept, problem)
        yield pipeline_with_evictions(attempt, without, first.tiers, None)
