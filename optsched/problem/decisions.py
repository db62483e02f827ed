"""The answer of an engine: arrays over the axes of a problem."""

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
    """One answer to a problem.

    Attributes
    ----------
    node_of
        (T,) node to bind each task to, UNPLACED where it stays pending.
    nominated
        (T,) node a task waits for until resources there are released, UNPLACED otherwise; never
        set where `node_of` is.
    enqueued
        (G,) pending gangs whose pods may be created.
    refused
        (G,) pending gangs that could not take part because the action enqueue refused them.
    evictions
        Running tasks that leave, in order.

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
        """Leave everything as it is."""
        empty = np.full(len(problem.tasks), UNPLACED, np.int64)
        no_gang = np.zeros(problem.num_gangs, np.bool_)
        return cls(empty, empty.copy(), no_gang, no_gang.copy())

    def equals(self, other: Decisions) -> bool:
        """Return whether other decisions about the same problem are equal."""
        pairs = (
            (self.node_of, other.node_of),
            (self.nominated, other.nominated),
            (self.enqueued, other.enqueued),
            (self.refused, other.refused),
        )
        arrays_equal = all(np.array_equal(one, another) for one, another in pairs)
        return arrays_equal and self.evictions == other.evictions
