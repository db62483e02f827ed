"""Encode a problem as a level model over nodes or node classes, and decode its solutions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from optsched.plugins.extension_points import NodeModel, is_domain_level, is_node_level
from optsched.problem.arrays import ranges, row_groups
from optsched.problem.formulation import Formulation, gang_classes
from optsched.problem.linear import Expression
from optsched.solver.cpsat.level_model import Configurations, LevelModel, Objective, Placement
from optsched.solver.cpsat.pricing import check_size, useful_capacity
from optsched.solver.model.assignment import assign_tasks, copy_classes, count_domains_taken
from optsched.solver.model.node_masks import (
    allowed_nodes,
    count_fitting_tasks,
    find_open_classes,
    sum_spare,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.cpsat.level_model import LevelUpdate
    from optsched.solver.model.assignment import DomainCopies
    from optsched.solver.model.neighbourhoods import Neighbourhood

MOST_START = 64
"""Maximum number of the incumbent's configurations with which column generation starts."""

MOST_START_CELLS = 4_000_000
"""Maximum number of cells in the table of the incumbent's configurations."""


@dataclass(frozen=True, eq=False)
class Goal:
    """The levels to optimise, with the values and bounds known before the search.

    Attributes
    ----------
    known
        The value of each level in the incumbent.
    bounds
        A bound on each level, or None, for plans whose earlier levels have the values `known`.
        Empty without an earlier search.

    """

    tiers: Tiers
    levels: Sequence[AnyLevel]
    known: Sequence[int]
    bounds: Sequence[int | None] = ()

    def objective(self, number: int, expression: Expression) -> Objective:
        """Return the objective of level `number`, with its known value and bound."""
        bound = self.bounds[number] if self.bounds else None
        return Objective(expression, self.levels[number].sense, self.known[number], bound)


class Encoding(Protocol):
    """A level model that can decode its solutions."""

    @property
    def model(self) -> LevelModel:
        """The level model that the solver receives."""

    @property
    def level_of(self) -> list[int]:
        """The index of each level of the model in `Goal.levels`."""

    def decode(self, update: LevelUpdate, base: Decisions) -> Decisions:
        """Return the decisions of a solution; `base` holds the decisions on all other gangs."""


# --- node by node --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Direct:
    """A level model with one integer variable per task class and node.

    The model is exact for every rule, but too large for large problems. `supplied` (C, N) holds the
    variables, or -1 where a node excludes a task class.
    """

    form: Formulation
    model: LevelModel
    level_of: list[int]
    supplied: I64

    def decode(self, update: LevelUpdate, base: Decisions) -> Decisions:
        """See `Encoding`."""
        assert update.solution is not None  # noqa: S101  the caller has checked the value
        slots = []
        for row in self.supplied:
            nodes = np.flatnonzero(row >= 0)
            slots.append(np.repeat(nodes, update.solution[row[nodes]]))
        return assign_tasks(self.form, update.solution, slots, base)


def encode_direct(
    problem: Problem,
    rules: RuleSet,
    goal: Goal,
    incumbent: Decisions,
    neighbourhood: Neighbourhood | None = None,
) -> Direct:
    """Encode all hard rules over variables x[c, n], the number of tasks of class c on node n.

    With a `neighbourhood`, the model adds tasks only to nodes inside the neighbourhood. The bounds
    of this model hold only for plans that add no tasks outside of the neighbourhood.
    """
    form = _aggregated(problem, rules, goal)
    on_node = np.zeros((len(problem.classes.shapes), problem.num_nodes), np.int64)
    tasks = np.flatnonzero(incumbent.node_of >= 0)
    np.add.at(on_node, (problem.task_class[tasks], incumbent.node_of[tasks]), 1)
    fitting = count_fitting_tasks(problem, rules) if neighbourhood is None else neighbourhood.most
    most = np.minimum(fitting, problem.classes.num_pending[:, None])
    final = _forbid_near_nominations(problem, rules, incumbent)
    if neighbourhood is not None:
        final = final | ~neighbourhood.nodes
    most[final] = np.minimum(most[final], on_node[final])
    task_class, node = np.nonzero(most > 0)
    supplied = np.full(most.shape, -1, np.int64)
    variables = form.model.add_variables(0, most[task_class, node])
    supplied[task_class, node] = variables
    # The numbers of tasks on nodes must add up to the number of placed tasks, because rules may
    # depend on the node of a task.
    form.model.add_entries(form.supply[task_class], variables, -1)
    placed = form.gangs.class_of
    balance = form.model.add_rows(
        np.concatenate([placed, task_class]),
        np.concatenate([form.placed_variable, variables]),
        np.concatenate([form.placed_factor, -np.ones_like(variables)]),
        lower=np.zeros(len(problem.classes.shapes), np.int64),
    )
    node_model = NodeModel.of(form, supplied)
    for rule in rules.hard:
        rule.constrain_nodes(node_model)
    choices, split = form.choices, form.gang_nodes
    if split is not None:
        split.add_supply_rows()
        split.add_domain_rows(choices)
    num_rules = form.model.num_rows
    objectives = [
        goal.objective(i, _expression(level, form, supplied)) for i, level in enumerate(goal.levels)
    ]
    if split is not None and form.choices is not choices:
        split.add_domain_rows(form.choices)
    hint = incumbent_values(form, incumbent)
    hint[variables] = on_node[task_class, node]
    model = _finish(form, objectives, hint)
    linking = np.zeros(len(model.rows.lower), np.bool_)
    linking[form.supply] = linking[balance] = True
    node_of = np.full(len(model.lower), -1, np.int64)
    node_of[variables] = node
    stage = _stages(form, supplied, [o.expression for o in objectives], len(model.lower))
    model = replace(model, placement=Placement(node_of, stage, linking, num_rules))
    return Direct(form, model, list(range(len(objectives))), supplied)


def _stages(
    form: Formulation, supplied: I64, levels: Sequence[Expression], num_variables: int
) -> I64:
    """Return, for each variable, the first level whose value depends on the variable's gangs.

    The result (variables,) is -1 for a variable that belongs to no gang.
    """
    gangs, starts = form.gangs, form.start >= 0
    classes = np.arange(len(gangs.shape_of), dtype=np.int64)
    gang_of = np.full(num_variables, -1, np.int64)
    gang_of[form.start[starts]] = classes[starts]
    gang_of[form.placed_variable] = gangs.gang_class_of
    stage_of = np.full(len(classes), len(levels), np.int64)
    for level, expression in enumerate(levels):
        counted = gang_of[expression.variables]
        # An expression with a variable that belongs to no gang may depend on all gangs.
        mine = counted if (counted >= 0).all() else classes
        stage_of[mine] = np.minimum(stage_of[mine], level)
    stage = np.where(gang_of >= 0, np.append(stage_of, 0)[gang_of], -1)
    of_class = np.full(len(supplied), len(levels), np.int64)
    np.minimum.at(of_class, gangs.class_of, stage_of[gangs.gang_class_of])
    task_class, node = np.nonzero(supplied >= 0)
    stage[supplied[task_class, node]] = of_class[task_class]
    return stage


def _forbid_near_nominations(problem: Problem, rules: RuleSet, incumbent: Decisions) -> Bool:
    """Return the mask of (class, node) pairs (C, N) that get no more tasks than in the incumbent.

    Rows that rules add for nodes ignore nominations. Without the mask, other tasks could get the
    devices that a nominated task needs. In the incumbent, the nominated task fits on its node in
    addition to the placed tasks.
    """
    ties = np.zeros(len(problem.classes.shapes), np.bool_)
    nominated = np.flatnonzero(incumbent.nominated >= 0)
    if len(nominated):
        for c in range(len(ties)):
            ties[c] = rules.ties_nodes(problem, c)
    nodes = np.zeros(problem.num_nodes, np.bool_)
    nodes[incumbent.nominated[nominated[ties[problem.task_class[nominated]]]]] = True
    found: Bool = ties[:, None] & nodes
    return found


def _expression(level: AnyLevel, form: Formulation, supplied: I64) -> Expression:
    if is_domain_level(level):
        return level.encode_places(form, supplied)
    if is_node_level(level):
        task_class, node = np.nonzero(supplied >= 0)
        values = level.node_values(form.problem)
        return Expression.of(supplied[task_class, node], values[task_class, node])
    return level.encode(form)


# --- by node classes -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ByConfigurations:
    """A level model over node classes, for many nodes with few distinct idle amounts.

    Node class k has the nodes `members[member_start[k]:member_start[k + 1]]`. A configuration is
    the number of tasks of each task class and domain copy on one node.
    """

    form: Formulation
    model: LevelModel
    level_of: list[int]
    members: I64
    member_start: I64
    copies: DomainCopies

    def decode(self, update: LevelUpdate, base: Decisions) -> Decisions:
        """Return the decisions of a solution; configurations are assigned to nodes in node order.

        See `Encoding`.
        """
        assert update.solution is not None  # noqa: S101  the caller has checked the value
        assert update.use_class is not None  # noqa: S101
        assert update.use_tasks is not None  # noqa: S101
        assert update.uses is not None  # noqa: S101
        order = np.argsort(update.use_class, kind="stable")
        uses, node_class = update.uses[order], update.use_class[order]
        before = np.cumsum(uses) - uses
        first_of_class = before[np.searchsorted(node_class, node_class)]
        start = self.member_start[node_class] + before - first_of_class
        node = self.members[ranges(start, uses)]
        tasks = np.repeat(self.copies.merged(update.use_tasks)[order], uses, axis=0)
        by_name = np.argsort(node, kind="stable")
        slots = [np.repeat(node[by_name], tasks[by_name, c]) for c in range(tasks.shape[1])]
        return assign_tasks(self.form, update.solution, slots, base)


def encode_configurations(
    problem: Problem, rules: RuleSet, goal: Goal, incumbent: Decisions
) -> ByConfigurations:
    """Encode a problem with variables z[k, p]: the number of class k nodes with configuration p.

    The model omits levels that depend on single nodes or domains. Raises `TooManyCapacities` if the
    requests have too many distinct sums for `Pricer`.
    """
    spare = sum_spare(problem, rules)
    requests = np.concatenate([problem.classes.request, spare.request], axis=1)
    useful = useful_capacity(problem.idle, problem.classes.request)
    capacity = np.concatenate([useful, spare.capacity], axis=1)
    allowed = allowed_nodes(problem, rules, find_open_classes(problem))
    _, first = row_groups([*capacity.T, *np.packbits(allowed, axis=0)])
    # Check the size before task classes are copied for domains, because copies only increase the
    # size.
    may = _fitting(capacity[first], requests) & allowed[:, first].T
    check_size(capacity[first], requests, may)
    form = _aggregated(problem, rules, goal)
    if rules.topology is not None:
        rules.topology.choose_domains(form)
    copies = copy_classes(form)
    request = requests[copies.class_of]
    allowed = allowed[copies.class_of] & copies.inside(problem)
    class_of, first = row_groups([*capacity.T, *np.packbits(allowed, axis=0)])
    may = _fitting(capacity[first], request) & allowed[:, first].T
    by_class = np.argsort(class_of, kind="stable")
    size = np.bincount(class_of, minlength=len(first)).astype(np.int64)
    start = _configurations_in_use(incumbent, class_of, copies.of_tasks(form, incumbent.node_of))
    chosen: list[int] = []
    objectives: list[Objective] = []
    for i, level in enumerate(goal.levels):
        if not is_node_level(level) and not is_domain_level(level):
            chosen.append(i)
            objectives.append(goal.objective(i, level.encode(form)))
    nodes = Configurations(
        supply=copies.supply,
        request=request,
        capacity=capacity[first],
        multiplicity=size,
        allowed=may,
        start_class=start[0],
        start_tasks=start[1],
    )
    model = _finish(form, objectives, incumbent_values(form, incumbent), nodes)
    ends = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    return ByConfigurations(form, model, chosen, by_class, ends, copies)


def _fitting(capacity: I64, request: I64) -> Bool:
    """Return a mask (K, C): whether a task of the task class fits on a node of the node class."""
    fits = np.ones((len(capacity), len(request)), np.bool_)
    for r in np.flatnonzero(request.any(axis=0)).tolist():
        asking = np.flatnonzero(request[:, r])
        fits[:, asking] &= capacity[:, r, None] >= request[asking, r]
    return fits


def _configurations_in_use(
    incumbent: Decisions, class_of: I64, copies: tuple[I64, int]
) -> tuple[I64, I64]:
    """Return the incumbent's configurations as (node class, tasks), most frequent first.

    `copies` holds each task's task class or domain copy (T,), and the number of task classes and
    copies.
    """
    copy_of, num_classes = copies
    tasks = np.flatnonzero(incumbent.node_of >= 0)
    nodes, at = np.unique(incumbent.node_of[tasks], return_inverse=True)
    if not len(nodes) or len(nodes) * num_classes > MOST_START_CELLS:
        return np.empty(0, np.int64), np.empty((0, num_classes), np.int64)
    table = np.zeros((len(nodes), num_classes), np.int64)
    np.add.at(table, (at, copy_of[tasks]), 1)
    group, first = row_groups([class_of[nodes], *table.T[table.any(axis=0)]])
    uses = np.bincount(group, minlength=len(first)).astype(np.int64)
    most = np.argsort(-uses, kind="stable")[:MOST_START]
    return class_of[nodes[first]][most], table[first][most]


# --- shared --------------------------------------------------------------------------------------


def _aggregated(problem: Problem, rules: RuleSet, goal: Goal) -> Formulation:
    alone, kinds = rules.distinguish_gangs(problem)
    form = Formulation(problem, gang_classes(problem, goal.tiers, alone, kinds))
    for rule in rules.hard:
        rule.encode(form)
    return form


def incumbent_values(form: Formulation, incumbent: Decisions) -> I64:
    """Return the values (variables,) of the model's variables in the incumbent.

    Variables that count neither started gangs nor placed tasks get their lower bounds.
    """
    problem, gangs = form.problem, form.gangs
    hint = form.model.bounds[0].copy()
    placed = np.bincount(problem.gang_of[incumbent.node_of >= 0], minlength=problem.num_gangs)
    class_of_member = np.repeat(np.arange(len(gangs.shape_of)), gangs.multiplicity)
    started = np.bincount(
        class_of_member, weights=placed[gangs.members] > 0, minlength=len(gangs.shape_of)
    )
    waits = form.start >= 0
    hint[form.start[waits]] = started[waits].astype(np.int64)
    for f in np.flatnonzero(form.is_flexible).tolist():
        tasks = form.tasks_of(f)
        hint[form.placed_variable[f]] = int((incumbent.node_of[tasks] >= 0).sum())
    for variables, numbers in count_domains_taken(form, incumbent):
        hint[variables] = numbers
    if form.gang_nodes is not None:
        variables, numbers = form.gang_nodes.values(incumbent.node_of)
        hint[variables] = numbers
    return hint


def _finish(
    form: Formulation,
    objectives: Sequence[Objective],
    hint: I64,
    nodes: Configurations | None = None,
) -> LevelModel:
    lower, upper = form.model.bounds
    padded = lower.copy()
    padded[: len(hint)] = hint
    # `kin` is the group of interchangeable gangs to which a variable belongs, or -1. Gangs of equal
    # gang shape and tier are interchangeable, even in different queues. The variables of one entry
    # of interchangeable gangs also form a group.
    gangs = form.gangs
    kin = np.full(len(lower), -1, np.int64)
    alike, _ = row_groups((gangs.shape_of, gangs.tier_of))
    starts = form.start >= 0
    kin[form.start[starts]] = alike[starts]
    entry, _ = row_groups((gangs.entry_of, alike[gangs.gang_class_of]))
    kin[form.placed_variable[form.is_flexible]] = len(alike) + entry[form.is_flexible]
    for choice in form.choices.all:
        # A topology choice binds the gangs of a gang class to specific domains, so gangs of other
        # gang classes cannot replace them.
        h = choice.gang_class
        kin[form.placed_variable[gangs.start[h] : gangs.start[h + 1]]] = -1
        kin[form.start[h : h + 1][starts[h : h + 1]]] = -1
    if form.gang_nodes is not None:
        split = form.gang_nodes.gang_of >= 0
        kin[form.placed_variable[split]] = -1
    return LevelModel(lower, upper, form.model.rows, tuple(objectives), padded, kin, nodes)
