"""The joint model of a session, which chooses starting gangs, their tasks' nodes and victims.

Mathematics: models/formulation/entitled.md, "The joint model". The model extends `Direct` of
`solver.model.encoding`: for each group of equal running tasks on a node, an integer variable counts
the evicted tasks. A bounding model only computes bounds and ignores rules that are neither in
`_ENCODED` nor in `_MASKING`. The optimum of a bounding model bounds all plans that the policy
allows, with and without evictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.custom.isolation import IsolatedRule
from optsched.plugins.eviction.moves import CONSOLIDATE
from optsched.plugins.gangs.gang import Gang, SubGroups
from optsched.plugins.nodes.node_filters import NodeAffinity, Shards, Taints
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.queue_limits import Capability, LeafQueues
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.problem.arrays import frozen, row_groups
from optsched.problem.formulation import Formulation, Victims, gang_classes
from optsched.problem.linear import Expression
from optsched.problem.running import without_gangs
from optsched.solver.model.node_masks import static_mask
from optsched.solver.preemption.candidate_victims import (
    SessionFacts,
    VictimGrouper,
    find_candidates,
)
from optsched.solver.preemption.joint.entitlement import (
    EntitledClasses,
    add_entitlement_rows,
    has_too_many_pairs,
)
from optsched.solver.preemption.sequential.eviction_problem import EvictionState
from optsched.solver.preemption.sequential.limits import Limits
from optsched.solver.preemption.sequential.model import add_whole_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.preemption.joint.entitlement import ReclaimPair
    from optsched.solver.preemption.sequential.eviction_problem import Groups

MOST_VARIABLES = 40_000
"""Maximum number of integer variables of a joint model; larger models are not built."""

MOST_SINGLE = 20_000
"""Maximum number of (task class, node) pairs for which each node is its own node set."""

MOST_MERGED = 4_000
"""Maximum number of (task class, node set) pairs; if there are more, node sets are merged."""

MERGED_SETS = 6
"""Number of node sets after merging, if there are more than `MOST_MERGED` pairs."""

MOST_STEPS = 10
"""Maximum number of step sizes for each resource in rounded rows.

The most frequent requests are used as step sizes.
"""

_ENCODED = (Gang, SubGroups, LeafQueues, Capability, Guarantee)
"""Rules whose rows hold for plans with and without evictions, if `Formulation.victims` is set."""

_MASKING = (NodeAffinity, PodAffinity, Shards, Taints)
"""Rules whose node masks ignore gang tasks, so that evictions do not change the masks."""


@dataclass(frozen=True, eq=False)
class JointModel:
    """The joint model under construction.

    Attributes
    ----------
    facts
        The running tasks and the deserved shares of queues.
    groups
        Groups of equal candidate victims on one node (axis K).
    evict, whole
        (K,) variables that count the victims of each group, and (J,) binary variables that are 1 if
        a gang is evicted entirely.
    node_set
        (N,) index of each node's node set, or -1 for nodes on which no task fits.
    supplied
        (C, M) variables that count the tasks of each class on each node set, or -1 if no task fits.
    reclaim, pairs
        (K,) variables that count the reclaimed tasks of each group, or -1 where none may be
        reclaimed, and the pairs of a reclaimer class and a lending queue.
    able
        Gang classes for which tasks may be evicted, or None in a bounding model.

    """

    form: Formulation
    facts: SessionFacts
    groups: Groups
    evict: I64
    whole: I64
    node_set: I64
    supplied: I64
    reclaim: I64
    pairs: list[ReclaimPair]
    able: EntitledClasses | None

    def count_whole_gangs(self) -> Expression:
        """Return the number of gangs evicted entirely, including gangs of one task."""
        alone = self.groups.gang < 0
        ends = np.concatenate([self.evict[alone], self.whole])
        return Expression.of(ends, np.ones(len(ends), np.int64))


def encode_joint(
    problem: Problem,
    rules: RuleSet,
    tiers: Tiers,
    reach: frozenset[str],
    waiting_gangs: WaitingGangs | None = None,
) -> JointModel | None:
    """Encode a session, before any eviction, as a joint model without levels.

    An exact model requires `waiting_gangs`; for a bounding model, `waiting_gangs` is None. Every
    solution of an exact model is a valid plan, but the model excludes some valid plans. A bounding
    model excludes no valid plan, but some of its solutions are not valid plans. `reach` holds the
    actions of the policy that may evict or move tasks: preempt, reclaim, consolidate.

    Returns None if the model would have more than `MOST_VARIABLES` integer variables. For an exact
    model, the result is also None if the model has too many pairs of a reclaimer class and a
    lending queue, or if `is_tied` is true.
    """
    is_exact = waiting_gangs is not None
    if is_exact and is_tied(problem, rules):
        return None
    facts = SessionFacts(problem, rules)
    candidates = find_candidates(facts, reach, waives=not is_exact)
    if is_exact:
        candidates = candidates._replace(exchanged=np.zeros_like(candidates.exchanged))
    gang_of = facts.running.gang_of
    groups = VictimGrouper(facts).groups(
        -1,
        np.flatnonzero(candidates.any_reason),
        candidates.reclaimed,
        # Victims of gangs that also have pending tasks form separate groups.
        (*candidates, np.where(problem.shape_of[gang_of] >= 0, gang_of, -1)),
    )
    moves = _group_movable_tasks(facts) if CONSOLIDATE in reach else None
    # The idle capacity of nodes after every candidate is evicted or moved.
    full = np.maximum(problem.allocatable - problem.used + problem.releasing, 0)
    full = groups.release_capacity(full, groups.count)
    if moves is not None:
        np.add.at(full, moves.node, moves.count[:, None] * moves.request)
    most = _max_tasks_per_node(problem, rules, full, is_exact=is_exact)
    node_set = _group_nodes(most)
    size = int(node_set.max(initial=-1)) + 1
    is_merged = size < int(most.any(axis=0).sum())
    if len(groups) + len(most) * size > MOST_VARIABLES or (is_exact and is_merged):
        return None
    form = _formulation(problem, rules, tiers, full, waiting_gangs)
    at = groups.tasks[np.unique(groups.of_task, return_index=True)[1]]
    who = [mask[at] for mask in candidates]
    able = None
    if waiting_gangs is not None:
        able = find_entitled_classes(form, rules, waiting_gangs)
        # Check the number of pairs before building rows, because a model with too many pairs is
        # rejected.
        if has_too_many_pairs(form, facts, groups, who[2], able.reclaim):
            return None
    evict = form.model.add_variables(0, groups.count)
    form.victims = Victims(evict, groups.count, groups.queue, groups.request)
    for rule in rules.hard:
        if isinstance(rule, _ENCODED) or is_exact:
            rule.encode(form)
    supplied = _add_supply(form, most, node_set, size)
    _add_capacity_rows(form, supplied, node_set, groups, evict, moves)
    state = EvictionState.without_evictions(problem)
    wholes = VictimGrouper(facts).wholes(-1, groups, state)
    whole = form.model.add_variables(0, np.array([int(w.may_end) for w in wholes], np.int64))
    add_whole_rows(form.model, (groups, wholes), evict, whole)
    # A bound must also cover plans in which a reclaim within a guarantee overrides disruption
    # budgets.
    overriding = None
    if not is_exact and facts.floors.yielding.any():
        overriding = candidates.reclaimed
    for limit in Limits(facts).budgets(groups, state, overriding):
        form.model.add_rows(0, evict[limit.groups], limit.weights, upper=limit.most)
    if able is not None:
        _add_victim_gang_rows(form, groups, gang_of[at], evict)
    reclaim, pairs = add_entitlement_rows(form, facts, groups, evict, who, wholes, able)
    joint = JointModel(form, facts, groups, evict, whole, node_set, supplied, reclaim, pairs, able)
    if able is not None:
        _Presence(joint, able).add_rows()
    return joint


def is_tied(problem: Problem, rules: RuleSet) -> bool:
    """Return whether a rule is custom, or makes placements depend on other tasks of the node.

    Gangs that can choose among too many topology domains also count as tied.
    """
    if any(isinstance(rule, IsolatedRule) for rule in rules.hard):
        return True
    tied = None if rules.topology is None else rules.topology.find_tied_gangs(problem)
    if tied is not None and tied.any():
        return True
    classes = range(len(problem.classes.shapes))
    return any(rule.ties_nodes(problem, c) for rule in rules.hard for c in classes)


@dataclass(frozen=True, eq=False)
class WaitingGangs:
    """Masks (G,) of the gangs with at least one unplaced task, and with at least one placed task.

    The masks describe the placements before any eviction. A gang can be in both masks.
    """

    lacks: Bool
    gets: Bool


def find_waiting_gangs(problem: Problem, decisions: Decisions) -> WaitingGangs:
    """Find the gangs with unplaced tasks in `decisions`, and the gangs with placed tasks."""
    placed = (decisions.node_of >= 0) | (decisions.nominated >= 0)
    lacks, gets = (
        np.bincount(problem.gang_of[tasks], minlength=problem.num_gangs) > 0
        for tasks in (~placed, placed)
    )
    return WaitingGangs(lacks, gets)


def find_entitled_classes(
    form: Formulation, rules: RuleSet, waiting_gangs: WaitingGangs
) -> EntitledClasses:
    """Return the gang classes with unplaced tasks that may preempt, and that may reclaim.

    A gang with running or placed tasks preempts only if the policy lets gangs preempt beyond their
    minimum.
    """
    gangs = form.gangs
    preempts = np.array([shape.preempts for shape in form.problem.classes.shapes], np.bool_)
    able = np.ones(len(gangs.shape_of), np.bool_)
    np.logical_and.at(able, gangs.gang_class_of, preempts[gangs.class_of])
    first = gangs.members[gangs.member_start[:-1]]
    able &= waiting_gangs.lacks[first]
    lacking = (form.start >= 0) & ~waiting_gangs.gets[first]
    return EntitledClasses(able & (lacking | rules.preempts_for_growth), able)


def _add_victim_gang_rows(form: Formulation, groups: Groups, gang_of: I64, evict: I64) -> None:
    """Add rows that let a gang class place no task if its running tasks are evicted.

    `gang_of` (K,) is the gang index of each victim group.
    """
    gangs, model = form.gangs, form.model
    class_of = np.full(form.problem.num_gangs, -1, np.int64)
    class_of[gangs.members] = np.repeat(np.arange(len(gangs.shape_of)), gangs.multiplicity)
    for h in np.unique(class_of[gang_of][class_of[gang_of] >= 0]).tolist():
        mine = np.flatnonzero(class_of[gang_of] == h)
        entries = np.arange(gangs.start[h], gangs.start[h + 1])
        placed = np.unique(form.placed_variable[entries])
        (gains,) = model.add_variables(0, 1)
        most = int(model.bounds[1][placed].sum())
        ones = np.ones(len(placed), np.int64)
        model.add_rows(0, np.append(placed, gains), np.append(ones, -most), upper=0)
        total = int(groups.count[mine].sum())
        ones = np.ones(len(mine), np.int64)
        model.add_rows(0, np.append(evict[mine], gains), np.append(ones, total), upper=total)


@dataclass(frozen=True, eq=False)
class _Moves:
    """Groups of equal running tasks that may move: node, number and request of each group."""

    node: I64
    count: I64
    request: I64


def _group_movable_tasks(facts: SessionFacts) -> _Moves:
    running = facts.running
    free = np.flatnonzero(~facts.spared)
    if not len(free):
        empty = np.empty(0, np.int64)
        return _Moves(empty, empty, running.request[:0])
    of, first = row_groups([running.node_of[free], *running.request[free].T])
    at = free[first]
    return _Moves(running.node_of[at], np.bincount(of).astype(np.int64), running.request[at])


def _max_tasks_per_node(problem: Problem, rules: RuleSet, full: I64, *, is_exact: bool) -> I64:
    """Return how many tasks (C, N) of each class fit on each node without candidate victims."""
    alone = without_gangs(problem)
    masking = [rule for rule in rules.masking if is_exact or isinstance(rule, _MASKING)]
    if is_exact:
        future_idle = problem.allocatable - problem.used + problem.releasing
        full = full * np.expand_dims((future_idle >= 0).all(axis=1), 1)
    most = np.zeros((len(problem.classes.shapes), problem.num_nodes), np.int64)
    for c, request in enumerate(problem.classes.request):
        requested = np.flatnonzero(request)
        fits = (full[:, requested] // request[requested]).min(axis=1, initial=2**40)
        mask = static_mask(alone, masking, c)
        most[c] = fits if mask is None else np.where(mask, fits, 0)
    return np.minimum(most, problem.classes.num_pending[:, None])


def _group_nodes(most: I64) -> I64:
    """Return the index (N,) of each node's node set, or -1 for nodes on which no task fits.

    A node set is a single node, or all nodes on which the same task classes fit. Too many node sets
    are merged into `MERGED_SETS` sets.
    """
    useful = most.any(axis=0)
    found = np.full(most.shape[1], -1, np.int64)
    if int((most > 0).sum()) <= MOST_SINGLE:
        found[useful] = np.arange(int(useful.sum()))
    elif useful.any():
        fits = most[:, useful] > 0
        found[useful] = row_groups(list(np.packbits(fits, axis=0)))[0]
        if len(most) * (int(found.max()) + 1) > MOST_MERGED:
            # Any partition of the nodes into sets gives a valid bound. After sorting, nodes that
            # only rare task classes may use are in one set.
            order = np.lexsort(fits[np.argsort(fits.sum(axis=1), kind="stable")[::-1]])
            found[np.flatnonzero(useful)[order]] = np.arange(len(order)) * MERGED_SETS // len(order)
    return found


def _formulation(
    problem: Problem, rules: RuleSet, tiers: Tiers, full: I64, waiting_gangs: WaitingGangs | None
) -> Formulation:
    """Return the aggregated model of gangs and queues, as if all candidates had terminated."""
    alone, kinds = rules.distinguish_gangs(problem)
    if waiting_gangs is not None:
        kinds += [waiting_gangs.lacks.astype(np.int64), waiting_gangs.gets.astype(np.int64)]
    used = problem.allocatable - full
    releasing = np.zeros_like(problem.releasing)
    frozen(used, releasing)
    emptied = replace(problem, used=used, releasing=releasing)
    return Formulation(emptied, gang_classes(problem, tiers, alone, [*kinds, problem.priority]))


def _add_supply(form: Formulation, most: I64, node_set: I64, size: int) -> I64:
    """Add variables (C, M) for task classes on node sets to the supply rows, and return them."""
    by_set = np.zeros((len(most), size), np.int64)
    useful = node_set >= 0
    for c, row in enumerate(most):
        np.add.at(by_set[c], node_set[useful], row[useful])
    by_set = np.minimum(by_set, form.problem.classes.num_pending[:, None])
    task_class, at = np.nonzero(by_set)
    supplied = np.full(by_set.shape, -1, np.int64)
    variables = form.model.add_variables(0, by_set[task_class, at])
    supplied[task_class, at] = variables
    form.model.add_entries(form.supply[task_class], variables, -1)
    return supplied


def _add_capacity_rows(
    form: Formulation,
    supplied: I64,
    node_set: I64,
    groups: Groups,
    evict: I64,
    moves: _Moves | None,
) -> None:
    """Add rows Σ request·placed ≤ future idle + Σ request·evicted per node set and resource."""
    problem, model = form.problem, form.model
    base = problem.allocatable - problem.used
    np.subtract.at(base, groups.node, groups.count[:, None] * groups.request)
    here = np.flatnonzero(node_set[groups.node] >= 0)
    moved = np.empty(0, np.int64)
    if moves is not None:
        np.subtract.at(base, moves.node, moves.count[:, None] * moves.request)
        moved = model.add_variables(0, moves.count)
    useful = node_set >= 0
    capacity_of_set = np.zeros((supplied.shape[1], base.shape[1]), np.int64)
    np.add.at(capacity_of_set, node_set[useful], base[useful])
    task_class, at = np.nonzero(supplied >= 0)
    placed, request = supplied[task_class, at], problem.classes.request[task_class]
    for r in np.flatnonzero(request.any(axis=0)).tolist():
        rows, variables = [at, node_set[groups.node[here]]], [placed, evict[here]]
        factors = [request[:, r], -groups.request[here, r]]
        if moves is not None:
            known = np.flatnonzero(node_set[moves.node] >= 0)
            rows.append(node_set[moves.node[known]])
            variables.append(moved[known])
            factors.append(-moves.request[known, r])
            # A moved task uses capacity of another node, so moves do not increase the cluster's
            # idle capacity.
            model.add_rows(
                0,
                np.concatenate([placed, evict]),
                np.concatenate([request[:, r], -groups.request[:, r]]),
                upper=int(base[:, r].sum()),
            )
        model.add_rows(
            np.concatenate(rows),
            np.concatenate(variables),
            np.concatenate(factors),
            upper=capacity_of_set[:, r],
        )
        if moves is None and not len(groups) and len(capacity_of_set) < int(useful.sum()):
            _add_rounded_rows(form, (placed, at, request[:, r]), (node_set, base[:, r]), r)


def _add_rounded_rows(
    form: Formulation, supply: tuple[I64, I64, I64], capacity: tuple[I64, I64], resource: int
) -> None:
    """Add rows Σ ⌊request / step⌋·placed ≤ Σ ⌊capacity / step⌋ per node set, for several steps.

    The rows are Chvátal-Gomory roundings of each node's capacity row, summed over nodes. Tasks that
    request `step` cannot use the capacity of a node beyond a multiple of `step`. `supply` holds
    variables that count tasks, the node set of each variable, and how much of the resource a
    counted task requests. `capacity` holds the node set and the capacity of each node.
    """
    placed, at, request = supply
    node_set, base = capacity
    useful = node_set >= 0
    steps, number = np.unique(form.problem.classes.request[:, resource], return_counts=True)
    frequent = np.argsort(-number[steps > 0], kind="stable")[:MOST_STEPS]
    for step in np.sort(steps[steps > 0][frequent]).tolist():
        capacity_of_set = np.zeros(int(node_set.max()) + 1, np.int64)
        np.add.at(capacity_of_set, node_set[useful], np.maximum(base[useful], 0) // step)
        form.model.add_rows(at, placed, request // step, upper=capacity_of_set)


class _Presence:
    """Adds the rows of an exact model that allow victims only on nodes used by entitled gangs.

    The verifier rejects a plan whose preemptor does not use the capacity of its victims. Without
    these rows, the model could evict tasks for a gang on nodes that the gang does not use. Queues
    that are not entitled to the capacity on such nodes could then use this capacity.
    """

    def __init__(self, joint: JointModel, able: EntitledClasses) -> None:
        self._joint, self._able = joint, able
        self._coming: dict[tuple[int, bytes], I64] = {}

    def add_rows(self) -> None:
        """Add rows for every group of victims.

        If a gang is evicted entirely or by subgroups, an entitled gang must use the node of one of
        the evicted tasks. In all other cases, an entitled gang must use the node of each victim.
        """
        joint, groups, form = self._joint, self._joint.groups, self._joint.form
        # The number of tasks on all nodes is at most the number of placed tasks, so that a task
        # justifies victims on only one node.
        for task_class, row in enumerate(joint.supplied):
            mine = row[row >= 0]
            placed = form.placed(
                np.ones_like(form.placed_factor), form.gangs.class_of == task_class
            )
            factors = np.append(np.ones(len(mine), np.int64), -placed.coefficients)
            form.model.add_rows(0, np.append(mine, placed.variables), factors, upper=0)
        first = groups.tasks[np.unique(groups.of_task, return_index=True)[1]]
        gangs = form.problem.snapshot.gangs
        lost = [gangs[g] for g in joint.facts.running.gang_of[first].tolist()]
        for k, (gang, j) in enumerate(zip(lost, groups.gang.tolist(), strict=True)):
            in_groups = bool(gang.role_minimums or gang.sub_groups)
            if j >= 0 and (in_groups or gang.min_member > 1):
                self._add_group(k, groups.gang == j)
                if not in_groups:
                    self._add_group(k, np.arange(len(groups)) == k, [int(joint.whole[j])])
            else:
                self._add_group(k, np.arange(len(groups)) == k)

    def _add_group(self, k: int, mine: Bool, unless: Sequence[int] = ()) -> None:
        """Allow victims of group k only if an entitled gang uses a node of the groups `mine` (K,).

        If a binary variable in `unless` is 1, the victims are not limited.
        """
        joint, groups, able = self._joint, self._joint.groups, self._able
        gangs = joint.form.gangs
        evict, reclaim, count = int(joint.evict[k]), int(joint.reclaim[k]), int(groups.count[k])
        sets = np.unique(joint.node_set[groups.node[mine]])
        sets = sets[sets >= 0]
        # Each limit holds the factor of each variable that counts victims, the number of victims
        # that no gang has to justify, and the gang classes (H,) that justify more victims.
        limits: list[tuple[dict[int, int], int, Bool]] = []
        if reclaim != evict:
            priority = joint.form.problem.priority[gangs.members[gangs.member_start[:-1]]]
            own = (gangs.queue_of == groups.queue[k]) & (priority > groups.priority[k])
            preempted = {evict: 1} if reclaim < 0 else {evict: 1, reclaim: -1}
            limits.append((preempted, 0, own & able.preempt))
        for pair in joint.pairs if reclaim >= 0 else ():
            if pair.lender == groups.queue[k]:
                reclaimed = {reclaim: 1, pair.variable: count}
                limits.append((reclaimed, count, pair.kind.classes & able.reclaim))
        for columns, upper, entitled in limits:
            classes = np.unique(gangs.class_of[entitled[gangs.gang_class_of]])
            found = [self._tasks_of(c, entitled)[sets] for c in classes.tolist()]
            lifting = [*(int(v) for row in found for v in row if v >= 0), *unless]
            factors = [*columns.values(), *[-count] * len(lifting)]
            joint.form.model.add_rows(0, [*columns, *lifting], factors, upper=upper)

    def _tasks_of(self, task_class: int, gang_classes: Bool) -> I64:
        """Return variables (M,) for the tasks of a task class in gang classes (H,), by node set.

        A variable is -1 where no task fits. Separate variables are needed because `supplied` counts
        the tasks of all gang classes.
        """
        form = self._joint.form
        supplied: I64 = self._joint.supplied[task_class]
        gangs, key = form.gangs, (task_class, gang_classes.tobytes())
        if key in self._coming:
            return self._coming[key]
        mine = (gangs.class_of == task_class) & gang_classes[gangs.gang_class_of]
        possible = np.flatnonzero(supplied >= 0)
        model, all_tasks = form.model, supplied[possible]
        coming = model.add_variables(0, model.bounds[1][all_tasks])
        rows, ones = np.arange(len(possible)), np.ones(len(possible), np.int64)
        model.add_rows(
            np.append(rows, rows),
            np.append(coming, all_tasks),
            np.append(ones, -ones),
            upper=np.zeros(len(possible), np.int64),
        )
        placed = form.placed(np.ones_like(form.placed_factor), mine)
        model.add_rows(
            0,
            np.append(coming, placed.variables),
            np.append(ones, -placed.coefficients),
            upper=0,
        )
        found: I64 = np.full_like(supplied, -1)
        found[possible] = coming
        self._coming[key] = found
        return found
