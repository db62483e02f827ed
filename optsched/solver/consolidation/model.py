"""An integer program over node classes that moves as few running tasks as possible to start gangs.

In the what-if problem, every movable task is pending. A movable task may stay on its present node
or move to another node. Tasks that stay form separate task classes, which fit only on the present
nodes of these tasks. The number of interchangeable tasks that stay on a node is at most the number
that run there now. `read_solution` decodes a solution into moves and the nodes of all tasks.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.problem.arrays import UNPLACED, row_groups
from optsched.problem.formulation import Formulation, gang_classes
from optsched.problem.linear import Expression
from optsched.problem.running import running_tasks
from optsched.solver.cpsat.level_model import Configurations, LevelModel, Objective
from optsched.solver.cpsat.pricing import useful_capacity
from optsched.solver.model.assignment import assign_tasks, copy_classes
from optsched.solver.model.encoding import incumbent_values
from optsched.solver.model.node_masks import allowed_nodes
from optsched.solver.preemption.candidate_victims import lost_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.extension_points import GangLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.consolidation.movable_tasks import Movables
    from optsched.solver.cpsat.level_model import LevelUpdate
    from optsched.solver.model.assignment import DomainCopies

MOVES = "moves"


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A what-if problem in which movable tasks may move and requesting gangs may start.

    Attributes
    ----------
    problem
        The what-if problem of `movables`. The decisions for gangs that the model omits are fixed.
    base
        The decisions without moves, on the axes of `problem`.
    requesting
        (G,) mask of the gangs that may start in addition to the gangs that `base` places.
    priority
        (G,) priority of each gang. Gangs with different priorities are in different gang classes.

    """

    movables: Movables
    problem: Problem
    base: Decisions
    requesting: Bool
    tiers: Tiers
    priority: I64


@dataclass(frozen=True, eq=False)
class Encoded:
    """The level model of a what-if problem, and the data that `read_solution` needs.

    Attributes
    ----------
    stay
        (M,) variables that count how many tasks of each kind stay on their nodes. A kind is a set
        of interchangeable movable tasks.
    class_of
        (N,) node class of each node.
    num_gang_levels
        Number of levels that precede the level `moves`.
    hint
        (variables,) values of the variables when no task moves.

    """

    form: Formulation
    model: LevelModel
    copies: DomainCopies
    stay: I64
    class_of: I64
    num_gang_levels: int
    hint: I64


def build_formulation(what: WhatIf, rules: RuleSet) -> Formulation:
    """Build the aggregated model of a what-if problem, with the rows of all hard rules."""
    problem = what.problem
    alone, kinds = rules.distinguish_gangs(problem)
    kinds += [what.priority, what.requesting.astype(np.int64)]
    form = Formulation(problem, gang_classes(problem, what.tiers, alone, kinds))
    for rule in rules.hard:
        rule.encode(form)
    return form


def find_broken_entries(form: Formulation, hint: I64) -> Bool:
    """Return the mask (F,) of entries whose tasks could not restart on their present nodes.

    An entry consists of the tasks of one task class in the gangs of one gang class. An entry is in
    the mask if the present placements violate a row that contains a variable of the entry. The
    check ignores supply rows, and considers only rows whose variables all count started gangs or
    placed tasks.
    """
    rows, known = form.model.rows, np.zeros(form.model.num_variables, np.bool_)
    known[form.placed_variable] = True
    known[form.start[form.start >= 0]] = True
    unknown = np.zeros(len(rows.lower), np.bool_)
    unknown[rows.row[~known[rows.variable]]] = True
    unknown[form.supply] = True
    activity = np.zeros(len(rows.lower), np.int64)
    np.add.at(activity, rows.row, rows.coefficient * hint[rows.variable])
    wrong = ((activity > rows.upper) | (activity < rows.lower)) & ~unknown
    variables = np.unique(rows.variable[wrong[rows.row]])
    found: Bool = np.isin(form.placed_variable, variables)
    return found


def encode(
    what: WhatIf,
    rules: RuleSet,
    form: Formulation,
    levels: Sequence[tuple[GangLevel, int]],
    most_moves: int = 0,
) -> Encoded:
    """Encode a what-if problem as a level model.

    `levels` holds the levels, each with its value before any move. At most `most_moves` tasks move;
    if `most_moves` is 0, the number of moves is not limited.
    """
    if rules.topology is not None:
        rules.topology.choose_domains(form)
    copies = copy_classes(form)
    stay = _stay_rows(form, what.movables)
    objectives = [Objective(lv.encode(form), lv.sense, known) for lv, known in levels]
    total = int(what.movables.count.sum())
    if most_moves:
        form.model.add_rows(0, stay, 1, lower=max(total - most_moves, 0))
    moves = Expression.of(stay, -np.ones_like(stay), total)
    objectives.append(Objective(moves, Sense.MIN))
    hint = incumbent_values(form, what.base)
    hint[stay] = what.movables.count
    _minimum_rows(form, what, hint)
    # Every task that `base` places stays placed; only requesting gangs get further tasks.
    lower, upper = form.model.bounds
    gangs, starts = form.gangs, form.start >= 0
    asks = what.requesting[gangs.members[gangs.member_start[:-1]]]
    numbers = np.concatenate([form.start[starts], form.placed_variable])
    is_fixed = ~np.concatenate([asks[starts], asks[gangs.gang_class_of]])
    lower[numbers] = np.maximum(lower[numbers], hint[numbers])
    upper[numbers[is_fixed]] = hint[numbers[is_fixed]]
    none = np.zeros(len(stay), np.int64)
    # The number of staying tasks of a kind is at most the number in the configurations of all
    # nodes.
    stay_supply = form.model.add_rows(np.arange(len(stay)), stay, 1, upper=none)
    nodes, class_of = _build_configurations(what, rules, form, copies, stay_supply)
    kin = np.full(len(lower), -1, np.int64)
    model = LevelModel(lower, upper, form.model.rows, tuple(objectives), hint, kin, nodes)
    return Encoded(form, model, copies, stay, class_of, len(levels), hint)


# --- rows ----------------------------------------------------------------------------------------


def _stay_rows(form: Formulation, movables: Movables) -> I64:
    """Add and return variables (M,) that count the staying tasks of each kind.

    The added rows allow a gang to lose either at most its surplus tasks or all its tasks. Further
    rows enforce disruption budgets.
    """
    stay = form.model.add_variables(0, movables.count)
    form.model.add_entries(form.supply[movables.task_class], stay, -np.ones_like(stay))
    count, add = movables.count, form.model.add_rows
    for whole in movables.wholes:
        (leaves,) = form.model.add_variables(0, int(whole.may_end))
        parts = [(whole.kinds, whole.held, whole.surplus), *whole.by_role]
        for kinds, held, surplus in parts:
            minus = np.append(-np.ones(len(kinds), np.int64), surplus - held)
            most = surplus - int(count[kinds].sum())
            add(0, np.append(stay[kinds], leaves), minus, upper=most)
        ones = np.append(np.ones(len(whole.kinds), np.int64), whole.held)
        most = int(count[whole.kinds].sum())
        if whole.may_end:
            add(0, np.append(stay[whole.kinds], leaves), ones, upper=most)
    for kinds, allowed in movables.budgets:
        add(0, stay[kinds], 1, lower=max(int(count[kinds].sum()) - allowed, 0))
    return stay


def _minimum_rows(form: Formulation, what: WhatIf, hint: I64) -> None:
    """Add rows that give requesting gangs no tasks beyond their minimums, to move fewer tasks."""
    gangs = form.gangs
    first = gangs.members[gangs.member_start[:-1]]
    for h in np.flatnonzero(what.requesting[first] & (form.start >= 0)).tolist():
        entries = np.arange(int(gangs.start[h]), int(gangs.start[h + 1]))
        if not form.is_flexible[entries].all():
            continue
        shape = what.problem.shapes.shapes[int(gangs.shape_of[h])]
        need = shape.min_members
        placed, start = form.placed_variable[entries], int(form.start[h])
        most = int(hint[placed].sum()) - need * int(hint[start])
        factors = np.append(np.ones(len(placed), np.int64), -need)
        form.model.add_rows(0, np.append(placed, start), factors, upper=most)


# --- nodes ---------------------------------------------------------------------------------------


def _build_configurations(
    what: WhatIf, rules: RuleSet, form: Formulation, copies: DomainCopies, stay_supply: I64
) -> tuple[Configurations, I64]:
    """Return the node classes with their present configurations, and the class (N,) of each node.

    Nodes of one node class have the same idle capacity, the same allowed task classes and the same
    movable tasks.
    """
    problem, movables = what.problem, what.movables
    num_kinds = len(movables.count)
    here = movables.on_node(problem.num_nodes)
    allowed = allowed_nodes(problem, rules)[copies.class_of] & copies.inside(problem)
    capacity = useful_capacity(problem.idle, problem.classes.request)
    columns = [*capacity.T, *np.packbits(allowed, axis=0), *here.T]
    class_of, first = row_groups(columns)
    request = problem.classes.request
    comes = request[copies.class_of]
    fits = (capacity[first][:, None, :] >= comes[None, :, :]).all(axis=2) & allowed[:, first].T
    stays = request[movables.task_class]
    slots = np.eye(num_kinds, dtype=np.int64)
    none = np.zeros((len(comes), num_kinds), np.int64)
    # Build the configurations that the nodes have before any move. `here` counts the movable tasks,
    # and `table` counts all other tasks.
    node_of = what.base.node_of.copy()
    node_of[movables.at] = UNPLACED
    copy_of, num_copies = copies.of_tasks(form, node_of)
    table = np.zeros((problem.num_nodes, num_copies), np.int64)
    placed = np.flatnonzero(node_of >= 0)
    np.add.at(table, (node_of[placed], copy_of[placed]), 1)
    present = np.hstack([table, here])
    _, distinct = row_groups([class_of, *present.T])
    used = distinct[present[distinct].any(axis=1)]
    nodes = Configurations(
        supply=np.concatenate([copies.supply, stay_supply]),
        request=np.vstack([np.hstack([comes, none]), np.hstack([stays, slots])]),
        capacity=np.hstack([capacity[first], here[first]]),
        multiplicity=np.bincount(class_of, minlength=len(first)).astype(np.int64),
        allowed=np.hstack([fits, here[first] > 0]),
        start_class=class_of[used],
        start_tasks=present[used],
    )
    return nodes, class_of


@dataclass(frozen=True, eq=False)
class Relocation:
    """The moves and placements in a solution of a what-if problem.

    Attributes
    ----------
    leaves
        (k,) indices of the tasks that move, on axis V' of movable tasks.
    to
        (k,) index of the node to which each task moves.
    node_of
        (T,) node index of each task of the what-if problem; `UNPLACED` for tasks of gangs with
        movable tasks.

    """

    leaves: I64
    to: I64
    node_of: I64


def read_solution(
    problem: Problem, what: WhatIf, encoded: Encoded, update: LevelUpdate
) -> Relocation:
    """Decode the moves and placements of a solution.

    `problem` is the problem before any move.
    """
    assert update.solution is not None  # noqa: S101  the caller has checked the value
    num_kinds, movables = len(encoded.stay), what.movables
    # Rank movable tasks by priority, lost work and age; the task with rank 0 is the cheapest to
    # move.
    running = running_tasks(problem)
    tasks = movables.tasks
    born = np.array([running.tasks[v].created_ms for v in tasks.tolist()], np.int64)
    priority = problem.priority[running.gang_of[tasks]]
    by_cost = np.lexsort((tasks, -born, lost_steps(problem)[tasks], priority))
    costs = np.empty(len(tasks), np.int64)
    costs[by_cost] = np.arange(len(tasks))
    filled = _assign_configurations(encoded, update, (movables, costs))
    present = movables.on_node(len(filled))
    kept = np.minimum(filled[:, -num_kinds:], present)
    # The configurations may keep more tasks of a gang than the solution keeps; the excess tasks
    # move.
    stay = update.solution[encoded.stay]
    for k in {int(k) for whole in movables.wholes for k in whole.kinds}:
        before = np.cumsum(kept[:, k]) - kept[:, k]
        kept[:, k] = np.clip(stay[k] - before, 0, kept[:, k])
    slots = encoded.copies.merged(filled[:, :-num_kinds])
    # Among equal tasks on a node, the tasks that are cheapest to move are moved.
    order = np.lexsort((costs, movables.kind, movables.node))
    node, kind = movables.node[order], movables.kind[order]
    code = node * num_kinds + kind
    rank = np.arange(len(order)) - np.searchsorted(code, code, side="left")
    leaves = np.sort(order[rank < (present - kept)[node, kind]])
    leaves = _drop_needless_moves(movables, leaves, slots)
    node_of = _assign_other_tasks(what, encoded, update.solution, slots)
    to = np.full(len(leaves), UNPLACED, np.int64)
    classes = movables.task_class[movables.kind[leaves]]
    for c in np.unique(classes).tolist():
        mine = np.flatnonzero(classes == c)
        taken = node_of[(what.problem.task_class == c) & (node_of >= 0)]
        left = np.maximum(slots[:, c] - np.bincount(taken, minlength=len(slots)), 0)
        to[mine] = np.repeat(np.arange(len(slots)), left)[: len(mine)]
    return Relocation(leaves, to, node_of)


def _assign_configurations(
    encoded: Encoded, update: LevelUpdate, known: tuple[Movables, I64]
) -> I64:
    """Return how many tasks (N, C' + M) of each class, copy or kind of staying task each node gets.

    Each configuration (the tasks on one node) is assigned to a node of its node class. The nodes
    whose tasks are the cheapest to move get the configurations that keep the fewest tasks.
    """
    assert update.use_class is not None  # noqa: S101
    assert update.use_tasks is not None  # noqa: S101
    assert update.uses is not None  # noqa: S101
    movables, costs = known
    num_kinds = len(encoded.stay)
    dearest = np.zeros(len(encoded.class_of), np.int64)
    np.maximum.at(dearest, movables.node, costs)
    filled = np.zeros((len(encoded.class_of), update.use_tasks.shape[1]), np.int64)
    for k in np.unique(update.use_class).tolist():
        mine = np.flatnonzero(update.use_class == k)
        stays = update.use_tasks[mine][:, -num_kinds:].sum(axis=1)
        mine = mine[np.argsort(stays, kind="stable")]
        nodes = np.flatnonzero(encoded.class_of == k)
        used = np.repeat(mine, update.uses[mine])
        # A node without a configuration keeps no task, so the nodes whose tasks are cheapest to
        # move get no configuration.
        nodes = nodes[np.argsort(dearest[nodes], kind="stable")][len(nodes) - len(used) :]
        filled[nodes] = update.use_tasks[used]
    return filled


def _drop_needless_moves(movables: Movables, leaves: I64, slots: I64) -> I64:
    """Return the moving tasks, except those that can stay on their present nodes."""
    bound = np.zeros(len(movables.count), np.bool_)
    for whole in movables.wholes:
        bound[whole.kinds] = True
    rest = []
    for i in leaves.tolist():
        kind = int(movables.kind[i])
        at = (int(movables.node[i]), int(movables.task_class[kind]))
        if not bound[kind] and slots[at] > 0:
            slots[at] -= 1
        else:
            rest.append(i)
    return np.array(rest, np.int64)


def _assign_other_tasks(what: WhatIf, encoded: Encoded, solution: I64, slots: I64) -> I64:
    """Return the node (T,) of each task; `UNPLACED` for tasks of gangs with movable tasks."""
    form, movables = encoded.form, what.movables
    gangs, gang_of = form.gangs, form.problem.gang_of
    movers = np.zeros(form.problem.num_gangs, np.bool_)
    movers[gang_of[movables.at]] = True
    # Remove the gangs with movable tasks from the aggregated model and from the solution.
    class_of = np.repeat(np.arange(len(gangs.shape_of)), gangs.multiplicity)
    stays = ~movers[gangs.members]
    number = np.bincount(class_of[stays], minlength=len(gangs.shape_of)).astype(np.int64)
    removed = gangs.multiplicity - number
    rest = solution.copy()
    starts, flexible = form.start >= 0, form.is_flexible
    rest[form.start[starts]] -= removed[starts]
    per_class = removed[gangs.gang_class_of] * gangs.per_gang
    rest[form.placed_variable[flexible]] -= per_class[flexible]
    smaller = copy(form)
    smaller.gangs = replace(
        gangs,
        members=gangs.members[stays],
        member_start=np.concatenate([[0], np.cumsum(number)]).astype(np.int64),
        multiplicity=number,
    )
    offered = [np.repeat(np.arange(len(slots)), slots[:, c]) for c in range(slots.shape[1])]
    node_of = assign_tasks(smaller, rest, offered, what.base).node_of.copy()
    node_of[movers[what.problem.gang_of]] = UNPLACED
    return node_of
