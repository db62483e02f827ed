"""Decisions of an engine as arrays, and the nominated nodes of pending tasks.

Capacity on the nominated node of a task is reserved for the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from optsched.problem.arrays import UNPLACED, frozen
from optsched.problem.problem import cached_by_problem

if TYPE_CHECKING:
    from optsched.cluster.decisions import Evict
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decisions about all tasks and gangs of a problem.

    Attributes
    ----------
    node_of
        (T,) index of the node to which each task is bound, or UNPLACED if the task stays pending.
    nominated
        (T,) index of the node nominated for a task that waits for terminating pods there, or
        UNPLACED. Tasks with a node in `node_of` have no nomination.
    enqueued
        (G,) whether a pending gang is admitted, so that the job controller may create its pods.
    refused
        (G,) whether the enqueue action rejected a pending gang, so that its tasks stay pending.
    evictions
        Running tasks to evict, in eviction order.

    """

    node_of: I64
    nominated: I64
    enqueued: Bool
    refused: Bool
    evictions: tuple[Evict, ...] = ()

    def __post_init__(self) -> None:
        frozen(self.node_of, self.nominated, self.enqueued, self.refused)

    @classmethod
    def nothing(cls, problem: Problem) -> Decisions:
        """Return decisions that change nothing."""
        empty = np.full(problem.num_tasks, UNPLACED, np.int64)
        no_gang = np.zeros(problem.num_gangs, np.bool_)
        return cls(empty, empty.copy(), no_gang, no_gang.copy())

    def equals(self, other: Decisions) -> bool:
        """Return whether `other` makes the same decisions about the same problem."""
        pairs = (
            (self.node_of, other.node_of),
            (self.nominated, other.nominated),
            (self.enqueued, other.enqueued),
            (self.refused, other.refused),
        )
        arrays_equal = all(np.array_equal(one, another) for one, another in pairs)
        return arrays_equal and self.evictions == other.evictions


Nominations: TypeAlias = tuple[tuple[int, int, int], ...]
"""Sorted (entry, node, number of tasks) triples; an entry is a group of equal tasks of a gang."""


def find_nominations(problem: Problem) -> dict[int, Nominations]:
    """Return the nominations (`status.nominatedNodeName`) of pending tasks, keyed by gang index.

    The oldest gang comes first. Nodes that do not exist or are not ready are ignored.
    """
    named = _list_nominated_tasks(problem)
    if not named:
        return {}
    index_of = {n.name: i for i, n in enumerate(problem.snapshot.nodes) if n.ready}
    ends = problem.shapes.count
    counts: dict[int, dict[tuple[int, int], int]] = {}
    for task, name in named:
        gang = int(problem.gang_of[task])
        if name not in index_of or problem.shape_of[gang] < 0:
            continue
        first = int(problem.shapes.start[problem.shape_of[gang]])
        left, entry = task - int(problem.task_start[gang]), 0
        while left >= ends[first + entry]:
            left -= int(ends[first + entry])
            entry += 1
        of_gang = counts.setdefault(gang, {})
        nomination = (entry, index_of[name])
        of_gang[nomination] = of_gang.get(nomination, 0) + 1
    order = sorted(counts, key=lambda g: (int(problem.created_ms[g]), g))
    return {g: tuple((e, n, k) for (e, n), k in sorted(counts[g].items())) for g in order}


def count_nominations(problem: Problem, gang: int, node_of: I64) -> Nominations:
    """Return the nominations that keep a gang's tasks on their nodes in `node_of` (T,)."""
    first, last = problem.task_start[gang : gang + 2].tolist()
    number = int(problem.shape_of[gang])
    entries = slice(*problem.shapes.start[number : number + 2].tolist())
    counts, nodes = problem.shapes.count[entries], node_of[first:last]
    entry = np.repeat(np.arange(len(counts)), counts)
    pairs, tasks = np.unique(np.stack([entry, nodes])[:, nodes >= 0], axis=1, return_counts=True)
    return tuple(zip(*pairs.tolist(), tasks.tolist(), strict=True))


@cached_by_problem
def nominated_amounts(problem: Problem) -> I64:
    """Return the amount (Q, R) that nominated tasks may still add to each queue's usage.

    The result sums the requests of nominated tasks by queue, for undecided gangs and for placed
    gangs. Amounts that decided gangs already hold (`QueueArrays.gained`) are subtracted.
    Nominations to nodes that do not exist or are not ready do not count.
    """
    amounts = np.zeros((len(problem.queues.names), len(problem.resources)), np.int64)
    named = _list_nominated_tasks(problem)
    if not named:
        return amounts
    ready = {n.name for n in problem.snapshot.nodes if n.ready}
    tasks = np.array([i for i, name in named if name in ready], np.int64)
    gangs = problem.gang_of[tasks]
    tasks = tasks[(problem.shape_of[gangs] >= 0) | (problem.settled[gangs] == 1)]
    queue_of = problem.queue_of[problem.gang_of[tasks]]
    np.add.at(amounts, queue_of, problem.classes.request[problem.task_class[tasks]])
    left: I64 = np.maximum(amounts - problem.queues.gained, 0)
    return left


def _list_nominated_tasks(problem: Problem) -> list[tuple[int, str]]:
    in_gang = problem.gang_columns.flags(_has_nominations)[problem.gang_of]
    tasks = ((i, problem.task(i).nominated_node) for i in np.flatnonzero(in_gang).tolist())
    return [(i, node) for i, node in tasks if node]


def _has_nominations(row: GangRow) -> bool:
    return any(task.nominated_node for task in row.pending)
