"""Repair rejected plans: drop the gangs at fault, one after another.

The verifier reports the rules that a plan violates. The plan without the gangs at fault competes
with all other candidates. Gangs that rules of custom plugins reject are not dropped; instead, the
next attempt excludes them, so that they wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster.decisions import Allocate, Evict, Nominate, placed_gangs
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Entitled
from optsched.plugins.eviction.moves import describe_broken_gang
from optsched.plugins.verification.verify import verify_actions
from optsched.plugins.verification.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation
    from optsched.plugins.ruleset import RuleSet
    from optsched.session.attempt import Attempt
    from optsched.session.candidates import Candidate

MOST_SINGLE_DROPS = 8
"""Maximum number of gangs that a repair drops one by one."""

MOST_RENAMED = 16
"""Maximum number of needless victims for which the repair tries other preemptors.

Each trial verifies the evictions.
"""


@dataclass(frozen=True, slots=True)
class Repair:
    """A repaired plan: the keys of the dropped gangs, and the first violation."""

    dropped: tuple[str, ...]
    violation: Violation

    def __str__(self) -> str:
        return f"dropped {', '.join(self.dropped)} from a plan that broke a rule: {self.violation}"


def repair_candidate(
    attempt: Attempt, refused: Candidate, violations: Sequence[Violation]
) -> Candidate | None:
    """Drop the gangs at fault from a candidate; return None if the repair fails.

    Plans that move pods are not repaired, because gangs share the capacity that a move frees.
    """
    each, actions, clock = refused.round, refused.actions or (), attempt.session.clock
    if any(e.to for e in each.clearing.evictions):
        return None
    gangs = each.problem.snapshot.gangs
    order = np.lexsort((np.arange(len(gangs)), each.problem.created_ms, each.tiers.of))
    rank_of = {gangs[g].key: i for i, g in enumerate(order.tolist())}
    drops = DropOrder(rank_of, most_single=0 if clock.is_late else MOST_SINGLE_DROPS)
    with clock.measure("verify"):
        found = repair_actions(
            attempt.before, actions, violations, drops, lambda a: attempt.verify(each, a)
        )
    if found is None:
        return None
    kept = evaluate_rest(attempt, refused, found[0])
    return replace(kept, dropped=(*refused.dropped, *found[1]))


def trim_candidate(attempt: Attempt, refused: Candidate) -> Candidate | None:
    """Return the candidate without needless victims, or None if the reduced plan violates a rule.

    Also returns None if no victim is needless, or if the plan moves pods.
    """
    session, actions = attempt.session, refused.actions or ()
    if not session.is_optimised or any(isinstance(a, Evict) and a.to for a in actions):
        return None
    with session.clock.measure("verify"):
        kept = drop_needless_victims(attempt, actions)
        if kept == actions or attempt.verify(refused.round, kept):
            return None
    return evaluate_rest(attempt, refused, kept)


def evaluate_rest(attempt: Attempt, refused: Candidate, actions: tuple[Action, ...]) -> Candidate:
    """Return a candidate that is reduced to `actions` and keeps its engine name."""
    solution = refused.solution
    rest = attempt.evaluate(actions, refused.round.problem, solution.decisions, solution.stopped)
    rest = replace(rest, solution=replace(rest.solution, engine=solution.engine))
    return replace(rest, dropped=refused.dropped)


class DropOrder(NamedTuple):
    """The order in which a repair drops gangs.

    Attributes
    ----------
    rank_of
        Maps a gang's key to its rank in order of importance. Of the gangs at fault, the least
        important is dropped first.
    most_single
        Number of gangs that are dropped one by one. If violations remain, all other gangs at fault
        are dropped together.

    """

    rank_of: Mapping[str, int]
    most_single: int = MOST_SINGLE_DROPS


def repair_actions(
    snapshot: Snapshot,
    actions: tuple[Action, ...],
    violations: Sequence[Violation],
    order: DropOrder,
    verify: Callable[[tuple[Action, ...]], Sequence[Violation]],
) -> tuple[tuple[Action, ...], tuple[str, ...]] | None:
    """Drop gangs at fault until the verifier accepts the remaining actions.

    Parameters
    ----------
    order
        The order in which gangs at fault are dropped.
    verify
        Returns the violations in a sequence of actions.

    Returns
    -------
    tuple[tuple[Action, ...], tuple[str, ...]] | None
        The remaining actions and the keys of the dropped gangs, or None if no gang is left.

    """
    dropped: list[str] = []
    while violations:
        served = _served_gangs(actions)
        blamed = {v.gang for v in violations if v.gang in served}
        if not blamed:
            named = (named_gangs(snapshot, actions, v.where) for v in violations)
            # If the violations name no gang, all gangs with actions are at fault.
            blamed = served & set[str]().union(*named) or served
        if not blamed:
            return None
        if len(dropped) < order.most_single:
            blamed = {max(blamed, key=lambda key: (order.rank_of.get(key, -1), key))}
        dropped += sorted(blamed)
        actions = drop_gangs(actions, blamed)
        violations = verify(actions)
    return (actions, tuple(dropped)) if _served_gangs(actions) else None


def drop_invalid(
    rules: RuleSet, snapshot: Snapshot, actions: tuple[Action, ...], gangs: Sequence[str]
) -> tuple[Action, ...]:
    """Drop the gangs at fault for violations, least important first; return the remaining actions.

    `gangs` holds the keys of the gangs for which the actions allocate nodes or evict pods, most
    important first. The result is empty if all gangs are dropped.
    """
    verify = partial(verify_actions, snapshot, rules=rules)
    order = DropOrder({key: rank for rank, key in enumerate(gangs)})
    found = repair_actions(snapshot, actions, verify(actions), order, verify)
    return () if found is None else found[0]


def name_users_as_preemptors(attempt: Attempt, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Set each victim's preemptor to the gang that uses the victim's node.

    The search finds victims for one gang after another. The search may choose a victim only to keep
    a gang within its queue's capability or deserved share. If a later gang uses the victim's node,
    the verifier accepts only the later gang as the preemptor. A preemptor is kept if no gang on the
    victim's node may preempt the victim.
    """
    gang_of = attempt.before.gang_by_key
    task_gangs = {t.key: gang for gang in attempt.before.gangs for t in gang.tasks}
    users: dict[str, list[str]] = {}
    for action in actions:
        if isinstance(action, Nominate):
            users.setdefault(action.node, []).append(action.gang)

    renamed = list(actions)
    for i, action in enumerate(actions):
        if not isinstance(action, Evict) or action.action != PREEMPT or action.to:
            continue
        gangs_on_node, victim = users.get(action.node, []), task_gangs.get(action.task)
        if victim is None or action.preemptor in gangs_on_node:
            continue
        for key in gangs_on_node:
            if gang_of[key].queue == victim.queue and gang_of[key].priority > victim.priority:
                renamed[i] = replace(action, preemptor=key)
                break
    return _name_reclaimers(attempt, tuple(renamed), users)


def _name_reclaimers(
    attempt: Attempt, actions: tuple[Action, ...], users: Mapping[str, Sequence[str]]
) -> tuple[Action, ...]:
    """Assign other reclaimers to needless victims as long as this reduces their number."""
    needless = _find_needless(attempt, actions)
    while 0 < len(needless) <= MOST_RENAMED and not attempt.session.clock.is_late:
        # Each variant of the actions assigns another reclaimer to one needless victim.
        variants = (
            (*actions[:i], replace(action, preemptor=key), *actions[i + 1 :])
            for i, action in enumerate(actions)
            if isinstance(action, Evict) and action.action == RECLAIM and action.task in needless
            for key in dict.fromkeys(users.get(action.node, ()))
        )
        for renamed in variants:
            still_needless = _find_needless(attempt, renamed)
            if len(still_needless) < len(needless):
                actions, needless = renamed, still_needless
                break
        else:
            break
    return actions


def drop_needless_victims(attempt: Attempt, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Drop the victims whose resources their preemptor does not use.

    Victims are chosen before the other gangs are placed again. If the new round places fewer gangs,
    a preemptor may need fewer victims. If another preemptor's victims leave the gang of a needless
    victim below its minimum, the needless victim is not dropped but evicted for that preemptor.
    """
    joined = set[str]()
    while needless := _find_needless(attempt, actions):
        joining = _join_their_gangs(attempt.before, actions, needless - joined)
        joined |= joining.keys()
        actions = tuple(
            joining.get(a.task, a) if isinstance(a, Evict) else a
            for a in actions
            if not (isinstance(a, Evict) and a.task in needless - joining.keys())
        )
    return actions


def _join_their_gangs(
    snapshot: Snapshot, actions: tuple[Action, ...], needless: Set[str]
) -> dict[str, Evict]:
    """Return new evictions for the needless victims of broken gangs, keyed by task.

    A gang is broken if the evictions of its needed victims leave it below its minimum. Each new
    eviction names the preemptor for which other tasks of the gang are evicted.
    """
    evictions = {action.task: action for action in actions if isinstance(action, Evict)}
    found: dict[str, Evict] = {}
    for gang in snapshot.gangs:
        victims = [evictions[task.key] for task in gang.tasks if task.key in evictions]
        needed = [eviction for eviction in victims if eviction.task not in needless]
        if len(needed) == len(victims) or not needed:
            continue
        if describe_broken_gang(gang, {eviction.task for eviction in needed}):
            other = needed[0]
            found |= {
                e.task: replace(e, action=other.action, preemptor=other.preemptor)
                for e in victims
                if e.task in needless
            }
    return found


def _find_needless(attempt: Attempt, actions: tuple[Action, ...]) -> set[str]:
    """Return the keys of the victims whose resources their preemptor does not use."""
    found = Entitled(attempt.session.rules).find_needless_victims(World(attempt.before, actions))
    return {task for victims, _ in found for task in victims}


def drop_gangs(actions: Iterable[Action], gangs: set[str]) -> tuple[Action, ...]:
    """Return the actions without the placements of the given gangs and the evictions for them."""
    return tuple(
        a
        for a in actions
        if not (isinstance(a, Evict) and a.preemptor in gangs)
        and not (isinstance(a, Allocate | Nominate) and a.gang in gangs)
    )


def _served_gangs(actions: Sequence[Action]) -> set[str]:
    preemptors = {a.preemptor for a in actions if isinstance(a, Evict) and a.preemptor}
    return placed_gangs(actions) | preemptors


def named_gangs(snapshot: Snapshot, actions: Sequence[Action], where: str) -> set[str]:
    """Return the gangs whose actions concern the object of a violation.

    An action concerns the gang that it serves, this gang's queue, the action's task and node, and
    the gang of the task.
    """
    kind, _, name = where.partition(" ")
    queue_of = {g.key: g.queue for g in snapshot.gangs} if kind == "queue" else {}
    gang = snapshot.gang_by_key.get(name) if kind == "gang" else None
    members = set() if gang is None else {task.key for task in gang.tasks}
    found: set[str] = set()
    for action in actions:
        if isinstance(action, Evict):
            served = action.preemptor
        elif isinstance(action, Allocate | Nominate):
            served = action.gang
        else:
            continue
        of = {"gang": served, "task": action.task, "node": action.node}
        if name in (of.get(kind), queue_of.get(served)) or action.task in members:
            found.add(served)
    return found - {""}


def blame_custom_rules(
    snapshot: Snapshot, rules: RuleSet, actions: Sequence[Action], found: Sequence[Violation]
) -> dict[str, Reason]:
    """Map each gang that custom rules reject to the reason why it must wait.

    The result is empty if a built-in rule is violated, because that is a defect of optsched.
    """
    plugin_of = {a.rule.name: a.plugin for a in rules.active if a.origin}
    if any(v.rule not in plugin_of for v in found):
        return {}
    placed = [a for a in actions if isinstance(a, Allocate | Nominate)]
    blocked: dict[str, Reason] = {}
    for violation in found:
        message = f"plugin {plugin_of[violation.rule]}: {violation.detail}"
        named = named_gangs(snapshot, placed, violation.where) or {a.gang for a in placed}
        for gang in named:
            blocked.setdefault(gang, Reason(ReasonCode.PLUGIN, message))
    return blocked
