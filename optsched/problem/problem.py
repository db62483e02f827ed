"""The arrays of one session, all read-only."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
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
    from optsched.problem.queues import QueueArrays
    from optsched.problem.relations import Relations
    from optsched.problem.shapes import GangRow, GangShape, Relation
    from optsched.problem.topology import TopologyArrays


Derived = TypeVar("Derived")


@dataclass(frozen=True, eq=False)
class TaskClasses:
    """Axis C: tasks that no rule can tell apart.

    Attributes
    ----------
    shapes
        (C,) the task shape of each class.
    relations
        (C,) numbers of the terms of other pods that select the class.
    queues
        (C,) queue of a class whose queue narrows the choice of nodes; empty for the others.
    labels
        (C,) node label that their gangs ask to be bound by instead of HyperNodes; mostly empty.
    bound
        (C,) numbers of the reservations of the snapshot that a class has to respect.
    request
        (C, R) base units, one pod included.
    num_pending
        (C,) pending tasks in all.

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
    """Axis S of gang shapes with their entries, axis E: shape s has entries [start[s], start[s+1]).

    Attributes
    ----------
    shapes
        (S,) the shapes themselves.
    start
        (S+1,) first entry of each shape.
    class_of, count
        (E,) task class of an entry and its tasks.
    need
        (S,) tasks that must start together; 0 once the gang runs.
    is_started
        (S,) whether the minimum already runs.
    least
        (S, R) what must be free in the cluster before the gang starts.

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
        """(E,) the shape an entry belongs to."""
        return np.repeat(np.arange(len(self.shapes), dtype=np.int64), np.diff(self.start))

    @cached_property
    def offset(self) -> I64:
        """(E,) first task of an entry, counted from the first task of its gang."""
        before = np.cumsum(self.count) - self.count
        offset: I64 = before - np.append(before, 0)[self.start[self.shape_of_entry]]
        frozen(offset)
        return offset

    @property
    def num_tasks(self) -> I64:
        """(S,) pending tasks of each shape."""
        ends = np.concatenate([[0], np.cumsum(self.count)])
        tasks: I64 = ends[self.start[1:]] - ends[self.start[:-1]]
        return tasks


_ITSELF: Final = object()
"""Stands for the problem among the arguments of its derived values."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A snapshot as arrays. Axes and units: see the package.

    Attributes
    ----------
    snapshot
        Where the names are; index i of axis N or G is entry i there.
    resources
        (R,) resource names.
    allocatable, used, releasing
        (N, R) what a node offers, what its residents hold, and the part of it that terminates.
        A node that is not ready offers nothing.
    foreign
        (N, R) the part of `used` that pods outside every gang hold.
    ready
        (N,) nodes that are ready.
    kept
        (R,) what has to stay free besides, for gangs that are decided already.
    settled
        (G,) of gangs that are decided already whether they get anything, as 0 or 1; -1 otherwise.
    classes, shapes, queues, relations, columns, topology
        See their types.
    shape_of
        (G,) gang shape, -1 where nothing of the gang can be decided now.
    queue_of
        (G,) queue, -1 where it does not exist.
    priority, created_ms, waiting_since_ms, min_member, num_ready
        (G,) from the gang and its row.
    task_start
        (G+1,) first task of each gang on axis T; its tasks follow entry by entry.
    tasks
        (T,) pending tasks.
    task_class, gang_of
        (T,) class and gang of each task.
    blocked
        Why nothing of a gang can be decided, by gang index.
    rows
        (G,) the rows the arrays were made from; `plain_rows` the same before relations distinguish
        tasks.

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
    _derived: dict[Callable[[Problem], object], object] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for part in (self, self.classes, self.shapes, self.relations):
            frozen(*vars(part).values())

    @property
    def num_nodes(self) -> int:
        """Length of axis N."""
        return len(self.snapshot.nodes)

    @property
    def num_gangs(self) -> int:
        """Length of axis G."""
        return len(self.snapshot.gangs)

    @property
    def total(self) -> I64:
        """(R,) what all nodes offer together. Read only."""
        return self.derived(_total)

    @property
    def idle(self) -> I64:
        """(N, R) free now; never below zero. Read only."""
        return self.derived(_idle)

    @property
    def open_gangs(self) -> I64:
        """Indices of the gangs that can be decided on, in key order."""
        return np.flatnonzero(self.shape_of >= 0)

    def derived(self, compute: Callable[[Problem], Derived]) -> Derived:
        """The result of a function of this problem, computed once; the function must be pure."""
        if compute not in self._derived:
            found = compute(self)
            # A problem that held itself would be freed by a full garbage collection only.
            self._derived[compute] = _ITSELF if found is self else found
        known = self._derived[compute]
        return cast("Derived", self if known is _ITSELF else known)

    def inherit_derived(self, other: Problem, *functions: Callable[[Problem], object]) -> Problem:
        """Return the problem with the derived values of an equal one."""
        for compute in functions:
            self._derived[compute] = other.derived(compute)
        return self

    def index(self, resource: str) -> int:
        """Position of a resource on axis R; -1 when it is unused."""
        return self.derived(_resource_index).get(resource, -1)


def _total(problem: Problem) -> I64:
    offered: I64 = problem.allocatable.sum(axis=0)
    frozen(offered)
    return offered


def _idle(problem: Problem) -> I64:
    free: I64 = np.maximum(problem.allocatable - problem.used, 0)
    frozen(free)
    return free


def _resource_index(problem: Problem) -> Mapping[str, int]:
    return {name: r for r, name in enumerate(problem.resources)}
