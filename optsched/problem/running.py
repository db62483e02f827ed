"""Running tasks as arrays (axis V), and variants of a problem that ignore some resident pods.

The running tasks are the candidates for eviction. The arrays are built when first read, because
most sessions evict nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, compress, repeat
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import derived_of
from optsched.cluster.task import TaskStatus
from optsched.problem.arrays import frozen, sparse_table
from optsched.problem.problem import cached_by_problem
from optsched.problem.relations import TermMatcher, build_relations, terms_of_pending
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task, TaskShape
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow

_NODE: Callable[[Task], str] = attrgetter("node")
_SHAPE: Callable[[Task], TaskShape] = attrgetter("shape")


@dataclass(frozen=True, eq=False)
class Running:
    """Bound and running tasks of gangs on ready nodes, sorted by gang and task.

    Attributes
    ----------
    gang_of, node_of, queue_of
        (V,) gang, node and queue index of each task; the queue is -1 if the gang's queue does not
        exist.
    request
        (V, R) request of each task in base units, including one pod.

    """

    tasks: tuple[Task, ...]
    gang_of: I64
    node_of: I64
    queue_of: I64
    request: I64

    def __post_init__(self) -> None:
        frozen(self.gang_of, self.node_of, self.queue_of, self.request)

    def __len__(self) -> int:
        return len(self.tasks)


@cached_by_problem
def selected_tasks(problem: Problem) -> list[I64]:
    """Return the indices of the running tasks that each affinity or spread term selects; cached.

    The result has no task for a term that only residents carry, because such a term restricts only
    pending tasks.
    """
    terms = problem.relations.terms
    matcher = TermMatcher(terms_of_pending(terms))
    found: list[list[int]] = [[] for _ in terms]
    for v, task in enumerate(running_tasks(problem).tasks) if terms else ():
        for m in matcher.selecting(task):
            found[m].append(v)
    return [np.array(tasks, np.int64) for tasks in found]


def stakes_in(problem: Problem, terms: Sequence[int]) -> I64 | None:
    """Return a group number (V,) for each running task.

    Two tasks are in one group if the same `terms` select both. Tasks that no term selects have the
    group number -1. Returns None if `terms` is empty.
    """
    if not terms:
        return None
    chosen = np.zeros((len(terms), len(running_tasks(problem))), np.bool_)
    for flags, m in zip(chosen, terms, strict=True):
        flags[selected_tasks(problem)[m]] = True
    _, number = np.unique(chosen, axis=1, return_inverse=True)
    return np.where(chosen.any(axis=0), number.reshape(-1), -1).astype(np.int64)


def number_keys(keys: Iterable[tuple[Hashable, ...]]) -> I64:
    """Return a number for each key: equal numbers for equal keys, and -1 for empty keys."""
    known: dict[tuple[Hashable, ...], int] = {}
    return np.array([known.setdefault(k, len(known)) if k else -1 for k in keys], np.int64)


@cached_by_problem
def running_tasks(problem: Problem) -> Running:
    """Return the running tasks of a problem; the result is cached."""
    nodes, gangs = problem.snapshot.nodes, problem.snapshot.gangs
    index_of = {n.name: i for i, n in enumerate(nodes) if n.ready}
    with_tasks = np.flatnonzero(problem.gang_columns.flags(has_standing_tasks))
    by_gang = derived_of([gangs[g] for g in with_tasks.tolist()], _standing_tasks)
    tasks = tuple(chain.from_iterable(by_gang))
    gang_of = np.repeat(with_tasks, np.array(list(map(len, by_gang)), np.int64))
    node_of = np.fromiter(map(index_of.get, map(_NODE, tasks), repeat(-1)), np.int64, len(tasks))
    is_ready = node_of >= 0
    if not is_ready.all():
        tasks = tuple(compress(tasks, is_ready.tolist()))
        gang_of, node_of = gang_of[is_ready], node_of[is_ready]
    return Running(
        tasks=tasks,
        gang_of=gang_of,
        node_of=node_of,
        queue_of=problem.queue_of[gang_of],
        request=_requests(problem, tasks),
    )


def has_standing_tasks(row: GangRow) -> bool:
    """Return whether a task of a gang row is bound, running or terminating on a node."""
    return bool(row.gang.derived(_standing_tasks))


def _standing_tasks(gang: Gang) -> tuple[Task, ...]:
    return tuple(task for task in gang.tasks if task.status.is_standing)


def _requests(problem: Problem, tasks: tuple[Task, ...]) -> I64:
    """Return the request (V, R) of each task, computed once per `TaskShape` object."""
    shapes = list(map(_SHAPE, tasks))
    # `id(shape)` is a safe key, because the tasks keep their shapes in memory.
    distinct = dict(zip(map(id, shapes), shapes, strict=True))
    number = dict(zip(distinct, range(len(distinct)), strict=True))
    which = np.fromiter(map(number.__getitem__, map(id, shapes)), np.int64, len(shapes))
    columns = {name: r for r, name in enumerate(problem.resources)}
    rows = ((*shape.request, (PODS, 1)) for shape in distinct.values())
    return sparse_table(rows, columns)[which]


@cached_by_problem
def without_terminating(problem: Problem) -> Problem:
    """Return the problem as if affinity, spread and ports ignored terminating pods; cached."""
    return _count_only(problem, lambda task: task.status is not TaskStatus.RELEASING)


@cached_by_problem
def without_gangs(problem: Problem) -> Problem:
    """Return a problem whose `Relations` ignore terminating pods and running gang tasks; cached."""
    if not _depends_on_residents(problem):
        return problem
    runs = {task.key for task in running_tasks(problem).tasks}
    leaves = TaskStatus.RELEASING
    return _count_only(problem, lambda t: t.status is not leaves and t.key not in runs)


def without_residents(problem: Problem, excluded: Collection[str]) -> Problem:
    """Return the problem without terminating pods and without pods whose key is in `excluded`."""
    nodes = problem.snapshot.nodes

    def is_kept(task: Task) -> bool:
        return task.status is not TaskStatus.RELEASING and task.key not in excluded

    residents = [task for node in nodes for task in node.residents]
    left = {task.key for task in residents if not is_kept(task)}
    if not left:
        return problem
    kept = tuple(
        node
        if all(map(is_kept, node.residents))
        else replace(node, residents=tuple(filter(is_kept, node.residents)))
        for node in nodes
    )
    devices = problem.snapshot.devices
    devices = devices.release_claims(devices.freed(residents, left))
    old = problem.relations
    relations = build_relations(kept, problem.columns, old.terms, old.ports, old.coming)
    snapshot = replace(problem.snapshot, nodes=kept, devices=devices)
    return replace(problem, snapshot=snapshot, relations=relations)


def _depends_on_residents(problem: Problem) -> bool:
    return bool(problem.relations.terms or problem.relations.ports)


def _count_only(problem: Problem, counts: Callable[[Task], bool]) -> Problem:
    """Return the problem with `Relations` that count only residents for which `counts` is True."""
    relations, nodes = problem.relations, problem.snapshot.nodes
    if not _depends_on_residents(problem):
        return problem
    if all(counts(task) for node in nodes for task in node.residents):
        return problem
    kept = [replace(n, residents=tuple(filter(counts, n.residents))) for n in nodes]
    terms, ports, coming = relations.terms, relations.ports, relations.coming
    relations = build_relations(kept, problem.columns, terms, ports, coming)
    return replace(problem, relations=relations)
