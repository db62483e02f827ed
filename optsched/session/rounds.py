"""Rounds, in which first the greedy pipeline and then the solver place the pods of a snapshot."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.plugins.custom.isolation import PluginFailure
from optsched.plugins.objectives.levels import build_levels
from optsched.problem.arrays import UNPLACED
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import find_nominations
from optsched.session.bounds import can_evict
from optsched.session.candidates import Round
from optsched.session.evicting_pipeline import EvictingPipeline
from optsched.session.search_history import PROVED_BEFORE, resume_incumbent
from optsched.session.warm_start import start_from
from optsched.solver.cpsat.process import OverlappingSolver
from optsched.solver.greedy.gang_preemption import GangPreemptionOptions
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from optsched.solver.portfolio import (
    IDEAL,
    NO_SOLVER,
    SolveRequest,
    evaluate_greedy,
    improve,
    is_ideal,
)
from optsched.solver.preemption.sequential.stage import EvictionPlan

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from optsched.cluster.snapshot import Snapshot
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.session.attempt import Attempt
    from optsched.session.warm_start import WarmStart
    from optsched.solver.portfolio import Solution


def place_pods(
    attempt: Attempt,
    snapshot: Snapshot,
    clearing: EvictionPlan,
    previous: Problem | None,
    warm_start: WarmStart | None,
    kept_ms: int = 0,
) -> Round:
    """Place the pods of a snapshot in which the victims of `clearing` are terminating.

    `previous` is a problem that speeds up compiling and does not change the result. The search
    starts from the placements of the warm start or of the greedy pipeline, whichever are better,
    and leaves `kept_ms` milliseconds for later searches.
    """
    session = attempt.session
    policy, measure = session.policy, session.clock.measure
    with measure("compile"):
        problem = compile_problem(snapshot, previous)
        tiers = attempt.find_tiers(problem)
        levels = build_levels(problem, policy.rules, tiers, policy.levels)
    with measure("greedy"):
        options = greedy_options(attempt, problem, tiers, clearing)
        decisions = run_greedy(problem, policy.rules, options)
        greedy = evaluate_greedy(problem, decisions, levels, NO_SOLVER)
        greedy = replace(greedy, final=tuple(options.nominations))
    evicting = None
    if session.is_optimised and not clearing.evictions:
        evicting = pipeline_with_evictions(attempt, problem, tiers, tiers.of)
    greedy_round = Round(problem, tiers, levels, (greedy,), clearing, evicting)
    with measure("solve"):
        start = _find_start(attempt, greedy_round, warm_start)
        best = _solve(attempt, greedy_round, start, kept_ms)
        session.history.end(problem, best)
    return replace(greedy_round, solutions=(best, greedy))


def greedy_options(
    attempt: Attempt, problem: Problem, tiers: Tiers, clearing: EvictionPlan
) -> GreedyOptions:
    """Return the greedy pipeline's options for a round."""
    session = attempt.session
    policy = session.policy
    arguments = {name: dict(values) for name, values in policy.action_arguments}
    plain = GangPreemptionOptions()
    by_gang = {
        name: GangPreemptionOptions(
            int(values.get("maxDomains", plain.max_domains)),
            bool(values.get("allowWholeBundle", plain.allow_whole)),
        )
        for name, values in arguments.items()
    }
    return GreedyOptions(
        actions=policy.actions,
        tier_of=tiers.of if session.is_optimised else None,
        nominations={**find_nominations(problem), **clearing.nominations},
        by_gang=by_gang,
        weighs_nodes=bool(arguments.get("preempt", {}).get("enableTopologyAwarePreemption", False)),
        gated=not session.is_optimised,
        late=attempt.reserved.late(problem),
        proposers=policy.proposers,
        faults=session.faults,
    )


def pipeline_with_evictions(
    attempt: Attempt, problem: Problem, tiers: Tiers, tier_of: I64 | None
) -> EvictingPipeline:
    """Return an evicting pipeline; `tier_of` (G,) replaces the gang order of the plugins."""
    session = attempt.session
    options = replace(greedy_options(attempt, problem, tiers, EvictionPlan()), tier_of=tier_of)
    return EvictingPipeline(problem, session.policy.rules, options, session.clock)


def _find_start(attempt: Attempt, each: Round, warm_start: WarmStart | None) -> Solution:
    """Return the solution from which a round's search starts.

    A search starts from the incumbent of the same search in an earlier session or, failing that,
    from the warm start. If the incumbent and the warm start violate rules, the search starts from
    the greedy solution.
    """
    session, greedy = attempt.session, each.solutions[0]
    context, turn = session.context, session.history.turn + 1
    for incumbent in context.start:
        if incumbent.turn != turn:
            continue
        solution = resume_incumbent(each.problem, each.levels, incumbent, greedy)
        if solution is not None and not attempt.verify_start(each, solution):
            return solution
    if not session.is_optimised or warm_start is None:
        return greedy
    goal = (each.tiers, each.levels)
    found = (
        start_from(each.problem, session.policy.rules, goal, warm_start, base)
        for base in _list_bases(each)
    )
    starts = [solution for solution in found if solution is not None]
    starts.sort(key=lambda s: [r.value if r.sense is Sense.MIN else -r.value for r in s.results])
    for solution in starts:
        if not attempt.verify_start(each, solution):
            return solution
    return greedy


def _list_bases(each: Round) -> list[Solution]:
    """Return the greedy solution, and a copy in which preemptors are nominated, not placed.

    A preemptor that starts on idle capacity may occupy a node that the warm start needs for another
    gang. Both solutions have the same values on all levels.
    """
    greedy = each.solutions[0]
    decisions = greedy.decisions
    is_preemptor = np.zeros(each.problem.num_gangs, np.bool_)
    is_preemptor[list(each.clearing.nominations)] = True
    starts = is_preemptor[each.problem.gang_of] & (decisions.node_of >= 0)
    if not starts.any():
        return [greedy]
    nominated = np.where(starts, decisions.node_of, decisions.nominated)
    node_of = np.where(starts, UNPLACED, decisions.node_of)
    waiting = replace(decisions, node_of=node_of, nominated=nominated)
    return [greedy, replace(greedy, decisions=waiting)]


def _solve(attempt: Attempt, each: Round, start: Solution, kept_ms: int) -> Solution:
    """Return the solver's solution, or `start` if its values are ideal or no solver is used."""
    session, problem, levels = attempt.session, each.problem, each.levels
    rules, solver = session.policy.rules, session.context.solver
    progress_callback = session.history.begin(problem, levels, start)
    if not session.is_optimised or solver is None:
        return start
    if is_ideal(problem, rules, levels, start):
        return replace(start, stopped=PROVED_BEFORE if start.proved else IDEAL)
    limits = session.clock.placement_limits(kept_ms)
    request = SolveRequest(solver, limits, progress_callback)
    try:
        with _overlapped(attempt, each):
            return improve(problem, rules, (each.tiers, levels), start, request)
    except PluginFailure as e:
        return replace(start, stopped=f"plugin {e.fault.plugin} failed")


def _overlapped(attempt: Attempt, each: Round) -> AbstractContextManager[None]:
    """Return a context manager that runs the evicting pipeline while the solver works.

    The evicting pipeline runs only if pods may be evicted; otherwise, the session does not read its
    plan. Failures of plugins in the pipeline are suppressed, because they recur when the plan is
    read.
    """
    session, evicting = attempt.session, each.evicting
    solver = session.context.solver
    if evicting is None or not isinstance(solver, OverlappingSolver):
        return nullcontext()
    if not can_evict(each.problem, session.rules, session.reach_with_moves):
        return nullcontext()

    def prepare() -> None:
        with suppress(PluginFailure):
            _ = evicting.decisions

    return solver.overlap(prepare)
