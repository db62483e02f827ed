"""The joint model of gangs and victims, and the meaning of its variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.linear import Expression

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.formulation import Formulation
    from optsched.solver.preemption.joint.entitlement import EntitledClasses, ReclaimPair
    from optsched.solver.preemption.sequential.eviction_problem import Groups
    from optsched.solver.preemption.sequential.running import SessionFacts


@dataclass(frozen=True, eq=False)
class JointModel:
    """The joint model under construction.

    Attributes
    ----------
    form
        The aggregated model of gangs and queues.
    facts
        The running tasks and the deserved shares of queues.
    groups
        Groups of equal candidate victims on one node (axis K).
    evict, whole
        (K,) variables that count the victims of each group, and (J,) binary variables that are 1 if
        a gang is evicted entirely.
    node_set
        (N,) index of each node's node set, or -1 for nodes on which no task fits.
    supplied
        (C, M) variables that count the tasks of each class on each node set, or -1 where none fits.
    reclaim, pairs
        (K,) variables that count the reclaimed tasks of each group, or -1 where none may be
        reclaimed, and the pairs of a reclaimer class and a lending queue.
    able
        Gang classes for which tasks may be evicted, or None in a bounding model.

    """

    form: Formulation
    facts: SessionFacts
    groups: Groups
    evict: I64
    whole: I64
    node_set: I64
    supplied: I64
    reclaim: I64
    pairs: list[ReclaimPair]
    able: EntitledClasses | None

    def count_whole_gangs(self) -> Expression:
        """Return the number of gangs evicted entirely, including gangs of one task."""
        alone = self.groups.gang < 0
        ends = np.concatenate([self.evict[alone], self.whole])
        return Expression.of(ends, np.ones(len(ends), np.int64))
