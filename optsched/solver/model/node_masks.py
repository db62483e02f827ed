"""The nodes that a task class may use before any placement, and how many tasks fit there.

In a long backlog, most gangs request more capacity than is idle. With one array operation for all
gang shapes, `find_lacking_shapes` finds the gangs that cannot start. The greedy pipeline then need
not try each gang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.plugins.ordering.reservation import ExtraResources, Reservation
from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.plugins.extension_points import Rule
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem


def static_mask(problem: Problem, rules: Sequence[Rule], task_class: int) -> Bool | None:
    """Return a mask (N,) of the ready nodes that all rules allow for a task class; None for all.

    The mask is cached per problem and tuple of rules. Callers must not modify it.
    """
    known = problem.derived(_make_cache)
    # The cache keeps the tuple of rules in memory, so no other tuple can have the same id.
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

    Rules are evaluated only for these task classes.
    """
    is_open = problem.shape_of[problem.gang_of] >= 0
    found: I64 = np.unique(problem.task_class[is_open])
    return found


def allowed_nodes(problem: Problem, rules: RuleSet, classes: I64 | None = None) -> Bool:
    """Return the mask (C, N) of ready nodes that all rules allow for each task class.

    If `classes` is given, the mask is False for all task classes that `classes` does not contain.
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
    """Return how many tasks (C, N) of each task class fit on each node.

    The numbers assume that no pending task of another task class is placed. The numbers are 0 for
    task classes without open gangs.
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


_BLOCK: Final = 2**20
"""Maximum number of elements in a temporary array."""


def find_lacking_shapes(
    problem: Problem,
    shapes: I64,
    idle: I64,
    counts: I64,
    most_tasks: Callable[[int], int] | None = None,
) -> Bool:
    """Return a mask (m,) of the gang shapes in `shapes` (m,) that cannot reach their minimum.

    A shape is in the mask only if no placement on idle capacity reaches its minimum. The number of
    fitting tasks of each task class ignores other task classes and node filters.

    Parameters
    ----------
    idle
        (N, R) idle amounts of the nodes.
    counts
        (E,) number of tasks of each entry that may be placed.
    most_tasks
        Returns the maximum number of tasks of a task class; None means no limit. `most_tasks` is
        called only for task classes of gang shapes that can reach their minimum without this limit.

    """
    arrays = problem.shapes
    number = arrays.start[shapes + 1] - arrays.start[shapes]
    at = np.repeat(np.arange(len(shapes)), number)
    first = np.cumsum(number) - number
    entries = np.arange(len(at)) - np.repeat(first - arrays.start[shapes], number)
    classes, which = np.unique(arrays.class_of[entries], return_inverse=True)
    most = bound_fitting_tasks(idle, problem.classes.request[classes])

    def lacks() -> Bool:
        placed = np.minimum(counts[entries], most[which])
        missing: Bool = np.bincount(at, placed, len(shapes)) < arrays.need[shapes]
        return missing

    found = lacks()
    if most_tasks is not None and not found.all():
        for i in np.unique(which[~found[at]]).tolist():
            most[i] = min(most[i], most_tasks(int(classes[i])))
        found = lacks()
    return found


def bound_fitting_tasks(idle: I64, request: I64) -> F64:
    """Return an upper bound (C,) on the tasks of each task class that fit on nodes with `idle`.

    `idle` (N, R) holds idle amounts, and `request` (C, R) the request of one task of each task
    class. Task classes that request no resource are unlimited.
    """
    found = np.zeros(len(request))
    has_idle = (idle > 0).any(axis=1)
    free = idle[has_idle].astype(np.float64)
    fits = (request <= free.max(axis=0, initial=0)).all(axis=1).nonzero()[0]
    step = max(_BLOCK // max(len(free), 1), 1)
    for begin in range(0, len(fits), step):
        block = fits[begin : begin + step]
        number = np.full((len(block), len(free)), float(UNLIMITED))
        for r in request[block].any(axis=0).nonzero()[0].tolist():
            requesting = request[block, r].nonzero()[0]
            amount = request[block[requesting], r]
            number[requesting] = np.minimum(number[requesting], free[:, r] / amount[:, None])
        found[block] = np.maximum(np.floor(number), 0).sum(axis=1)
    return found
