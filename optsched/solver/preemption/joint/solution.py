"""Victims for all gangs of a session together, as a solution of the joint model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from optsched.cluster.decisions import Evict, Nominate, Sense
from optsched.cluster.snapshot import Entitlement
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM
from optsched.plugins.eviction.moves import CONSOLIDATE
from optsched.plugins.extension_points import is_node_level
from optsched.plugins.objectives.admission import Placed, Started
from optsched.plugins.shares.shortfall import Shortfall
from optsched.problem.arrays import UNPLACED
from optsched.problem.decisions import Decisions
from optsched.problem.linear import Expression
from optsched.solver.cpsat.level_model import LevelModel, Objective
from optsched.solver.model.assignment import assign_tasks
from optsched.solver.model.encoding import incumbent_values
from optsched.solver.portfolio import fix_decisions
from optsched.solver.preemption.joint.model import (
    count_whole_gangs,
    encode_joint,
    find_waiting_gangs,
)
from optsched.solver.preemption.sequential.stage import EvictionPlan, count_victims, nominate_tasks
from optsched.solver.solution_check import solve_checked
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.nominations import Seats
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.preemption.joint.entitlement import ReclaimPair
    from optsched.solver.preemption.joint.joint_model import JointModel
    from optsched.solver.preemption.sequential.stage import Means


_MAX_SOLVES = 4
"""How often a model is solved, each time without more victims whose room nobody uses."""

Repair: TypeAlias = "Callable[[Snapshot, tuple[Action, ...], Sequence[str]], tuple[Action, ...]]"
"""A snapshot, actions, and the keys of the gangs that they serve, the most important first."""


def find_victims_jointly(
    problem: Problem,
    rules: RuleSet,
    goal: tuple[Tiers, Sequence[AnyLevel]],
    decisions: Decisions,
    reach: frozenset[str],
    means: Means,
    repair: Repair,
) -> EvictionPlan | None:
    """Return victims and seats for all gangs of a session, chosen together.

    The levels over gangs come first, in their order, then the fewest victims, the fewest gangs that
    leave whole, less important, less lost work and smaller victims; then tasks beyond the minimum
    of gangs, and scores of nodes.

    Parameters
    ----------
    problem, rules
        The problem before any eviction, and the rules of the policy.
    goal
        Tiers and levels of that problem.
    decisions
        What is placed without evictions: what the search starts from.
    reach
        Which of preempt and reclaim the policy allows.
    means
        Solver and time.
    repair
        Returns actions that keep every rule, by dropping the least important gangs at fault.

    Gangs that come to nodes nominated to them keep these, and only those have tasks evicted that
    lack room in `decisions`: otherwise they would make room for others.

    Returns
    -------
    EvictionPlan | None
        None where the model is too large or does not see all that rules ask of nodes, where time is
        short, or where nothing is evicted once the solution keeps every rule.

    """
    tiers, levels = goal
    left = means.left_ms()
    if means.solver is None or not reach or (left is not None and left <= 0):
        return None
    fixed = _find_gangs_on_nominated_nodes(problem, decisions)
    if fixed.any():
        mine = fixed[problem.gang_of]
        problem = fix_decisions(problem, decisions, fixed)
        node_of = np.where(mine, UNPLACED, decisions.node_of)
        nominated = np.where(mine, UNPLACED, decisions.nominated)
        decisions = replace(decisions, node_of=node_of, nominated=nominated)
    waiting_gangs = find_waiting_gangs(problem, decisions)
    joint = encode_joint(problem, rules, tiers, reach - {CONSOLIDATE}, waiting_gangs)
    if joint is None:
        return None
    model = _level_model(joint, levels, decisions)
    best: _Reading | None = None
    for _ in range(_MAX_SOLVES):
        solution = _solve(model, means)
        if solution is None or not solution[joint.evict].any():
            break
        reading = _read_solution(joint, tiers, solution, repair)
        if best is None or reading.num_dropped < best.num_dropped:
            best = reading
        if not reading.num_dropped or not reading.unused.any():
            break
        most = solution[joint.evict] - reading.unused
        upper = model.upper.copy()
        upper[joint.evict] = np.where(reading.unused > 0, most, upper[joint.evict])
        model = replace(model, upper=upper, hint=np.minimum(solution, upper))
    return None if best is None else best.plan


def _solve(model: LevelModel, means: Means) -> I64 | None:
    """Return the best solution that time allows; None without one."""
    limits, left_ms = means.limits, means.left_ms()
    if left_ms is not None:
        if left_ms <= 0:
            return None
        limits = replace(limits, budget_ms=min(left_ms, limits.budget_ms or left_ms))
    assert means.solver is not None  # noqa: S101  the caller asks only then
    solved = solve_checked(means.solver, model, limits)
    found = (u.solution for u in reversed(solved.updates) if u.solution is not None)
    return next(found, None)


def _find_gangs_on_nominated_nodes(problem: Problem, decisions: Decisions) -> Bool:
    """(G,) gangs of which decisions put a task on the node that is nominated to it."""
    names = [node.name for node in problem.snapshot.nodes]
    at = np.maximum(decisions.node_of, decisions.nominated)
    fixed = np.zeros(problem.num_gangs, np.bool_)
    for i, task in enumerate(problem.tasks):
        if task.nominated_node and at[i] >= 0 and names[int(at[i])] == task.nominated_node:
            fixed[problem.gang_of[i]] = True
    return fixed


def _level_model(joint: JointModel, levels: Sequence[AnyLevel], decisions: Decisions) -> LevelModel:
    form, groups = joint.form, joint.groups
    objectives = [
        Objective(level.encode(form), level.sense)
        for level in levels
        if isinstance(level, Started | Shortfall)
    ]
    ones = np.ones(len(groups), np.int64)
    objectives.append(Objective(Expression.of(joint.evict, ones), Sense.MIN))
    objectives.append(Objective(count_whole_gangs(joint), Sense.MIN))
    costs = (groups.priority - groups.priority.min(initial=0), groups.lost, groups.size)
    objectives += [
        Objective(Expression.of(joint.evict, cost), Sense.MIN)
        for cost in costs
        if len(np.unique(cost)) > 1
    ]
    task_class, at = np.nonzero(joint.supplied >= 0)
    supplied = joint.supplied[task_class, at]
    node = np.flatnonzero(joint.node_set >= 0)
    for level in levels:
        if isinstance(level, Placed):
            objectives.append(Objective(level.encode(form), level.sense))
        elif is_node_level(level):
            values = level.node_values(form.problem)[task_class, node[at]]
            objectives.append(Objective(Expression.of(supplied, values), level.sense))
    # Of equal solutions the one with more reclaimed tasks, so that the same gangs are always named.
    either = joint.reclaim[(joint.reclaim >= 0) & (joint.reclaim != joint.evict)]
    if len(either):
        ones = np.ones(len(either), np.int64)
        objectives.append(Objective(Expression.of(either, ones), Sense.MAX))
    lower, upper = form.model.bounds
    known = incumbent_values(form, decisions)
    hint = lower.copy()
    hint[: len(known)] = known
    on_node = np.zeros((len(joint.supplied), len(joint.node_set)), np.int64)
    tasks = np.flatnonzero(decisions.node_of >= 0)
    np.add.at(on_node, (form.problem.task_class[tasks], decisions.node_of[tasks]), 1)
    hint[supplied] = on_node[task_class, node[at]]
    kin = np.full(len(lower), -1, np.int64)
    return LevelModel(lower, upper, form.model.rows, tuple(objectives), hint, kin)


class _Reading(NamedTuple):
    """What a solution means.

    Attributes
    ----------
    plan
        None where nothing is evicted once every rule is kept.
    unused
        (K,) victims of each group whose room no gang uses that may have them evicted.
    num_dropped
        Gangs of the solution that the plan leaves out.

    """

    plan: EvictionPlan | None
    unused: I64
    num_dropped: int


def _read_solution(joint: JointModel, tiers: Tiers, solution: I64, repair: Repair) -> _Reading:
    """Return the evictions and seats of a solution, as far as they keep every rule.

    No row asks how much of a victim's room its preemptor uses: victims beyond that stay, and gangs
    that need what these hold are left out.
    """
    problem = joint.form.problem
    node = np.flatnonzero(joint.node_set >= 0)
    slots = []
    for row in joint.supplied:
        at = np.flatnonzero(row >= 0)
        slots.append(np.repeat(node[at], solution[row[at]]))
    node_of = assign_tasks(joint.form, solution, slots, Decisions.nothing(problem)).node_of
    victims, reclaimed = _choose_victims(joint, solution)
    pairs = [pair for pair in joint.pairs if solution[pair.variable]]
    namer = _Preemptors(joint, tiers, node_of)
    num_served = len(namer.order)
    evictions = namer.name(victims, reclaimed, pairs)
    unused = _count_unused(joint, victims, evictions)
    if unused.any():
        evictions = namer.drop_gangs_without_capacity(evictions)
    seats = _find_nominations(problem, namer.node_of, namer.order)
    gangs = problem.snapshot.gangs
    actions: list[Action] = [*evictions]
    for gang, mine in seats.items():
        actions += nominate_tasks(problem, gang, mine)
    kept = repair(problem.snapshot, tuple(actions), [gangs[g].key for g in seats])
    evictions = [action for action in kept if isinstance(action, Evict)]
    if not evictions:
        return _Reading(None, unused, num_served)
    placed = {action.gang for action in kept if isinstance(action, Nominate)}
    seats = {g: mine for g, mine in seats.items() if gangs[g].key in placed}
    results = count_victims(problem.snapshot, evictions)
    entitlements = _entitle(joint, evictions)
    plan = EvictionPlan(tuple(evictions), seats, results, entitlements=entitlements)
    return _Reading(plan, unused, num_served - len(seats))


def _count_unused(joint: JointModel, victims: I64, evictions: Sequence[Evict]) -> I64:
    """(K,) victims of each group for which no gang was found."""
    groups, tasks = joint.groups, joint.facts.running.tasks
    named = {eviction.task for eviction in evictions}
    rest = [v for v in victims.tolist() if tasks[v].key not in named]
    return np.bincount(groups.of_task[np.isin(groups.tasks, rest)], minlength=len(groups))


def _find_nominations(problem: Problem, node_of: I64, gangs: Sequence[int]) -> dict[int, Seats]:
    """Seats of some gangs, in their order."""
    found: dict[int, Seats] = {}
    for gang in gangs:
        first = int(problem.shapes.start[problem.shape_of[gang]])
        last = int(problem.shapes.start[problem.shape_of[gang] + 1])
        begin, end = int(problem.task_start[gang]), int(problem.task_start[gang + 1])
        entry = np.repeat(np.arange(last - first), problem.shapes.count[first:last])
        mine = node_of[begin:end]
        pairs, count = np.unique(np.stack([entry, mine])[:, mine >= 0], axis=1, return_counts=True)
        found[gang] = tuple(zip(*pairs.tolist(), count.tolist(), strict=True))
    return found


def _choose_victims(joint: JointModel, solution: I64) -> tuple[I64, Bool]:
    """Of equal running tasks those leave that were created last."""
    groups, running = joint.groups, joint.facts.running
    left = solution[joint.evict].copy()
    reclaims = np.where(joint.reclaim >= 0, solution[np.maximum(joint.reclaim, 0)], 0)
    born = np.array([running.tasks[int(v)].created_ms for v in groups.tasks], np.int64)
    chosen, reclaimed = [], []
    for i in np.lexsort((groups.tasks, -born)).tolist():
        k = int(groups.of_task[i])
        if left[k] > 0:
            chosen.append(int(groups.tasks[i]))
            reclaimed.append(left[k] <= reclaims[k])
            left[k] -= 1
    return np.array(chosen, np.int64), np.array(reclaimed, np.bool_)


class _Preemptors:
    """Names a gang for each victim that is entitled to it and takes its room.

    A gang takes the room of victims on a node as far as its tasks there ask for it; of a gang that
    leaves whole it takes that of one victim. Equal tasks may change places for that: no row tells
    them apart.
    """

    def __init__(self, joint: JointModel, tiers: Tiers, node_of: I64) -> None:
        problem, gangs = joint.form.problem, joint.form.gangs
        self._problem, self._running = problem, joint.facts.running
        self._before = joint.facts.problem
        self._able = joint.able
        self.node_of = node_of.copy()
        served = np.unique(problem.gang_of[node_of >= 0]).tolist()
        age = problem.created_ms
        self.order: list[int] = sorted(served, key=lambda g: (int(tiers.of[g]), int(age[g]), g))
        self._class_of = np.full(problem.num_gangs, -1, np.int64)
        classes = np.arange(len(gangs.shape_of))
        self._class_of[gangs.members] = np.repeat(classes, gangs.multiplicity)
        self._given: dict[tuple[int, int], I64] = {}

    def name(self, victims: I64, reclaimed: Bool, pairs: Sequence[ReclaimPair]) -> list[Evict]:
        """Evictions, reclaims first; victims for which no gang is found stay.

        Of each lender the largest victim leaves last, and with it all victims of the same gang.
        """
        running, found = self._running, []
        whole_gangs = self._find_whole_gangs(victims)
        preemptors = {
            lost: self._list_preemptors(lost)
            for lost in np.unique(running.gang_of[victims]).tolist()
        }
        reclaimed = self._preempt_where_used(victims, reclaimed, whole_gangs, preemptors)
        for pair in pairs:
            mine = victims[reclaimed & (running.queue_of[victims] == pair.lender)]
            reclaimers = [
                g
                for g in self.order
                if pair.kind.classes[self._class_of[g]]
                and (self._able is None or self._able.reclaim[self._class_of[g]])
            ]
            victim_gangs = running.gang_of[mine].tolist()
            named = self._name_preemptors(
                mine, whole_gangs, dict.fromkeys(victim_gangs, reclaimers)
            )
            by_gang = self._with_largest_last(named)
            found += [self._evict(v, gang, RECLAIM) for v, gang in by_gang]

        preempted = victims[~reclaimed]
        named = self._name_preemptors(preempted, whole_gangs, preemptors)
        return [*found, *(self._evict(v, named[v], PREEMPT) for v in sorted(named))]

    def _list_preemptors(self, lost: int) -> list[int]:
        """Return the gangs that may preempt a gang, in their order."""
        problem = self._problem
        return [
            g
            for g in self.order
            if (self._able is None or self._able.preempt[self._class_of[g]])
            and problem.queue_of[g] == problem.queue_of[lost]
            and problem.priority[g] > problem.priority[lost]
        ]

    def _preempt_where_used(
        self,
        victims: I64,
        reclaimed: Bool,
        whole_gangs: set[int],
        preemptors_of: Mapping[int, Sequence[int]],
    ) -> Bool:
        """(m,) which victims are reclaimed, of gangs that leave whole one less where it has to be.

        A preemptor takes the room of one victim of such a gang, and that may be one that the
        solution has reclaimed.
        """
        kept, lost_of = reclaimed.copy(), self._running.gang_of[victims]
        for lost in sorted(whole_gangs):
            mine = np.flatnonzero((lost_of == lost) & ~reclaimed)
            others = np.flatnonzero((lost_of == lost) & reclaimed)
            if not len(mine) or self._find_user(preemptors_of[lost], victims[mine]) is not None:
                continue
            for i in others.tolist():
                if self._find_user(preemptors_of[lost], victims[[i]]) is not None:
                    kept[i] = False
                    break
        return kept

    def drop_gangs_without_capacity(self, evictions: Sequence[Evict]) -> list[Evict]:
        """Return the evictions for gangs that fit where only these victims leave, others dropped.

        The most important gangs are kept. What was evicted for a dropped gang stays.
        """
        before, number_of = self._before, {t.key: v for v, t in enumerate(self._running.tasks)}
        kept, is_known = list(evictions), False
        gang_keys = [gang.key for gang in before.snapshot.gangs]
        while not is_known:
            idle = before.allocatable - before.used + before.releasing
            victims = np.array([number_of[e.task] for e in kept], np.int64)
            np.add.at(idle, self._running.node_of[victims], self._running.request[victims])
            dropped = {gang_keys[g] for g in self.order if not self._take_capacity(g, idle)}
            self.order = [g for g in self.order if gang_keys[g] not in dropped]
            is_known = not any(e.preemptor in dropped for e in kept)
            kept = [e for e in kept if e.preemptor not in dropped]
        return kept

    def _take_capacity(self, gang: int, idle: I64) -> bool:
        """Take what a gang requests from what is idle (N, R); False and no change if it lacks."""
        problem = self._problem
        first, end = problem.task_start[gang : gang + 2].tolist()
        tasks = first + np.flatnonzero(self.node_of[first:end] >= 0)
        nodes, request = self.node_of[tasks], problem.classes.request[problem.task_class[tasks]]
        np.subtract.at(idle, nodes, request)
        if ((idle[nodes] >= 0) | (request == 0)).all():
            return True
        np.add.at(idle, nodes, request)
        return False

    def _with_largest_last(self, named: Mapping[int, int]) -> list[tuple[int, int]]:
        """Victims and their gangs, gang by gang, that of the largest victim last."""
        by_size = sorted(named, key=lambda v: tuple(self._running.request[v].tolist()))
        pairs = [(v, named[v]) for v in by_size]
        return sorted(pairs, key=lambda pair: (pair[1] == pairs[-1][1], pair[1]))

    def _evict(self, victim: int, gang: int, action: str) -> Evict:
        task = self._running.tasks[victim]
        return Evict(task.key, task.node, action, self._problem.snapshot.gangs[gang].key)

    def _find_whole_gangs(self, victims: I64) -> set[int]:
        """Gangs that can not keep a single victim of theirs: they leave whole, or in groups."""
        running, gangs = self._running, self._problem.snapshot.gangs
        found = set()
        lost, number = np.unique(running.gang_of[victims], return_counts=True)
        for g, leaving in zip(lost.tolist(), number.tolist(), strict=True):
            held = sum(task.status.counts_as_ready for task in gangs[g].tasks)
            tied = gangs[g].role_minimums or gangs[g].sub_groups
            if tied or held - leaving + 1 < gangs[g].min_member:
                found.add(g)
        return found

    def _name_preemptors(
        self, victims: I64, whole_gangs: set[int], preemptors_of: Mapping[int, Sequence[int]]
    ) -> dict[int, int]:
        """The gang of each victim that finds one, those of gangs that leave whole first."""
        running, found = self._running, dict[int, int]()
        lost_of = running.gang_of
        for lost in sorted(whole_gangs & set(lost_of[victims].tolist())):
            mine = victims[lost_of[victims] == lost]
            gang = self._find_preemptor(preemptors_of[lost], mine)
            if gang is None:
                continue
            for victim in mine.tolist():
                self._record_capacity_taken(gang, victim)
                found[victim] = gang
        largest_first = np.argsort(-running.request[victims].sum(axis=1), kind="stable")
        for victim in victims[largest_first].tolist():
            lost = int(lost_of[victim])
            if lost in whole_gangs:
                continue
            gang = self._find_preemptor(preemptors_of[lost], np.array([victim]))
            if gang is not None:
                self._record_capacity_taken(gang, victim)
                found[victim] = gang
        return found

    def _record_capacity_taken(self, gang: int, victim: int) -> None:
        request = self._running.request[victim]
        at = gang, int(self._running.node_of[victim])
        self._given[at] = self._given.get(at, np.zeros_like(request)) + request

    def _find_preemptor(self, preemptors: Sequence[int], victims: I64) -> int | None:
        """The first of some gangs that takes the room of a victim, or that can move to do so."""
        gang = self._find_user(preemptors, victims)
        if gang is not None:
            return gang
        for gang in preemptors:
            if self._swap(gang, np.unique(self._running.node_of[victims])):
                return gang
        return None

    def _find_user(self, preemptors: Sequence[int], victims: I64) -> int | None:
        """The first of some gangs that takes the room of a victim where it is."""
        return next(
            (
                gang
                for gang in preemptors
                if any(self._can_use_capacity_of(gang, v) for v in victims.tolist())
            ),
            None,
        )

    def _can_use_capacity_of(self, gang: int, victim: int) -> bool:
        """Whether a gang asks for more on a victim's node than other victims there give to it."""
        problem, node = self._problem, int(self._running.node_of[victim])
        first, end = problem.task_start[gang : gang + 2].tolist()
        mine = first + np.flatnonzero(self.node_of[first:end] == node)
        if not len(mine):
            return False
        asked = problem.classes.request[problem.task_class[mine]].sum(axis=0)
        given = self._given.get((gang, node), np.zeros_like(asked))
        gives = self._running.request[victim] > 0
        gives[problem.index(PODS)] = False
        return bool((gives & (given < asked)).any())

    def _swap(self, gang: int, nodes: I64) -> bool:
        """Let a task of a gang change places with an equal one that takes no victim's room."""
        problem = self._problem
        first, end = problem.task_start[gang : gang + 2].tolist()
        for task in (first + np.flatnonzero(self.node_of[first:end] >= 0)).tolist():
            here = int(self.node_of[task])
            if (gang, here) in self._given or here in nodes:
                continue
            same = problem.task_class == problem.task_class[task]
            for other in np.flatnonzero(same & np.isin(self.node_of, nodes)).tolist():
                at = int(problem.gang_of[other]), int(self.node_of[other])
                if at not in self._given and at[0] != gang:
                    self.node_of[[task, other]] = self.node_of[[other, task]]
                    return True
        return False


def _entitle(joint: JointModel, evictions: Sequence[Evict]) -> tuple[Entitlement, ...]:
    """What queues that reclaim may hold once all is placed, see `rules.entitlement`."""
    problem, facts = joint.form.problem, joint.facts
    if facts.due is None:
        return ()
    number = {gang.key: g for g, gang in enumerate(problem.snapshot.gangs)}
    queue_of = {
        t.key: int(q) for t, q in zip(facts.running.tasks, facts.running.queue_of, strict=True)
    }
    found: dict[tuple[int, int], int] = {}
    for eviction in evictions:
        if eviction.action == RECLAIM:
            gang = number[eviction.preemptor]
            queue, lender = int(problem.queue_of[gang]), queue_of[eviction.task]
            asked = np.flatnonzero(facts.request_of(gang).any(axis=0)).tolist()
            for a in np.flatnonzero(facts.above[queue] & ~facts.above[lender]).tolist():
                found |= {(a, r): int(facts.due[a, r]) for r in asked if facts.due[a, r] > 0}
    names, resources = problem.queues.names, problem.resources
    return tuple(
        Entitlement(names[q], resources[r], most) for (q, r), most in sorted(found.items())
    )
