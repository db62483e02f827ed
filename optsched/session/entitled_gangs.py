"""Gangs that may ignore a reservation, because their queue is entitled to the reserved capacity.

Mathematics: models/formulation/reservation.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.shares.queue_limits import kept_amounts
from optsched.problem.decisions import nominated_amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import CapacityReservation
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


def find_entitled_gangs(
    problem: Problem, rules: RuleSet, reservations: Sequence[CapacityReservation]
) -> tuple[CapacityReservation, ...]:
    """Add to each reservation the gangs that may ignore it due to their queues' entitlements.

    A gang of another queue may ignore a reservation if two conditions hold. First, the gang's queue
    would stay within its entitlement if the gang's minimum started. Second, the queue of the
    reservation's gang would exceed its entitlement if the minimum of this gang started. The same
    conditions apply to both queues' ancestors below their nearest common ancestor.
    """
    due, _ = rules.entitling(problem)
    due = problem.queues.guarantee if due is None else due
    if not due.any() or not any(r.reserves_capacity for r in reservations):
        return tuple(reservations)
    finder = _EntitledGangs(problem, due)
    return tuple(finder.extend(r) if r.reserves_capacity else r for r in reservations)


class _EntitledGangs:
    """Finds entitled gangs by comparing gang minimums with queue entitlements."""

    def __init__(self, problem: Problem, due: I64) -> None:
        self._problem = problem
        self._due = due
        self._kept = kept_amounts(problem, due)
        queues = problem.queues
        self._held = queues.summed_up(queues.allocated + nominated_amounts(problem))
        self._above: Bool = queues.subtree.T
        self._minimums: dict[int, I64] = {}
        self._index_of = {gang.key: g for g, gang in enumerate(problem.snapshot.gangs)}
        gangs = problem.open_gangs
        kinds = np.stack([problem.shape_of[gangs], problem.queue_of[gangs]], axis=1)
        self._kinds, kind_of = np.unique(kinds, axis=0, return_inverse=True)
        self._gangs, self._kind_of = gangs, kind_of.reshape(-1)

    def extend(self, reservation: CapacityReservation) -> CapacityReservation:
        """Add to a reservation the gangs that may ignore it due to their queues' entitlements."""
        reserving = self._index_of[reservation.gang]
        queue = int(self._problem.queue_of[reserving])
        minimum = self._minimum_of(int(self._problem.shape_of[reserving]))
        limited = np.zeros_like(self._due, np.bool_)
        entitled = np.zeros(len(self._kinds), np.bool_)
        for kind, (shape, other) in enumerate(self._kinds.tolist()):
            used_entitlements = self._find_used_entitlements(other, queue, self._minimum_of(shape))
            if used_entitlements is not None and self._borrows(queue, other, minimum):
                entitled[kind] = True
                limited |= used_entitlements
        problem, amounts_by_queue = self._problem, []
        for q in np.flatnonzero(limited.any(axis=1)).tolist():
            columns = np.flatnonzero(limited[q]).tolist()
            amounts = sorted((problem.resources[r], int(self._due[q, r])) for r in columns)
            amounts_by_queue.append((problem.queues.names[q], tuple(amounts)))
        gangs = (problem.snapshot.gangs[g] for g in self._gangs[entitled[self._kind_of]].tolist())
        return replace(
            reservation,
            entitled=frozenset(gang.key for gang in gangs),
            entitlements=tuple(sorted(amounts_by_queue)),
        )

    def _find_used_entitlements(self, queue: int, lender: int, minimum: I64) -> Bool | None:
        """Return a mask (Q, R) of the entitlements that a gang's minimum uses.

        Returns None if the minimum exceeds an entitlement, or if the queue is not entitled to any
        resource of the minimum.
        """
        apart = self._above[queue] & ~self._above[lender]
        mask: Bool = apart[:, None] & (minimum > 0) & (self._due > 0)
        if not mask.any() or (mask & (self._held + minimum > self._due)).any():
            return None
        return mask

    def _borrows(self, queue: int, other: int, minimum: I64) -> bool:
        """Return whether a gang's `minimum` (R,) would make its queue exceed its protected amount.

        The protected amount is the queue's entitlement plus its tolerated overuse. Also returns
        True if the queue is not entitled to any resource of the minimum.
        """
        apart = self._above[queue] & ~self._above[other]
        mask = apart[:, None] & (minimum > 0) & (self._due > 0)
        exceeded = mask & (self._held + minimum > self._kept)
        return bool(exceeded.any() or not mask.any())

    def _minimum_of(self, shape: int) -> I64:
        """Return an upper bound (R,) on what a gang class requests for its minimum number of tasks.

        For a started gang, at least one task is counted. If the tasks differ, the largest requests
        of each resource are summed.
        """
        if shape not in self._minimums:
            shapes = self._problem.shapes
            gang = shapes.shapes[shape]
            entries = slice(int(shapes.start[shape]), int(shapes.start[shape + 1]))
            request = self._problem.classes.request[shapes.class_of[entries]]
            requests = np.repeat(request, shapes.count[entries], axis=0)
            number = max(gang.need, sum(n for _, n in gang.need_role), 1)
            if gang.parts and not gang.is_started:
                number = len(requests)
            self._minimums[shape] = -np.sort(-requests, axis=0)[:number].sum(axis=0)
        return self._minimums[shape]
