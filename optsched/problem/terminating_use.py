"""The use of terminating pods that counts against the quota of their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import derived_of
from optsched.cluster.terminating import terminating_within_quota
from optsched.units import PODS

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def held_by_terminating(problem: Problem) -> I64:
    """Return (Q, R) the use of terminating pods on ready nodes that no session evicted; made once.

    Each queue counts its own pods and those of the queues below it. A node that is not ready may
    never report that a pod has ended, so that its pods do not count.
    """
    return problem.derived(_sum_up)


def _sum_up(problem: Problem) -> I64:
    snapshot, queues = problem.snapshot, problem.queues
    held = np.zeros_like(queues.allocated)
    terminating = derived_of(snapshot.gangs, terminating_within_quota)
    if not any(terminating):
        return held
    ready = {node.name for node in snapshot.nodes if node.ready}
    number_of = {name: q for q, name in enumerate(queues.names)}
    for gang, tasks in zip(snapshot.gangs, terminating, strict=True):
        queue = number_of.get(gang.queue)
        for task in tasks if queue is not None else ():
            if task.node in ready:
                for resource, amount in (*task.shape.request, (PODS, 1)):
                    held[queue, problem.index(resource)] += amount
    return queues.summed_up(held)
