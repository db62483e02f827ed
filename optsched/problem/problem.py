"""The read-only arrays of one session."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np

from optsched.problem.arrays import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task, TaskShape
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.columns import NodeColumns
    from optsched.problem.gang_columns import GangColumns
    from optsched.problem.queues import QueueArrays
    from optsched.problem.relations import Relations
    from optsched.problem.shapes import GangRow, GangShape, Relation
    from optsched.problem.topology import TopologyArrays


Derived = TypeVar("Derived")


@dataclass(frozen=True, eq=False)
class TaskClasses:
    """Task classes (axis C). All plugins treat the tasks of one class equally.

    Attributes
    ----------
    shapes
        (C,) task shape of each class.
    relations
        (C,) indices of the affinity and spread terms of other pods that select the tasks of each
        class.
    queues
        (C,) queue of each class if the queue restricts the choice of nodes, or an empty string.
    labels
        (C,) node label whose values are the network domains of the gangs, or empty for HyperNodes.
    bound
        (C,) indices of the snapshot's reservations that the tasks of each class must respect (see
        `binding_reservations`).
    request
        (C, R) request of one task of each class in base units. One task counts as one pod.
    num_pending
        (C,) number of pending tasks of each class.

    """

    shapes: tuple[TaskShape, ...]
    relations: tuple[Relation, ...]
    queues: tuple[str, ...]
    labels: tuple[str, ...]
    bound: tuple[tuple[int, ...], ...]
    request: I64
    num_pending: I64


@dataclass(frozen=True, eq=False)
class GangShapes:
    """Gang shapes (axis S), and the entries (equal tasks) of all gang shapes (axis E).

    Attributes
    ----------
    shapes
        (S,) the gang shapes.
    start
        (S+1,) index of the first entry of each gang shape. Gang shape s has the entries start[s] to
        start[s+1]-1.
    class_of, count
        (E,) task class of each entry (equal tasks), and number of tasks of the entry.
    need
        (S,) number of tasks of each gang shape that must start together, or 0 after the gang has
        started.
    is_started
        (S,) whether the minimum of the gang already runs.
    least
        (S, R) amounts in base units that must be free in the cluster before the gang starts.

    """

    shapes: tuple[GangShape, ...]
    start: I64
    class_of: I64
    count: I64
    need: I64
    is_started: Bool
    least: I64

    @property
    def shape_of_entry(self) -> I64:
        """The index (E,) of the gang shape of each entry (equal tasks)."""
        return np.repeat(np.arange(len(self.shapes), dtype=np.int64), np.diff(self.start))

    @cached_property
    def offset(self) -> I64:
        """The index (E,) of the first task of each entry (equal tasks), counted within the gang."""
        before = np.cumsum(self.count) - self.count
        offset: I64 = before - np.append(before, 0)[self.start[self.shape_of_entry]]
        frozen(offset)
        return offset

    @property
    def num_tasks(self) -> I64:
        """The number (S,) of pending tasks of each gang shape."""
        ends = np.concatenate([[0], np.cumsum(self.count)])
        tasks: I64 = ends[self.start[1:]] - ends[self.start[:-1]]
        return tasks


_ITSELF: Final = object()
"""Placeholder for the problem itself in the cache of derived values."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A snapshot as arrays. The package docstring describes axes and units.

    Attributes
    ----------
    snapshot
        The snapshot that the arrays were compiled from. Index i of axis N is node i of the
        snapshot, and index i of axis G is gang i.
    resources
        (R,) resource names.
    allocatable, used, releasing
        (N, R) amounts that each node offers, that its residents use, and that its terminating
        residents use. The allocatable amounts of a node that is not ready are 0.
    foreign
        (N, R) amounts that pods without a gang use, which `used` includes.
    ready
        (N,) whether a node is ready.
    kept
        (R,) amounts that must stay free in the cluster for gangs that are already decided.
    settled
        (G,) 1 for a decided gang with placed tasks, 0 for a decided gang without placed tasks, and
        -1 for an undecided gang.
    classes, shapes, queues, relations, columns, topology
        Further arrays of the problem. The docstrings of `TaskClasses`, `GangShapes` and the other
        classes describe the further arrays.
    shape_of
        (G,) gang shape of each gang, or -1 for a gang that is blocked or has no pending task.
    queue_of
        (G,) queue of each gang, or -1 if the queue does not exist.
    priority, created_ms, waiting_since_ms, min_member, num_ready
        (G,) the attributes of the same names of each gang or gang row, as arrays.
    task_start
        (G+1,) first task of each gang on axis T; the tasks of a gang are ordered by entry.
    tasks
        (T,) pending tasks.
    task_class, gang_of
        (T,) task class and gang of each task.
    blocked
        A mapping from the index of a blocked gang to the reason why the gang cannot be scheduled.
    rows, plain_rows
        (G,) the gang rows from which the arrays were compiled. `rows` separates tasks that differ
        in relations to other pods, whereas `plain_rows` does not.
    gang_columns
        Properties of `rows` as arrays.

    """

    snapshot: Snapshot
    resources: tuple[str, ...]
    allocatable: I64
    used: I64
    releasing: I64
    foreign: I64
    ready: Bool
    kept: I64
    settled: I64
    classes: TaskClasses
    shapes: GangShapes
    queues: QueueArrays
    relations: Relations
    columns: NodeColumns
    topology: TopologyArrays
    shape_of: I64
    queue_of: I64
    priority: I64
    created_ms: I64
    waiting_since_ms: I64
    min_member: I64
    num_ready: I64
    task_start: I64
    tasks: tuple[Task, ...]
    task_class: I64
    gang_of: I64
    blocked: Mapping[int, Reason]
    rows: tuple[GangRow, ...]
    plain_rows: tuple[GangRow, ...]
    gang_columns: GangColumns
    _derived: dict[Callable[[Problem], object], object] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for part in (self, self.classes, self.shapes, self.relations):
            frozen(*vars(part).values())

    @property
    def num_nodes(self) -> int:
        """The number of nodes, which is the length of axis N."""
        return len(self.snapshot.nodes)

    @property
    def num_gangs(self) -> int:
        """The number of gangs, which is the length of axis G."""
        return len(self.snapshot.gangs)

    @cached_property
    def total(self) -> I64:
        """The allocatable amounts (R,) of all nodes together; read-only."""
        offered: I64 = self.allocatable.sum(axis=0)
        frozen(offered)
        return offered

    @cached_property
    def idle(self) -> I64:
        """The idle amounts (N, R) of the nodes, at least 0; read-only."""
        free: I64 = np.maximum(self.allocatable - self.used, 0)
        frozen(free)
        return free

    @cached_property
    def open_gangs(self) -> I64:
        """The indices of the unblocked gangs with pending tasks, sorted by gang key; read-only."""
        gangs = np.flatnonzero(self.shape_of >= 0)
        frozen(gangs)
        return gangs

    def derived(self, compute: Callable[[Problem], Derived]) -> Derived:
        """Return the result of a pure function of the problem.

        The result is computed once and cached.
        """
        if compute not in self._derived:
            found = compute(self)
            # If a problem referred to itself, only a full garbage collection would free the
            # problem.
            self._derived[compute] = _ITSELF if found is self else found
        known = self._derived[compute]
        return cast("Derived", self if known is _ITSELF else known)

    def inherit_derived(self, other: Problem, *functions: Callable[[Problem], object]) -> Problem:
        """Copy cached results of `functions` from an equal problem; return the changed problem."""
        for compute in functions:
            self._derived[compute] = other.derived(compute)
        return self

    def index(self, resource: str) -> int:
        """Return the index of a resource on axis R, or -1 if the resource is unknown."""
        return self.derived(_resource_index).get(resource, -1)


def cached_by_problem(compute: Callable[[Problem], Derived]) -> Callable[[Problem], Derived]:
    """Decorate a pure function of a problem, which then computes its result once per problem."""

    @wraps(compute)
    def read(problem: Problem) -> Derived:
        return problem.derived(compute)

    return read


def _resource_index(problem: Problem) -> Mapping[str, int]:
    return {name: r for r, name in enumerate(problem.resources)}
