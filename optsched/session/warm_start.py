"""Warm starts: placements that an earlier search found for pods that still wait.

Equal snapshots, policies, limits and warm starts give equal plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from optsched.cluster.decisions import Allocate, Nominate
from optsched.plugins.eviction.moves import CONSOLIDATE, SHUFFLE
from optsched.plugins.shares.proportion import own_shares
from optsched.problem.arrays import UNPLACED
from optsched.session.lending import find_shares
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.model.node_masks import allowed_nodes
from optsched.solver.portfolio import (
    NO_SOLVER,
    evaluate_greedy,
    fill_idle_capacity,
    find_nominated_gangs,
    find_tied_gangs,
    fix_decisions,
    is_no_worse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.decisions import Plan
    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.policy.policy import Policy
    from optsched.problem.arrays import I64
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.portfolio import Solution

EARLIER = "an earlier search"
"""Engine name of decisions that come from a warm start."""

LEAST_MS = 100
"""Minimum time budget of a search between sessions, in milliseconds."""

KEPT_MS = 50
"""Searches end this many milliseconds before the next session, so the session starts on time."""

MOST_ACTIONS = 20
"""A search runs while a plan is executed only if the plan has at most this many actions."""

FIRST_SEED = 1000
"""Seed of the first search between sessions; no session uses it."""

SEARCHES = ("solve", "victims", "consolidation", "bound")
"""The phases of a session that search for plans or bounds."""

_EVICTING = frozenset({"preempt", "gangpreempt", "reclaim", "gangreclaim", CONSOLIDATE, SHUFFLE})


@dataclass(frozen=True)
class WarmStart:
    """Placements of gangs, from which a search starts.

    Attributes
    ----------
    gangs
        Maps a gang's key to the nodes of its tasks, keyed by task.
    nominated
        Keys of gangs that are nominated, not placed, because they wait for terminating pods.

    """

    gangs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nominated: frozenset[str] = frozenset()

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """Return the placements of a plan; the next session drops the placements of bound tasks."""
        gangs: dict[str, dict[str, str]] = {}
        for action in plan.actions:
            if isinstance(action, Allocate):
                gangs.setdefault(action.gang, {})[action.task] = action.node
        nominated = {a.gang for a in plan.actions if isinstance(a, Nominate)}
        return cls(gangs, frozenset(nominated - gangs.keys()))

    @classmethod
    def from_decisions(cls, problem: Problem, decisions: Decisions) -> Self:
        """Return the placements in `decisions`, for another search in the same session."""
        gangs: dict[str, dict[str, str]] = {}
        all_gangs, nodes = problem.snapshot.gangs, problem.snapshot.nodes
        for t in np.flatnonzero(decisions.node_of >= 0).tolist():
            binds = gangs.setdefault(all_gangs[problem.gang_of[t]].key, {})
            binds[problem.tasks[t].key] = nodes[decisions.node_of[t]].name
        waiting = np.unique(problem.gang_of[decisions.nominated >= 0]).tolist()
        return cls(gangs, frozenset({all_gangs[g].key for g in waiting} - gangs.keys()))


def without_evictions(policy: Policy) -> Policy:
    """Return the policy without evictions and moves, for a search between sessions."""
    return replace(policy, actions=tuple(a for a in policy.actions if a not in _EVICTING))


def limits_between_sessions(
    plan: Plan, seconds: Mapping[str, float], left_ms: int, repeats: int
) -> Limits | None:
    """Return the limits of a search between sessions; None if the search is useless or too short.

    A search is useful if gangs wait, the plan is not proved optimal, and the plan has few enough
    actions that time remains. The phases without a search are assumed to take as long as in the
    last session.

    Parameters
    ----------
    plan, seconds
        The last session's plan, and the seconds of each of its phases.
    left_ms
        The wall time in milliseconds until the next session may begin.
    repeats
        Number of consecutive sessions with the same input that changed nothing. Each repetition
        uses another seed.

    """
    if plan.certificate.is_proved or not plan.pending or len(plan.actions) > MOST_ACTIONS:
        return None
    others_s = sum(s for phase, s in seconds.items() if phase not in SEARCHES)
    budget_ms = left_ms - int(others_s * 1000) - KEPT_MS
    return Limits(budget_ms=budget_ms, seed=FIRST_SEED + repeats) if budget_ms >= LEAST_MS else None


def start_from(
    problem: Problem,
    rules: RuleSet,
    goal: tuple[Tiers, Sequence[AnyLevel]],
    warm_start: WarmStart,
    greedy: Solution,
) -> Solution | None:
    """Return a solution with a warm start's valid placements and further greedy placements.

    A gang of the warm start is dropped if one of its tasks no longer waits, or if a node was
    deleted or lacks idle capacity. It is also dropped if the greedy pipeline's decision on the gang
    is final (`Solution.final`). The solution is not verified yet.

    Returns
    -------
    Solution | None
        The solution, or None if no gang is left or if the greedy solution is at least as good.

    """
    tiers, levels = goal
    base = greedy.decisions
    # The greedy nominations of other gangs may conflict with the warm start, so they are dropped.
    is_waiting = [gang.key in warm_start.nominated for gang in problem.snapshot.gangs]
    final = find_nominated_gangs(problem, base) & np.array(is_waiting, np.bool_)
    final[list(greedy.final)] = True
    node_of = _place_gangs(fix_decisions(problem, base, final), rules, tiers, warm_start)
    if not (node_of >= 0).any():
        return None
    of_final = final[problem.gang_of]
    nominated = np.where(of_final, base.nominated, UNPLACED)
    node_of = np.where(of_final, base.node_of, node_of)
    decisions = replace(base, node_of=node_of, nominated=nominated)
    start = evaluate_greedy(problem, decisions, levels, NO_SOLVER)
    start = replace(start, engine=EARLIER, final=greedy.final)
    start = fill_idle_capacity(problem, rules, goal, start, find_tied_gangs(problem, rules)[0])
    values, known = ([r.value for r in a.results] for a in (start, greedy))
    return start if values != known and is_no_worse(levels, values, known) else None


def _place_gangs(problem: Problem, rules: RuleSet, tiers: Tiers, warm_start: WarmStart) -> I64:
    """Place the gangs that still fit, in order of importance; return the tasks' nodes (T,)."""
    node_of = np.full(problem.num_tasks, UNPLACED, np.int64)
    index_of = {node.name: n for n, node in enumerate(problem.snapshot.nodes)}
    is_open = problem.shape_of >= 0
    gangs = [
        g
        for g, gang in enumerate(problem.snapshot.gangs)
        if is_open[g] and problem.queue_of[g] >= 0 and gang.key in warm_start.gangs
    ]
    idle, allowed = problem.idle.copy(), None
    # Gangs that exceed their queue's remaining share are not placed, because loans are decided
    # last.
    due = own_shares(problem) - problem.queues.allocated if find_shares(rules) is not None else None
    for g in sorted(gangs, key=lambda g: (int(tiers.of[g]), g)):
        binds = warm_start.gangs[problem.snapshot.gangs[g].key]
        first, end = problem.task_start[g : g + 2].tolist()
        task_of = {problem.tasks[t].key: t for t in range(first, end)}
        if not (binds.keys() <= task_of.keys() and set(binds.values()) <= index_of.keys()):
            continue
        tasks = np.array([task_of[key] for key in binds], np.int64)
        nodes = np.array([index_of[name] for name in binds.values()], np.int64)
        allowed = allowed_nodes(problem, rules) if allowed is None else allowed
        request = problem.classes.request[problem.task_class[tasks]]
        idle_after, queue, gain = idle.copy(), int(problem.queue_of[g]), request.sum(axis=0)
        np.subtract.at(idle_after, nodes, request)
        is_due = due is None or (gain <= due[queue])[gain > 0].all()
        is_allowed = is_due and allowed[problem.task_class[tasks], nodes].all()
        if is_allowed and (idle_after[nodes] >= 0).all():
            idle, node_of[tasks] = idle_after, nodes
            if due is not None:
                due[queue] -= gain
    return node_of
