"""The read-only arrays that describe one session."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import chain, compress
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np

from optsched.problem.arrays import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task, TaskShape
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.columns import GangColumns, NodeColumns
    from optsched.problem.queues import QueueArrays
    from optsched.problem.relations import Relations
    from optsched.problem.shapes import GangRow, GangShape, Relation
    from optsched.problem.topology import TopologyArrays


Derived = TypeVar("Derived")


@dataclass(frozen=True, eq=False)
class TaskClasses:
    """Task classes (axis C); plugins treat all tasks of a task class equally.

    Attributes
    ----------
    shapes
        (C,) resource request and constraints of each class's tasks.
    relations
        (C,) indices of the affinity and spread terms of other pods that select the class's tasks.
    queues
        (C,) queue of each class if the queue restricts the choice of nodes, else an empty string.
    labels
        (C,) node label whose values are the gangs' network domains; empty for HyperNodes.
    bound
        (C,) indices of the snapshot's reservations that the class's tasks must respect (see
        `binding_reservations`).
    request
        (C, R) request of one task of each class in base units, including one pod.
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
    """Gang shapes (axis S), and their entries, which are groups of equal tasks (axis E).

    Attributes
    ----------
    start
        (S+1,) offsets into axis E: gang shape s has the entries start[s] to start[s+1]-1.
    class_of, count
        (E,) task class and number of tasks of each entry.
    need
        (S,) number of tasks that must start together; 0 if the gang has started.
    is_started
        (S,) whether the gang's minimum already runs.
    least
        (S, R) amounts in base units that must be idle in the cluster before a gang of the shape
        starts.

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
        """The gang shape index (E,) of each entry."""
        return np.repeat(np.arange(len(self.shapes), dtype=np.int64), np.diff(self.start))

    @cached_property
    def offset(self) -> I64:
        """The index (E,) of each entry's first task among the pending tasks of a gang."""
        before = np.cumsum(self.count) - self.count
        offset: I64 = before - np.append(before, 0)[self.start[self.shape_of_entry]]
        frozen(offset)
        return offset

    @property
    def num_tasks(self) -> I64:
        """The number of pending tasks of each gang shape, shape (S,)."""
        ends = np.concatenate([[0], np.cumsum(self.count)])
        tasks: I64 = ends[self.start[1:]] - ends[self.start[:-1]]
        return tasks


_ITSELF: Final = object()
"""Placeholder for the problem in its own cache of derived values; avoids a reference cycle."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A snapshot as arrays; the package docstring describes axes and units.

    Attributes
    ----------
    snapshot
        The snapshot that was compiled. Axes N and G have the order of the snapshot's nodes and
        gangs.
    resources
        (R,) resource names.
    allocatable, used, releasing
        (N, R) allocatable amounts of each node, amounts that its residents use, and amounts that
        its terminating residents use. A node that is not ready has allocatable amount 0.
    foreign
        (N, R) the part of `used` that pods without a gang use.
    ready
        (N,) whether each node is ready.
    kept
        (R,) the part of the cluster's idle capacity that decided gangs reserve.
    settled
        (G,) 1 for a decided gang with placed tasks, 0 for a decided gang without placed tasks, -1
        for an undecided gang.
    classes, shapes, queues, relations, columns, topology
        Further arrays, described by their classes (`TaskClasses`, `GangShapes`, …).
    shape_of
        (G,) gang shape of each gang, or -1 if the gang is blocked or has no pending task.
    queue_of
        (G,) queue of each gang, or -1 if the queue does not exist.
    priority, created_ms, waiting_since_ms, min_member, num_ready
        (G,) the attribute of this name of each gang or gang row.
    task_start
        (G+1,) index on axis T of the first task of each gang. The tasks of a gang are ordered by
        entry.
    task_class, gang_of
        (T,) task class and gang of each task.
    blocked
        Why a gang cannot be scheduled, keyed by the index of the blocked gang.
    rows, plain_rows
        (G,) the gang rows that were compiled. If an affinity term of another pod selects only some
        of several equal tasks, `rows` separates the selected tasks from the others; `plain_rows`
        does not.
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

    @property
    def num_tasks(self) -> int:
        """The number of pending tasks, which is the length of axis T."""
        return len(self.gang_of)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The pending tasks (T,); `task` and `tasks_of` are faster for few tasks."""
        # `shape_of` is -1 for decided gangs too, but the tasks of decided gangs stay on axis T.
        listed = compress(self.rows, (np.diff(self.task_start) > 0).tolist())
        return tuple(chain.from_iterable(row.pending for row in listed))

    def task(self, index: int) -> Task:
        """Return the pending task with the given index on axis T."""
        gang = int(self.gang_of[index])
        return self.rows[gang].pending[index - int(self.task_start[gang])]

    def tasks_of(self, gang: int) -> tuple[Task, ...]:
        """Return the pending tasks of a gang in the order of axis T; none for a blocked gang."""
        first, last = self.task_start[gang : gang + 2].tolist()
        return self.rows[gang].pending[: last - first]

    @cached_property
    def total(self) -> I64:
        """The total allocatable amounts of all nodes, shape (R,); read-only."""
        offered: I64 = self.allocatable.sum(axis=0)
        frozen(offered)
        return offered

    @cached_property
    def idle(self) -> I64:
        """The idle amounts (N, R) of the nodes, never negative; read-only."""
        free: I64 = np.maximum(self.allocatable - self.used, 0)
        frozen(free)
        return free

    @cached_property
    def open_gangs(self) -> I64:
        """The indices of unblocked gangs with pending tasks, sorted by gang key; read-only."""
        gangs = np.flatnonzero(self.shape_of >= 0)
        frozen(gangs)
        return gangs

    def derived(self, compute: Callable[[Problem], Derived]) -> Derived:
        """Return the result of a pure function of this problem, computed once and then cached."""
        if compute not in self._derived:
            found = compute(self)
            # A reference from a problem to itself would delay its release until a full garbage
            # collection.
            self._derived[compute] = _ITSELF if found is self else found
        known = self._derived[compute]
        return cast("Derived", self if known is _ITSELF else known)

    def inherit_derived(self, other: Problem, *functions: Callable[[Problem], object]) -> Problem:
        """Copy the results that `other` has cached for `functions`, and return this problem."""
        for compute in functions:
            self._derived[compute] = other.derived(compute)
        return self

    def index(self, resource: str) -> int:
        """Return the index of a resource on axis R, or -1 if the resource is unknown."""
        return self.derived(_resource_index).get(resource, -1)


def cached_by_problem(compute: Callable[[Problem], Derived]) -> Callable[[Problem], Derived]:
    """Decorate a pure function of a problem so that its result is cached in the problem."""

    @wraps(compute)
    def read(problem: Problem) -> Derived:
        return problem.derived(compute)

    return read


def _resource_index(problem: Problem) -> Mapping[str, int]:
    return {name: r for r, name in enumerate(problem.resources)}
