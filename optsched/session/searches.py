"""The searches of an attempt: rounds with and without victims, and the candidate plans.

The result of a search depends on how the search divides its time, so a longer search may find a
worse plan. With a large time budget, the session therefore first runs searches with a tenth of the
budget. The plans of the shorter searches also become candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.decisions import are_optimal
from optsched.cluster.snapshot import GangPhase
from optsched.plugins.extension_points import is_node_level
from optsched.problem.compile import compile_problem
from optsched.problem.running import running_tasks
from optsched.session.backfill_reservations import reserve
from optsched.session.candidates import Candidate, rank_candidates
from optsched.session.decompile import actions_of
from optsched.session.eviction_rounds import Rounds, decide_evictions
from optsched.session.repair import repair_candidate
from optsched.session.rounds import pipeline_with_evictions, place_pods
from optsched.session.search_history import History, Listener
from optsched.solver.portfolio import NO_SOLVER, evaluate_greedy
from optsched.solver.preemption.sequential.stage import EvictionPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.decisions import Progress
    from optsched.problem.problem import Problem
    from optsched.session.attempt import Attempt
    from optsched.session.candidates import Round
    from optsched.session.evicting_pipeline import EvictingPipeline
    from optsched.session.eviction_rounds import Rounds
    from optsched.session.ports import Watch
    from optsched.session.warm_start import WarmStart
    from optsched.solver.cpsat.level_model import LevelModel, Limits
    from optsched.solver.cpsat.process import OnStep, Solved, Solver


@dataclass(frozen=True, eq=False)
class Searched:
    """The rounds of the longest search, and the candidate plans of all searches."""

    rounds: Rounds
    candidates: list[Candidate]


def run_searches(attempt: Attempt) -> Searched:
    """Run shorter searches if the time budget is large, then the main search in the time left."""
    session = attempt.session
    known, warm_start = attempt.reserved.problem, session.context.warm_start
    earlier: list[Candidate] = []
    # A resumed session skips the shorter searches, which the earlier session ran.
    may_begin_shorter = session.is_optimised and not session.context.start
    for limits in session.clock.shorter_limits if may_begin_shorter else ():
        brief = _shorten(attempt, limits)
        rounds = _decide(brief, known, warm_start)
        session.clock.add(brief.session.clock)
        results, solver = rounds.first.solutions[0].results, brief.session.context.solver
        # Further searches would change nothing if no pod may be evicted and all levels are optimal,
        # or if all solves proved optimality. Whether all solves proved optimality is recorded only
        # for searches without a time limit.
        is_proved = not rounds.can_evict and are_optimal(results)
        if is_proved or (isinstance(solver, _ProofRecorder) and solver.has_proved):
            session.history.adopt(brief.session.history)
            return Searched(rounds, list_candidates(attempt, rounds))
        earlier = [*list_searched(rounds), *earlier]
        known = rounds.first.problem
    rounds = _decide(attempt, known, warm_start)
    # All candidates report why the last search stopped, because the session ends with this search.
    stopped = rounds.first.solutions[0].stopped
    earlier = [replace(c, solution=replace(c.solution, stopped=stopped)) for c in earlier]
    return Searched(rounds, [*list_candidates(attempt, rounds), *earlier])


def _shorten(attempt: Attempt, limits: Limits) -> Attempt:
    """Return the attempt with the given limits, and with a history that reports only previews."""
    session = attempt.session
    clock = session.clock.begin_shorter(limits)
    context = session.context
    watch = None if context.watch is None else Listener(_Preview(context.watch).show_progress)
    history = History(watch, session.clock.elapsed_s)
    if limits.budget_ms is None and context.solver is not None:
        context = replace(context, solver=_ProofRecorder(context.solver))
    return replace(attempt, session=replace(session, clock=clock, history=history, context=context))


_QUIET_S: Final = 2.0
"""Number of seconds for which a shorter search must run before its progress is shown."""


class _Preview:
    """Previews the progress of a shorter search that takes longer than `_QUIET_S`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._early: list[Progress] = []

    def show_progress(self, progress: Progress) -> None:
        """Preview progress, but only once the search has taken `_QUIET_S` seconds."""
        self._early.append(replace(progress, turn=0))
        if progress.at_s < _QUIET_S:
            return
        for each in self._early:
            self._watch.previewed(each)
        self._early.clear()


class _ProofRecorder:
    """A solver that records whether all levels of all models were proved optimal."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self.has_proved = True

    def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
        """See `Solver`."""
        solved = self._solver.solve(model, limits, on_step)
        proved = {u.level for u in solved.updates if limits.suffices(u.value, u.bound)}
        self.has_proved &= len(proved) == len(model.objectives)
        return solved

    def close(self) -> None:
        """See `Solver`."""


def _decide(attempt: Attempt, previous: Problem | None, warm_start: WarmStart | None) -> Rounds:
    start = attempt.reserved.snapshot
    return decide_evictions(
        attempt, place_pods(attempt, start, EvictionPlan(), previous, warm_start)
    )


# --- candidates ----------------------------------------------------------------------------------


def list_candidates(attempt: Attempt, rounds: Rounds) -> list[Candidate]:
    """Return plans with and without evictions that the solver and the greedy pipeline propose."""
    first, session = rounds.first, attempt.session
    if not session.is_optimised:
        return [Candidate(first, first.solutions[0])]
    candidates = list_searched(rounds)
    best = rounds.cleared or first
    # If pods may be evicted, the greedy pipeline proposes a plan even if no time is left.
    if not _is_best(best, can_evict=rounds.can_evict) and (
        rounds.can_evict or session.clock.has_time
    ):
        candidates += propose_greedily(attempt, first, Candidate(best, best.solutions[0]))
    return candidates


def list_searched(rounds: Rounds) -> list[Candidate]:
    """Return all rounds' candidates: the solver's solutions and the greedy solutions."""
    candidates: list[Candidate] = []
    for each in (rounds.cleared, rounds.first, rounds.joint, rounds.reclaimed):
        if each is None:
            continue
        # If the solver returned the greedy pipeline's decisions, these decisions are added only
        # once.
        distinct = {id(solution.decisions): solution for solution in reversed(each.solutions)}
        candidates += [Candidate(each, solution) for solution in reversed(distinct.values())]
    return candidates


def _is_best(found: Round, *, can_evict: bool) -> bool:
    """Return whether a round is at least as good as any candidate on the levels over gangs.

    The bounds of a round hold only for the evictions of this round. If the policy permits other
    evictions, the round is best only if it reaches the ideal values.
    """
    solution = found.solutions[0]
    if can_evict:
        if found.clearing.evictions:
            return False
        solution = evaluate_greedy(found.problem, solution.decisions, found.levels, "")
    pairs = zip(found.levels, solution.results, strict=False)
    return are_optimal(result for level, result in pairs if not is_node_level(level))


def propose_greedily(attempt: Attempt, first: Round, best: Candidate) -> Iterator[Candidate]:
    """Yield plans of greedy pipelines that are better than `best`, with victims as in Volcano.

    The first pipeline orders gangs by the levels' tiers, and the second in the order of the
    plugins. The third pipeline prevents other gangs from using reserved capacity, as in a session
    without a solver. Gangs that evict pods without an entitlement are dropped. Dropping these gangs
    is not recorded as a repair, because the pipeline chooses victims by other rules.
    """
    session = attempt.session
    before = first.solutions[-1].decisions
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
    """Yield pipelines: gangs in the order of tiers, in the order of plugins, with reservations."""
    session, problem = attempt.session, first.problem
    is_gated = any(gang.phase is GangPhase.PENDING for gang in problem.snapshot.gangs)
    # Without victims, the pipeline in the order of tiers makes the same plan as the first round.
    if first.evicting is not None and (is_gated or len(running_tasks(problem))):
        yield first.evicting
    yield pipeline_with_evictions(attempt, problem, first.tiers, None)
    if attempt.reserved.reservations and session.clock.has_time:
        start = attempt.reserved.snapshot
        kept = reserve(start, session.policy, problem, is_ordered=False).snapshot
        # In the first two pipelines, entitled gangs may start on reserved capacity. In the third
        # pipeline, entitled gangs reclaim capacity or wait.
        strict = tuple(replace(b, entitled=frozenset(), entitlements=()) for b in kept.reservations)
        without = compile_problem(replace(kept, reservations=strict), problem)
        yield pipeline_with_evictions(attempt, without, first.tiers, None)
