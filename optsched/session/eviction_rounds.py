"""Evict or move pods to free capacity for gangs that do not fit into idle capacity."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Evict, Sense
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM
from optsched.plugins.eviction.moves import CONSOLIDATE
from optsched.plugins.extension_points import is_node_level
from optsched.plugins.objectives.gang_levels import Started
from optsched.problem.compile import compile_problem
from optsched.session.bounds import EvictionScope, can_evict
from optsched.session.candidates import Candidate, rank_candidates
from optsched.session.repair import drop_invalid, drop_needless_victims
from optsched.session.rounds import place_pods
from optsched.session.session_input import EVICTING
from optsched.session.warm_start import WarmStart
from optsched.solver.consolidation.stage import MoveSearchSettings, consolidate
from optsched.solver.preemption.joint.solution import find_victims_jointly, is_solvable_within
from optsched.solver.preemption.sequential.stage import (
    EvictionPlan,
    VictimSearchSettings,
    count_victims,
    find_victims,
)
from optsched.solver.preemption.sequential.trial import has_custom_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Snapshot
    from optsched.session.attempt import Attempt
    from optsched.session.candidates import Round

_MAX_TRIES = 3
"""Maximum number of searches for victims.

A search is repeated if a gang cannot use the capacity freed for it.
"""


@dataclass(frozen=True, eq=False)
class Rounds:
    """The rounds of an attempt, with and without evictions.

    Attributes
    ----------
    first
        The round without evictions.
    cleared
        The round in which pods are evicted or moved for gangs that wait in `first`, or None if this
        helps no gang.
    joint
        The round with victims chosen jointly for all gangs, or None if it is no improvement.
    reclaimed
        The round in which gangs that preempt pods in `cleared` reclaim pods instead, or None if
        `cleared` is better than `first` or no gang can reclaim pods.
    hopeless
        Maps the index of each gang that no eviction helps to the reason, or to None if unknown.
    can_evict
        Whether the policy permits evicting or moving a pod for any waiting gang.

    """

    first: Round
    cleared: Round | None = None
    joint: Round | None = None
    reclaimed: Round | None = None
    hopeless: Mapping[int, Reason | None] = field(default_factory=dict)
    can_evict: bool = False

    @property
    def scope(self) -> EvictionScope:
        """The plans for which the bounds of a certificate must hold."""
        return EvictionScope(self.first, self.can_evict)


def decide_evictions(attempt: Attempt, first: Round) -> Rounds:
    """Search for pods to evict or move for the gangs that still wait after the first round.

    The policy may list the evicting actions before or after the action that moves pods. The second
    of the two kinds of actions is tried only if the first kind helps no gang.
    """
    session = attempt.session
    if not session.is_optimised:
        return Rounds(first)
    cleared: Round | None = None
    hopeless: Mapping[int, Reason | None] = {}
    has_joint = is_solvable_within(first.problem, session.clock.joint_budget_ms)
    kept_ms = session.clock.joint_budget_ms or 0 if has_joint else 0
    actions = session.policy.actions
    ways = [False]
    if CONSOLIDATE in actions:
        evicting = [i for i, action in enumerate(actions) if action in EVICTING]
        moves_first = actions.index(CONSOLIDATE) < min(evicting, default=len(actions))
        ways = [moves_first, not moves_first]
    for is_moving in ways:
        if cleared is None and is_moving:
            cleared = _move_pods(attempt, first)
        elif cleared is None:
            cleared, hopeless = _evict_pods(attempt, first, kept_ms)
    joint, reclaimed = None, None
    if has_joint and not session.clock.is_late:
        joint = _evict_jointly(attempt, first, cleared or first)
    if cleared is not None and not session.clock.is_late:
        reclaimed = _reclaim_instead(attempt, first, cleared)
    is_open = can_evict(first.problem, session.rules, session.reach_with_moves)
    return Rounds(first, cleared, joint, reclaimed, hopeless, is_open)


def _reclaim_instead(attempt: Attempt, first: Round, cleared: Round) -> Round | None:
    """Return a round in which the preemptors only reclaim pods from other queues, or None.

    The search minimises the number of victims. If the fewest victims are in the preemptor's own
    queue, their eviction may lower the queue's use further below its guarantee or share. The plan
    without evictions is then preferred, although the queue could reclaim pods from other queues.
    """
    session = attempt.session
    mine, theirs = (Candidate(each, each.solutions[0]) for each in (cleared, first))
    if RECLAIM not in session.reach or rank_candidates([theirs, mine])[0] is mine:
        return None
    preemptors = {e.preemptor for e in cleared.clearing.evictions if e.action == PREEMPT}
    gangs = first.problem.snapshot.gangs
    indices = frozenset(i for i, gang in enumerate(gangs) if gang.key in preemptors)
    return _evict_pods(attempt, first, 0, indices)[0] if indices else None


def _evict_pods(
    attempt: Attempt, first: Round, kept_ms: int, reclaiming: frozenset[int] = frozenset()
) -> tuple[Round | None, Mapping[int, Reason | None]]:
    """Find victims gang by gang; return the round with them, and the gangs that no eviction helps.

    The search leaves `kept_ms` milliseconds for the joint search for victims. A gang's victims
    depend on the victims of more important gangs. If a gang cannot use the capacity freed for it,
    the whole search is therefore repeated without the gang. The gangs in `reclaiming` do not
    preempt pods.
    """
    session, start = attempt.session, attempt.reserved.snapshot
    clock, decisions = session.clock, first.solutions[0].decisions
    left_ms = partial(clock.left_ms, clock.least_placement_ms + kept_ms)
    settings = VictimSearchSettings(
        session.context.solver, left_ms, clock.limits, reclaiming_gangs=reclaiming
    )
    found = EvictionPlan()
    for _ in range(_MAX_TRIES):
        with clock.measure("victims"):
            found = find_victims(
                first.problem, session.rules, first.tiers, decisions, session.reach, settings
            )
        if not found.evictions:
            break
        again = _retry_round(attempt, found.apply_to(start), found, first, kept_ms)
        misplaced = found.find_misplaced(again.problem, again.solutions[0].decisions)
        if not misplaced:
            return _without_needless_victims(attempt, found, again, kept_ms), found.hopeless
        # The optimisation models do not contain custom rules, so before a gang is excluded, the
        # verifier checks possible victims for the gang.
        fresh = misplaced - settings.by_trial if has_custom_rules(session.rules) else frozenset()
        settings = replace(
            settings,
            by_trial=settings.by_trial | fresh,
            excluded_gangs=settings.excluded_gangs | (misplaced - fresh),
        )
    return None, found.hopeless


def _retry_round(
    attempt: Attempt, snapshot: Snapshot, clearing: EvictionPlan, known: Round, kept_ms: int = 0
) -> Round:
    """Place pods with the given victims; the search starts from the placements of `known`.

    Only placements of `known` that are still valid are used. Without these placements, the search
    could start from a worse solution.
    """
    placed = WarmStart.from_decisions(known.problem, known.solutions[0].decisions)
    return place_pods(attempt, snapshot, clearing, known.problem, placed, kept_ms)


def _without_needless_victims(
    attempt: Attempt, found: EvictionPlan, placed: Round, kept_ms: int
) -> Round:
    """Return a round without needless victims, or `placed` if no such round is found.

    A preemptor may need fewer victims if the round places fewer other gangs in its queue. A task
    that is no longer evicted keeps its node and uses part of its queue's share, so all gangs are
    placed again. If a gang no longer fits, the evictions for this gang are dropped as well.
    """
    start = attempt.reserved.snapshot
    with attempt.session.clock.measure("victims"):
        actions = attempt.list_actions(placed, placed.solutions[0])
        kept = drop_needless_victims(attempt, actions)
    if kept == actions:
        return placed
    changed = set(kept) - set(actions)
    needed = {action.task: action for action in kept if isinstance(action, Evict)}
    evictions = tuple(
        needed[e.task] if needed[e.task] in changed else e
        for e in found.evictions
        if e.task in needed
    )
    fewer = replace(found, evictions=evictions, results=count_victims(start, evictions))
    for _ in range(_MAX_TRIES):
        again = _retry_round(attempt, fewer.apply_to(start), fewer, placed, kept_ms)
        misplaced = fewer.find_misplaced(again.problem, again.solutions[0].decisions)
        if not misplaced:
            return again
        if not attempt.verify(placed, kept):
            return placed
        fewer = fewer.without_gangs(start, misplaced)
    return placed


def _move_pods(attempt: Attempt, first: Round) -> Round | None:
    """Return the round in which running pods move, or None if no move helps any gang."""
    session, start = attempt.session, attempt.reserved.snapshot
    clock, solver = session.clock, session.context.solver
    if solver is None:
        return None
    arguments = dict(dict(session.policy.action_arguments).get(CONSOLIDATE, ()))
    settings = MoveSearchSettings(
        solver=solver,
        levels=session.policy.levels,
        tiers_of=attempt.find_tiers,
        left_ms=clock.left_ms,
        limits=clock.limits,
        most_moves=int(arguments.get("maxMoves", 0)),
    )
    decisions = first.solutions[0].decisions
    with clock.measure("consolidation"):
        bare = compile_problem(replace(start, reservations=()), first.problem)
    for _ in range(_MAX_TRIES):
        with clock.measure("consolidation"):
            found = consolidate(bare, session.rules, decisions, settings)
        if not found.evictions:
            return None
        # Gangs that start need no reservation; the reservations of other gangs are kept.
        reservations = tuple(b for b in start.reservations if b.gang not in found.gains)
        snapshot = found.apply_to(replace(start, reservations=reservations))
        clearing = EvictionPlan(found.evictions, results=found.results)
        again = _retry_round(attempt, snapshot, clearing, first)
        requesting, moving = found.find_misplaced(again.problem, again.solutions[0].decisions)
        if not requesting and not moving:
            return again
        settings = replace(
            settings,
            excluded_gangs=settings.excluded_gangs | requesting,
            unmovable_gangs=settings.unmovable_gangs | moving,
        )
    return None


def _evict_jointly(attempt: Attempt, first: Round, known: Round) -> Round | None:
    """Choose victims jointly for all gangs; return the round with them if it is better, or None.

    The levels over started gangs are compared in order with those of the best round so far; the
    first difference decides. If these levels do not differ, the round must be at least as good on
    every level over gangs. Unlike the search that proceeds gang by gang, the joint search does not
    evict pods merely to shift shares between queues.
    """
    session, decisions = attempt.session, first.solutions[0].decisions
    clock, rules, reach = session.clock, session.rules, session.reach
    is_waiting = ((decisions.node_of < 0) & (decisions.nominated < 0)).any()
    if not is_waiting or not can_evict(first.problem, rules, reach):
        return None
    settings = VictimSearchSettings(session.context.solver, clock.left_ms, clock.limits)
    goal = (first.tiers, first.levels)
    victims = {eviction.task for eviction in known.clearing.evictions}
    with clock.measure("victims"):
        found = find_victims_jointly(
            first.problem, rules, goal, decisions, reach, settings, partial(drop_invalid, rules)
        )
    if found is None or {eviction.task for eviction in found.evictions} == victims:
        return None
    again = _retry_round(attempt, found.apply_to(attempt.reserved.snapshot), found, first)
    if found.find_misplaced(again.problem, again.solutions[0].decisions):
        return None
    # The values of levels that are minimised are negated.
    values, known_values = (
        {
            level.name: result.value if level.sense is Sense.MAX else -result.value
            for level, result in zip(each.levels, each.solutions[0].results, strict=True)
            if not is_node_level(level)
        }
        for each in (again, known)
    )
    for level in again.levels:
        if isinstance(level, Started) and values[level.name] != known_values.get(level.name, 0):
            return again if values[level.name] > known_values.get(level.name, 0) else None
    is_as_good = all(value >= known_values.get(name, 0) for name, value in values.items())
    return again if is_as_good else None
