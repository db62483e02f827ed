"""The joint model as a value: variables by their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        Gangs and queues.
    facts
        Running tasks and the dues of queues.
    groups
        Axis K: equal candidate victims on one node.
    evict, whole
        (K,) variable of each group; (J,) variable of each gang that leaves as a whole.
    node_set
        (N,) set of nodes that a node is seen as part of.
    supplied
        (C, M) variable for the tasks of a class on a set of nodes, -1 where none fits.
    reclaim, pairs
        (K,) variable of the reclaimed tasks of a group, -1 where there are none, and the reclaimer
        and lender.
    able
        Gang classes that may have tasks evicted; None for a bound.

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
