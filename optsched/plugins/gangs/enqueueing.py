"""What gangs that were let in still expect, for rules that vote in the action `enqueue`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import GangPhase
from optsched.problem.arrays import table

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def least_resources(problem: Problem) -> I64:
    """(G, R) `minResources` of every gang; 0 where it names nothing."""
    return problem.derived(_least_resources)


def expected_by_queue(problem: Problem) -> I64:
    """(Q, R) what the queue's own gangs in phase Inqueue still expect, less what is elastic.

    Elastic is what gangs hold beyond their `minResources`, all of it where a PodGroup names none:
    Volcano counts it as free (`JobInfo.GetElasticResources`). A bare pod holds nothing elastic, for
    Volcano makes a PodGroup for it that names its request.
    """
    return problem.derived(_expected_by_queue)


def enqueued_gangs(problem: Problem) -> list[int]:
    """Gangs that were let in and of which nothing runs yet."""
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
