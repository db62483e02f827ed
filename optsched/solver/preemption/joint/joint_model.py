"""The data of the joint model: its variables by their meaning."""

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
        The aggregated model of gangs and queues.
    facts
        Running tasks, and the deserved shares of queues.
    groups
        Axis K: equal candidate victims on one node.
    evict, whole
        (K,) variable of each group's victims; (J,) variable of each gang that may leave whole.
    node_set
        (N,) set of nodes to which a node belongs in the model.
    supplied
        (C, M) variable for the tasks of a class on a set of nodes, -1 where none fits.
    reclaim, pairs
        (K,) variable of the reclaimed tasks of a group, -1 without any, and the pairs of reclaimers
        and lenders.
    able
        Gang classes for which tasks may be evicted; None for a bound.

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
