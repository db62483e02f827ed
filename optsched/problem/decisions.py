"""An engine's decisions as arrays over the axes of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import UNPLACED, frozen

if TYPE_CHECKING:
    from optsched.cluster.decisions import Evict
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


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
