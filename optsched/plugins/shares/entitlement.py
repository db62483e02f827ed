"""Limits of reclaim: how much a reclaiming queue may use, and what a lending queue keeps.

Mathematics: models/formulation/entitlement.md. A reclaiming queue uses at most its deserved share
when the session ends. The preemption stage enforces this limit for the reclaiming gang. The rule
`entitlement` enforces the limit for the other gangs of the queue. A lending queue keeps its
deserved share plus the tolerated overuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.plugins.gangs.gang import next_requests
from optsched.plugins.verification.world import summed
from optsched.problem.arrays import UNLIMITED, frozen
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.plugins.ledger import Ledger
    from optsched.plugins.outcome import Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem


class Entitlements(Rule):
    """Rule: a reclaiming queue does not grow beyond its deserved share."""

    name = "entitlement"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`. A queue that already exceeds its entitlement must not grow."""
        for entitlement in world.snapshot.entitlements:
            queue = world.snapshot.queue_by_name.get(entitlement.queue)
            if queue is None:
                continue
            below, resource = world.descendants_by_queue[queue.name], entitlement.resource
            more = summed(world.gained_by_queue[name] for name in below).get(resource, 0)
            used = summed(world.held_by_queue[name] for name in below).get(resource, 0) + more
            if more and used > entitlement.most:
                detail = (
                    f"{amount_text(resource, used)} would be in use, the queue may reclaim up to "
                    f"{amount_text(resource, entitlement.most)}"
                )
                yield Violation(self.name, f"queue {queue.name}", detail)

    def encode(self, form: Formulation) -> None:
        """Add Σ request · x ≤ entitlement − allocated over the subtree of each entitled queue.

        x is the number of placed tasks.
        """
        problem = form.problem
        if problem.snapshot.entitlements:
            most, queues = problem.derived(entitled_amounts), problem.queues
            used = queues.summed_up(queues.allocated)
            room = np.where(most < UNLIMITED, most - used, UNLIMITED)
            form.add_usage_rows(queues.subtree, room)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        if not problem.snapshot.entitlements:
            return None
        return SubtreeLimits(problem, ledger, problem.derived(entitled_amounts))

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`.

        The reason names the reclaiming queue and its entitlement.
        """
        problem = outcome.problem
        if not problem.snapshot.entitlements:
            return None
        queues, requested = problem.queues, next_requests(outcome, gang)
        most, used = problem.derived(entitled_amounts), outcome.subtree_allocated
        above = np.flatnonzero(queues.subtree[:, int(problem.queue_of[gang])])
        over = (requested > 0) & (used[above] + requested > most[above])
        for i, r in np.argwhere(over).tolist():
            at, name = int(above[i]), problem.resources[r]
            return Reason(
                ReasonCode.DESERVED,
                f"queue {queues.names[at]} may reclaim {name} up to "
                f"{amount_text(name, int(most[at, r]))} "
                f"(in use: {amount_text(name, int(used[at, r]))}, "
                f"requested: {amount_text(name, int(requested[r]))})",
            )
        return None


def entitled_amounts(problem: Problem) -> I64:
    """Return each queue's entitlement (Q, R), with descendants; `UNLIMITED` if it has none."""
    queues = problem.queues
    index_of = {name: q for q, name in enumerate(queues.names)}
    most = np.full((len(queues.names), len(problem.resources)), UNLIMITED, np.int64)
    for entitlement in problem.snapshot.entitlements:
        q, r = index_of.get(entitlement.queue, -1), problem.index(entitlement.resource)
        if q >= 0 and r >= 0:
            most[q, r] = min(most[q, r], entitlement.most)
    frozen(most)
    return most


def kept_amounts(problem: Problem, due: I64) -> I64:
    """Return the amounts (Q, R) that reclaim must leave to each queue; 0 if it deserves none.

    `due` (Q, R) contains the deserved shares. The queue annotation
    `volcano.sh/overuse-tolerance` sets the tolerated overuse.
    """
    kept = due.copy()
    for q, queue in enumerate(problem.snapshot.queues):
        if queue.tolerance is not None:
            for r, name in enumerate(problem.resources):
                kept[q, r] = queue.tolerance.protected_amount(name, int(due[q, r]))
    frozen(kept)
    return kept


def returns_first(problem: Problem) -> list[bool]:
    """Return True for queues with an overuse tolerance, from which reclaim takes capacity first."""
    return [q.tolerance is not None for q in problem.snapshot.queues]


class SubtreeLimits(Greedy):
    """Limits the usage of queues, with descendants, to amounts (Q, R) while tasks are placed."""

    def __init__(self, problem: Problem, ledger: Ledger, limit: I64) -> None:
        self._ledger = ledger
        subtree, amounts = problem.queues.subtree, limit.tolist()
        limited = [np.flatnonzero(row < UNLIMITED).tolist() for row in limit]
        self._above = [np.flatnonzero(subtree[:, q]).tolist() for q in range(len(limited))]
        self._binding: list[list[tuple[int, int, int]]] = [
            [(a, r, amounts[a][r]) for a in above for r in limited[a]] for above in self._above
        ]

    def max_tasks(self, queue: int, task_class: int) -> int:
        """See `Quota`."""
        request, used = self._ledger.request[task_class], self._ledger.subtree_used
        binding = ((a, r, most) for a, r, most in self._binding[queue] if request[r])
        fitting = (max(most - used[a][r], 0) // request[r] for a, r, most in binding)
        return min(fitting, default=int(UNLIMITED))
