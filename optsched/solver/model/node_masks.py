"""The nodes that a task class may use before any placement, and how many tasks fit on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.ordering.reservation import ExtraResources, Reservation
from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.extension_points import Rule
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


def static_mask(problem: Problem, rules: Sequence[Rule], task_class: int) -> Bool | None:
    """Return a mask (N,) of the ready nodes that all rules allow for a class; None for all nodes.

    The mask is cached per problem and tuple of rules. Callers must not modify it.
    """
    known = problem.derived(_make_cache)
    # The cache keeps the tuple of rules alive, so no other tuple can get the same id.
    masks = known.setdefault(id(rules), (rules, {}))[1]
    if task_class not in masks:
        allowed = None if problem.derived(_is_every_node_ready) else problem.ready
        for rule in rules:
            mask = rule.mask(problem, task_class)
            if mask is not None:
                allowed = mask if allowed is None else allowed & mask
        masks[task_class] = allowed
    return masks[task_class]


def _make_cache(_: Problem) -> dict[int, tuple[Sequence[Rule], dict[int, Bool | None]]]:
    return {}


def _is_every_node_ready(problem: Problem) -> bool:
    return bool(problem.ready.all())


def find_open_classes(problem: Problem) -> I64:
    """Return the task classes of open gangs (gangs that may be placed), in ascending order.

    Rules are evaluated only for these classes.
    """
    is_open = problem.shape_of[problem.gang_of] >= 0
    found: I64 = np.unique(problem.task_class[is_open])
    return found


def allowed_nodes(problem: Problem, rules: RuleSet, classes: I64 | None = None) -> Bool:
    """Return the mask (C, N) of ready nodes that all rules allow for each task class.

    If `classes` is given, the mask is False for all other classes.
    """
    allowed = np.zeros((len(problem.classes.shapes), problem.num_nodes), np.bool_)
    chosen = range(len(allowed)) if classes is None else classes.tolist()
    for task_class in chosen:
        mask = static_mask(problem, rules.filters, task_class)
        allowed[task_class] = True if mask is None else mask
    return allowed


def sum_spare(problem: Problem, rules: RuleSet) -> ExtraResources:
    """Return the extra resources that rules define on nodes; no columns if no rule defines any."""
    reserving = (rule for rule in rules.hard if isinstance(rule, Reservation))
    found = [s for rule in reserving if (s := rule.find_extra_resources(problem)) is not None]
    if not found:
        nothing = np.zeros((problem.num_nodes, 0), np.int64)
        return ExtraResources(nothing, np.zeros((len(problem.classes.shapes), 0), np.int64))
    capacity = np.concatenate([np.maximum(s.capacity, 0) for s in found], axis=1)
    return ExtraResources(capacity, np.concatenate([s.request for s in found], axis=1))


def count_fitting_tasks(problem: Problem, rules: RuleSet) -> I64:
    """Return how many tasks (C, N) of each class fit each node if no other pending task is placed.

    The number of fitting tasks is 0 for classes without open gangs.
    """
    spare = sum_spare(problem, rules)
    idle = np.asfortranarray(np.concatenate([problem.idle, spare.capacity], axis=1))
    fits = np.zeros((len(problem.classes.shapes), problem.num_nodes), np.int64)
    requests = np.concatenate([problem.classes.request, spare.request], axis=1)
    classes = find_open_classes(problem)
    for task_class in classes.tolist():
        request, most = requests[task_class], fits[task_class]
        most[:] = UNLIMITED
        for r in np.flatnonzero(request).tolist():
            np.minimum(most, idle[:, r] // int(request[r]), out=most)
    return np.where(allowed_nodes(problem, rules, classes), fits, 0)
