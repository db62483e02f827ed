"""Decode a solution of a what-if problem into moves and the nodes of all tasks."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import UNPLACED
from optsched.problem.running import running_tasks
from optsched.solver.model.assignment import assign_tasks
from optsched.solver.preemption.sequential.running import lost_steps

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.solver.consolidation.model import Encoded, WhatIf
    from optsched.solver.consolidation.movable_tasks import Movables
    from optsched.solver.cpsat.level_model import LevelUpdate


@dataclass(frozen=True, eq=False)
class Relocation:
    """The moves and placements of a solution.

    Attributes
    ----------
    leaves
        (k,) indices of the moving tasks on axis V' of movable tasks.
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
    assert update.solution is not None  # noqa: S101  the caller has checked it
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
    # If a gang must keep its minimum or move entirely, all nodes together keep at most as many of
    # its tasks of a kind as stay in the solution.
    stay = update.solution[encoded.stay]
    for k in {int(k) for whole in movables.wholes for k in whole.kinds}:
        before = np.cumsum(kept[:, k]) - kept[:, k]
        kept[:, k] = np.clip(stay[k] - before, 0, kept[:, k])
    slots = encoded.copies.merged(filled[:, :-num_kinds])
    # Among equal tasks on a node, the cheapest tasks move.
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
    """Return the number (N, C' + M) of tasks of each class, copy or staying kind on each node.

    Each configuration (the tasks on one node) is assigned to a node of its class. Configurations
    that keep the fewest tasks go to the nodes whose tasks are the cheapest to move.
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
    """Return each task's node (T,); tasks of gangs with movable tasks get `UNPLACED`."""
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
