"""What enqueued gangs still expect, for plugins that vote in the action `enqueue`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import GangPhase
from optsched.problem.arrays import table

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def least_resources(problem: Problem) -> I64:
    """Return (G, R) the `minResources` of every gang; 0 for resources that it does not name."""
    return problem.derived(_least_resources)


def expected_by_queue(problem: Problem) -> I64:
    """Return (Q, R) what the own gangs of queues in phase Inqueue expect, less elastic amounts.

    Elastic is what gangs hold beyond their `minResources`; Volcano counts it as idle
    (`JobInfo.GetElasticResources`). A bare pod has no elastic amounts, for Volcano creates a
    PodGroup with its request.
    """
    return problem.derived(_expected_by_queue)


def enqueued_gangs(problem: Problem) -> list[int]:
    """Return the enqueued gangs without running tasks."""
    return [
        g
        for g, gang in enumerate(problem.snapshot.gangs)
        if gang.phase is GangPhase.INQUEUE and not problem.num_ready[g]
    ]


def _least_resources(problem: Problem) -> I64:
    gangs, width = problem.snapshot.gangs, len(problem.resources)
    naming = [g for g, gang in enumerate(gangs) if gang.min_resources]
    named = [dict(gangs[g].min_resources) for g in naming]
    least = np.zeros((len(gangs), width), np.int64)
    least[naming] = table([[n.get(r, 0) for r in problem.resources] for n in named], width)
    return least


def _expected_by_queue(problem: Problem) -> I64:
    least = least_resources(problem)
    expected = np.zeros_like(problem.queues.allocated)
    waiting = [g for g in enqueued_gangs(problem) if problem.queue_of[g] >= 0]
    np.add.at(expected, problem.queue_of[waiting], least[waiting])
    has_elastic = [bool(row.allocated) and not row.gang.is_implicit for row in problem.rows]
    for g in np.flatnonzero(np.array(has_elastic, np.bool_) & (problem.queue_of >= 0)).tolist():
        held = problem.rows[g].allocated
        allocated = np.array([held.get(r, 0) for r in problem.resources], np.int64)
        expected[problem.queue_of[g]] -= np.maximum(allocated - least[g], 0)
    return expected
