"""The searches of an attempt: its rounds with and without victims, and the plans that compete.

What a search finds depends on how its time is divided: a longer one alone may end with a worse
plan. A large budget therefore begins with the searches of a tenth of it, and their plans compete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import LevelStatus
from optsched.session.eviction_rounds import Rounds, decide_evictions
from optsched.session.pipeline_candidates import list_candidates, list_searched
from optsched.session.rounds import place_pods
from optsched.session.search_history import History, Listener
from optsched.solver.preemption.sequential.stage import EvictionPlan

if TYPE_CHECKING:
    from optsched.problem.problem import Problem
    from optsched.session.attempt import Attempt
    from optsched.session.candidates import Candidate
    from optsched.session.warm_start import WarmStart
    from optsched.solver.cpsat.level_model import LevelModel, Limits
    from optsched.solver.cpsat.process import OnStep, Solved, Solver


@dataclass(frozen=True, eq=False)
class Searched:
    """The rounds of the longest search, and the candidates of all searches."""

    rounds: Rounds
    candidates: list[Candidate]


def run_searches(attempt: Attempt) -> Searched:
    """Search with a small part of the budget where it is large, then with all that is left."""
    session = attempt.session
    known, warm_start = attempt.reserved.problem, session.context.warm_start
    earlier: list[Candidate] = []
    # An earlier session has been through the shorter searches, if this one resumes it.
    may_begin_shorter = session.is_optimised and not session.context.start
    for limits in session.clock.shorter_limits if may_begin_shorter else ():
        brief = _shorten(attempt, limits)
        rounds = _decide(brief, known, warm_start)
        session.clock.add(brief.session.clock)
        if _is_proved(rounds) or _has_only_proofs(brief):
            session.history.adopt(brief.session.history)
            return Searched(rounds, list_candidates(attempt, rounds))
        earlier = [*list_searched(rounds), *earlier]
        known = rounds.first.problem
    rounds = _decide(attempt, known, warm_start)
    # Why the session ended is why its last search did.
    stopped = rounds.first.answers[0].stopped
    earlier = [replace(c, answer=replace(c.answer, stopped=stopped)) for c in earlier]
    return Searched(rounds, [*list_candidates(attempt, rounds), *earlier])


def _shorten(attempt: Attempt, limits: Limits) -> Attempt:
    """Return the attempt with limits of its own; its progress is not reported yet."""
    session = attempt.session
    clock = session.clock.begin_shorter(limits)
    watch = None if session.context.watch is None else Listener(lambda _: None)
    history = History(watch, session.clock.elapsed_s)
    context = session.context
    if limits.budget_ms is None and context.solver is not None:
        context = replace(context, solver=_ProofRecorder(context.solver))
    return replace(attempt, session=replace(session, clock=clock, history=history, context=context))


class _ProofRecorder:
    """A solver that records whether it has proved every level of every model."""

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


def _has_only_proofs(attempt: Attempt) -> bool:
    """Whether more work would find nothing else; unknown where searches depend on a clock."""
    solver = attempt.session.context.solver
    return isinstance(solver, _ProofRecorder) and solver.has_proved


def _decide(attempt: Attempt, previous: Problem | None, warm_start: WarmStart | None) -> Rounds:
    """Place pods without evictions, then search for victims for the gangs that wait."""
    start = attempt.reserved.snapshot
    return decide_evictions(
        attempt, place_pods(attempt, start, EvictionPlan(), previous, warm_start)
    )


def _is_proved(rounds: Rounds) -> bool:
    """Whether no search can find a better plan."""
    results = rounds.first.answers[0].results
    return not rounds.can_evict and all(r.status is LevelStatus.OPTIMAL for r in results)
