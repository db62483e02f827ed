"""Choose the victims for all gangs of a session in one integer program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from optsched.cluster.decisions import Evict, Nominate, Sense
from optsched.cluster.snapshot import Entitlement
from optsched.plugins.eviction.entitled import RECLAIM
from optsched.plugins.eviction.moves import CONSOLIDATE
from optsched.plugins.extension_points import is_node_level
from optsched.plugins.objectives.gang_levels import Placed, Shortfall, Started
from optsched.problem.arrays import UNPLACED
from optsched.problem.decisions import Decisions, count_nominations
from optsched.problem.linear import Expression
from optsched.solver.cpsat.level_model import LevelModel, Objective
from optsched.solver.model.assignment import assign_tasks
from optsched.solver.model.encoding import incumbent_values
from optsched.solver.portfolio import fix_decisions
from optsched.solver.preemption.joint.model import (
    encode_joint,
    find_waiting_gangs,
)
from optsched.solver.preemption.joint.preemptors import Preemptors
from optsched.solver.preemption.sequential.stage import EvictionPlan, count_victims, nominate_tasks
from optsched.solver.solution_check import solve_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.preemption.joint.model import JointModel
    from optsched.solver.preemption.sequential.stage import VictimSearchSettings


_MAX_SOLVES = 4
"""Maximum number of solves of a joint model.

Each further solve excludes victims whose capacity no gang used in the previous solution.
"""

_MS_PER_VARIABLE = 0.1
"""Milliseconds of wall time per integer variable that a solver needs to find a first solution.

Measured on clusters of 50 to 180 mixed nodes on two cores in 2026: within one second, models of
9 400 integer variables had a solution, and models of 10 500 integer variables had none.
"""

DropInvalid: TypeAlias = (
    "Callable[[Snapshot, tuple[Action, ...], Sequence[str]], tuple[Action, ...]]"
)
"""Removes the actions of gangs that violate a rule.

The last argument lists gang keys in order of importance.
"""


def is_solvable_within(problem: Problem, budget_ms: int | None) -> bool:
    """Return whether the solver may find a solution of the joint model within its time budget.

    Most integer variables of the joint model count the tasks of one task class on one node.
    """
    num_pairs = len(problem.classes.shapes) * problem.num_nodes
    return budget_ms is None or num_pairs * _MS_PER_VARIABLE <= budget_ms


def find_victims_jointly(
    problem: Problem,
    rules: RuleSet,
    goal: tuple[Tiers, Sequence[AnyLevel]],
    decisions: Decisions,
    reach: frozenset[str],
    settings: VictimSearchSettings,
    drop_invalid: DropInvalid,
) -> EvictionPlan | None:
    """Choose victims and nominations for all gangs of a session jointly.

    The objectives are, in this order: the policy's gang levels; the number of victims; the number
    of gangs evicted entirely; the victims' priority, lost work and size; the tasks beyond gangs'
    minimums; and the node scores.

    Gangs keep their nominated nodes. Tasks are evicted only for gangs with unplaced tasks in
    `decisions`, because evictions for a placed gang would only release capacity for other gangs.

    Returns None if the model is too large or omits rules on nodes, if the time limit is reached, or
    if no valid eviction remains.

    Parameters
    ----------
    problem
        The problem before any eviction.
    goal
        The tiers of the gangs, and the levels of the problem.
    decisions
        The placements without evictions, from which the solver starts.
    reach
        The actions of the policy that may evict tasks: preempt, reclaim.
    drop_invalid
        Removes the actions of gangs that violate rules, least important gangs first, and returns
        the remaining actions.

    """
    tiers, levels = goal
    left = settings.left_ms()
    if settings.solver is None or not reach or (left is not None and left <= 0):
        return None
    names = [node.name for node in problem.snapshot.nodes]
    at = np.maximum(decisions.node_of, decisions.nominated).tolist()
    fixed = np.zeros(problem.num_gangs, np.bool_)
    for i, task in enumerate(problem.tasks):
        if task.nominated_node and at[i] >= 0 and names[at[i]] == task.nominated_node:
            fixed[problem.gang_of[i]] = True
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
        left = settings.left_ms()
        if left is not None and left <= 0:
            break
        solved = solve_checked(settings.solver, model, settings.limits.cap_budget(left))
        solution = None if solved.last_solved is None else solved.last_solved.solution
        if solution is None or not solution[joint.evict].any():
            break
        node_of = _assign_nodes(joint, solution)
        reading = _read_solution(joint, tiers, solution, node_of, drop_invalid)
        if reading.num_dropped:
            exchanged = _exchange_for_reservations(problem, node_of)
            if not np.array_equal(exchanged, node_of):
                other = _read_solution(joint, tiers, solution, exchanged, drop_invalid)
                reading = min(reading, other, key=lambda each: each.num_dropped)
        if best is None or reading.num_dropped < best.num_dropped:
            best = reading
        if not reading.num_dropped or not reading.unused.any():
            break
        most = solution[joint.evict] - reading.unused
        upper = model.upper.copy()
        upper[joint.evict] = np.where(reading.unused > 0, most, upper[joint.evict])
        model = replace(model, upper=upper, hint=np.minimum(solution, upper))
    return None if best is None else best.plan


def _level_model(joint: JointModel, levels: Sequence[AnyLevel], decisions: Decisions) -> LevelModel:
    form, groups = joint.form, joint.groups
    objectives = [
        Objective(level.encode(form), level.sense)
        for level in levels
        if isinstance(level, Started | Shortfall)
    ]
    ones = np.ones(len(groups), np.int64)
    objectives.append(Objective(Expression.of(joint.evict, ones), Sense.MIN))
    objectives.append(Objective(joint.count_whole_gangs(), Sense.MIN))
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
    # Among solutions with equal level values, reclaim as many tasks as possible. The choice of
    # preemptors is then deterministic.
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
    """The evictions and nominations in a solution of the joint model.

    Attributes
    ----------
    plan
        The evictions and nominations that violate no rule, or None if no eviction remains.
    unused
        (K,) number of victims per group whose capacity no entitled gang uses.
    num_dropped
        Number of gangs that get nodes in the solution but not in the plan.

    """

    plan: EvictionPlan | None
    unused: I64
    num_dropped: int


def _assign_nodes(joint: JointModel, solution: I64) -> I64:
    """Return the node (T,) of each task in a solution; `UNPLACED` if the task gets no node."""
    problem = joint.form.problem
    node = np.flatnonzero(joint.node_set >= 0)
    slots = []
    for row in joint.supplied:
        at = np.flatnonzero(row >= 0)
        slots.append(np.repeat(node[at], solution[row[at]]))
    return assign_tasks(joint.form, solution, slots, Decisions.nothing(problem)).node_of


def _exchange_for_reservations(problem: Problem, node_of: I64) -> I64:
    """Return `node_of` (T,) after tasks exchange nodes so that gangs use their reserved nodes.

    The model does not know which node is reserved for which gang. If a gang with a reservation gets
    other nodes, the reservation may prevent another gang from using the reserved nodes.
    """
    node_of = node_of.copy()
    gangs = {gang.key: g for g, gang in enumerate(problem.snapshot.gangs)}
    nodes = {node.name: n for n, node in enumerate(problem.snapshot.nodes)}
    # Tasks with equal constraints are in different task classes if a reservation restricts only
    # some of these tasks.
    number: dict[object, int] = {}
    classes = zip(problem.classes.shapes, problem.classes.relations, strict=True)
    kind = np.array([number.setdefault(each, len(number)) for each in classes], np.int64)
    kind_of = kind[problem.task_class]
    for reservation in problem.snapshot.reservations:
        if (g := gangs.get(reservation.gang)) is None:
            continue
        reserved = [nodes[name] for name, _ in reservation.nodes if name in nodes]
        mine = np.arange(problem.task_start[g], problem.task_start[g + 1])
        elsewhere = mine[(node_of[mine] >= 0) & ~np.isin(node_of[mine], reserved)]
        for task in elsewhere.tolist():
            equal = kind_of == kind_of[task]
            equal[mine] = False
            others = np.flatnonzero(equal & np.isin(node_of, reserved))
            if len(others):
                node_of[[task, others[0]]] = node_of[[others[0], task]]
    return node_of


def _read_solution(
    joint: JointModel, tiers: Tiers, solution: I64, node_of: I64, drop_invalid: DropInvalid
) -> _Reading:
    """Decode a solution to evictions and nominations, and drop actions that violate rules.

    A victim keeps running if no preemptor uses its capacity. Gangs that do not fit without the
    capacity of such victims are dropped.
    """
    problem = joint.form.problem
    victims, reclaimed = _choose_victims(joint, solution)
    pairs = [pair for pair in joint.pairs if solution[pair.variable]]
    preemptors = Preemptors(joint, tiers, node_of)
    num_served = len(preemptors.order)
    evictions = preemptors.list_evictions(victims, reclaimed, pairs)
    groups, running = joint.groups, joint.facts.running.tasks
    named = {eviction.task for eviction in evictions}
    rest = [v for v in victims.tolist() if running[v].key not in named]
    unused = np.bincount(groups.of_task[np.isin(groups.tasks, rest)], minlength=len(groups))
    if unused.any():
        evictions = preemptors.drop_gangs_without_capacity(evictions)
    nominations = {g: count_nominations(problem, g, preemptors.node_of) for g in preemptors.order}
    gangs = problem.snapshot.gangs
    actions: list[Action] = [*evictions]
    for gang, mine in nominations.items():
        actions += nominate_tasks(problem, gang, mine)
    kept = drop_invalid(problem.snapshot, tuple(actions), [gangs[g].key for g in nominations])
    evictions = [action for action in kept if isinstance(action, Evict)]
    if not evictions:
        return _Reading(None, unused, num_served)
    placed = {action.gang for action in kept if isinstance(action, Nominate)}
    nominations = {g: mine for g, mine in nominations.items() if gangs[g].key in placed}
    results = count_victims(problem.snapshot, evictions)
    entitlements = _entitle(joint, evictions)
    plan = EvictionPlan(tuple(evictions), nominations, results, entitlements=entitlements)
    return _Reading(plan, unused, num_served - len(nominations))


def _choose_victims(joint: JointModel, solution: I64) -> tuple[I64, Bool]:
    """Return the victims, and a mask of the reclaimed victims.

    Among equal tasks, the most recently created tasks are evicted.
    """
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


def _entitle(joint: JointModel, evictions: Sequence[Evict]) -> tuple[Entitlement, ...]:
    """Return the amounts of each resource that reclaiming queues may hold after the evictions."""
    problem, facts = joint.form.problem, joint.facts
    number = {gang.key: g for g, gang in enumerate(problem.snapshot.gangs)}
    queue_of = {
        t.key: int(q) for t, q in zip(facts.running.tasks, facts.running.queue_of, strict=True)
    }
    found: dict[tuple[int, int], int] = {}
    for eviction in evictions:
        if eviction.action == RECLAIM:
            lender = np.array([queue_of[eviction.task]], np.int64)
            found |= facts.entitled(number[eviction.preemptor], lender)
    names, resources = problem.queues.names, problem.resources
    return tuple(
        Entitlement(names[q], resources[r], most) for (q, r), most in sorted(found.items())
    )
