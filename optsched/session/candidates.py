"""Candidate plans of a session: compared on the levels of the policy, repaired where refused.

The solver and the pipeline propose plans with and without evictions. The best one that the verifier
accepts becomes the plan. A refused plan loses the gangs at fault, one after another, and competes
again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, cmp_to_key
from typing import TYPE_CHECKING, NamedTuple

from optsched.cluster.decisions import Allocate, Evict, Nominate, Sense
from optsched.plugins.eviction.entitled import PREEMPT
from optsched.plugins.extension_points import is_node_level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from optsched.cluster.decisions import Action, LevelResult
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import AnyLevel, Violation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.session.lending import Lending
    from optsched.solver.portfolio import Answer
    from optsched.solver.preemption.sequential.stage import EvictionPlan

MOST_SINGLE_DROPS = 8
"""Gangs that repair drops one by one while there is time."""


@dataclass(frozen=True, eq=False)
class Round:
    """A problem with its victims terminating, and the solutions found for it.

    Attributes
    ----------
    problem
        Of the snapshot in which the victims are terminating.
    answers
        The best first, then the greedy one.
    clearing
        The victims, and the gangs that they make room for.

    """

    problem: Problem
    tiers: Tiers
    levels: Sequence[AnyLevel]
    answers: tuple[Answer, ...]
    clearing: EvictionPlan


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that may be chosen.

    Attributes
    ----------
    actions
        None until they are needed; see `Round` for what they come from.
    dropped
        Keys of the gangs that repair has dropped from it.
    lending
        What is lent once it is chosen; None where nothing is.

    """

    round: Round
    answer: Answer
    actions: tuple[Action, ...] | None = None
    dropped: tuple[str, ...] = ()
    lending: Lending | None = None

    @cached_property
    def sections(self) -> tuple[tuple[LevelResult, ...], ...]:
        """Levels over gangs, levels over victims, levels over nodes: in order of importance."""
        over_gangs: list[LevelResult] = []
        over_nodes: list[LevelResult] = []
        for level, result in zip(self.round.levels, self.answer.results, strict=False):
            (over_nodes if is_node_level(level) else over_gangs).append(result)
        return tuple(over_gangs), self.round.clearing.results, tuple(over_nodes)


@dataclass(frozen=True, slots=True)
class Repair:
    """A refused plan that lost some gangs: their keys and the first rule that it broke."""

    dropped: tuple[str, ...]
    violation: Violation

    def __str__(self) -> str:
        return f"dropped {', '.join(self.dropped)} from a plan that broke a rule: {self.violation}"


def rank_candidates(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates from the best to the worst; equal ones keep their order."""
    return sorted(candidates, key=cmp_to_key(_compare))


def _compare(one: Candidate, other: Candidate) -> int:
    """Negative where the first is better on the most important level that differs."""
    for mine, theirs in zip(one.sections, other.sections, strict=True):
        values, others = _signed(mine), _signed(theirs)
        for name in _merge_names(list(values), list(others)):
            # A level that does not apply to a problem has nothing to count there.
            difference = others.get(name, 0) - values.get(name, 0)
            if difference:
                return difference
    return 0


def _signed(results: Sequence[LevelResult]) -> dict[str, int]:
    """Values by level, larger is better."""
    return {r.name: r.value if r.sense is Sense.MAX else -r.value for r in results}


def _merge_names(names: list[str], others: list[str]) -> list[str]:
    """Names of two lists of levels in an order that both agree with."""
    merged: list[str] = []
    while names and others:
        if names[0] == others[0]:
            merged.append(names.pop(0))
            others.pop(0)
        elif names[0] not in others:
            merged.append(names.pop(0))
        else:
            merged.append(others.pop(0))
    return list(dict.fromkeys([*merged, *names, *others]))


# --- repair --------------------------------------------------------------------------------------


class DropOrder(NamedTuple):
    """Which gangs repair drops first.

    Attributes
    ----------
    rank_of
        Position of each gang by key in order of importance; the last one at fault goes first.
    most_single
        How many gangs are dropped one by one; after that every gang that a violation names goes.

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
    """Drop gangs at fault until the verifier accepts the rest.

    Parameters
    ----------
    order
        Which gang at fault is dropped first.
    verify
        Returns the violations of some actions.

    Returns
    -------
    The actions that are left and the keys of the dropped gangs; None where no gang is left.

    """
    dropped: list[str] = []
    while violations:
        blamed = _find_blamed(snapshot, actions, violations)
        if not blamed:
            return None
        if len(dropped) < order.most_single:
            blamed = {max(blamed, key=lambda key: (order.rank_of.get(key, -1), key))}
        dropped += sorted(blamed)
        actions = drop_gangs(actions, blamed)
        violations = verify(actions)
    return (actions, tuple(dropped)) if _served_gangs(actions) else None


def name_users_as_preemptors(snapshot: Snapshot, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Return the actions with preemptors that take the nodes of their victims.

    Gangs preempt one after the other. What one evicts to get below the ceiling of its queue may
    serve the next one, and then the verifier accepts that one alone as its preemptor. Victims stay
    as they are if no gang on their node may preempt them.
    """
    gang_of = snapshot.gang_by_key
    task_gangs = {t.key: gang for gang in snapshot.gangs for t in gang.tasks}
    users: dict[str, list[str]] = {}
    for action in actions:
        if isinstance(action, Nominate):
            users.setdefault(action.node, []).append(action.gang)

    def rename(action: Action) -> Action:
        if not isinstance(action, Evict) or action.action != PREEMPT or action.to:
            return action
        here, victim = users.get(action.node, []), task_gangs.get(action.task)
        if victim is None or action.preemptor in here:
            return action
        entitled = (
            key
            for key in here
            if gang_of[key].queue == victim.queue and gang_of[key].priority > victim.priority
        )
        return replace(action, preemptor=next(entitled, action.preemptor))

    return tuple(map(rename, actions))


def drop_gangs(actions: Iterable[Action], gangs: set[str]) -> tuple[Action, ...]:
    """Return the actions without what some gangs get and without evictions for them."""

    def serves(action: Action) -> bool:
        if isinstance(action, Evict):
            return action.preemptor in gangs
        return isinstance(action, Allocate | Nominate) and action.gang in gangs

    return tuple(action for action in actions if not serves(action))


def _find_blamed(
    snapshot: Snapshot, actions: Sequence[Action], violations: Sequence[Violation]
) -> set[str]:
    """Gangs that get something of what the violations name; all served gangs if none is named."""
    served = _served_gangs(actions)
    blamed = {v.gang for v in violations if v.gang in served}
    if blamed:
        return blamed
    for violation in violations:
        blamed |= named_gangs(snapshot, actions, violation.where)
    return blamed & served or served


def _served_gangs(actions: Iterable[Action]) -> set[str]:
    placed = {a.gang for a in actions if isinstance(a, Allocate | Nominate)}
    return placed | {a.preemptor for a in actions if isinstance(a, Evict) and a.preemptor}


def named_gangs(snapshot: Snapshot, actions: Sequence[Action], where: str) -> set[str]:
    """Gangs that get something of the object that a violation is about, or evict pods of it."""
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
