"""Hard ceilings of queues: what a queue and all below it take never exceeds its capability.

Mathematics: models/formulation/capability.md. Volcano enforces ancestors only with
`enableHierarchy`; here a ceiling always binds, wherever in the tree it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.reasons import Reason, ReasonCode
from optsched.problem.arrays import UNLIMITED
from optsched.rules.asking import asked_next
from optsched.rules.base import Greedy, Rule, Violation
from optsched.rules.faces import Face
from optsched.rules.let_in import expected_by_queue, least_resources
from optsched.rules.wording import amount_text
from optsched.rules.world import summed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.arrays import I64
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger
    from optsched.rules.outcome import Outcome
    from optsched.rules.world import World


class Capability(Rule):
    """No queue grows above `spec.capability`, its own or an ancestor's."""

    name = "capability"
    hard_face = Face.ALLOCATABLE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`. A queue above its ceiling before may not grow in what it is above of."""
        for queue in world.snapshot.queues:
            if queue.capability is None:
                continue
            below = world.below(queue)
            gain = summed(world.gained_by_queue[name] for name in below)
            held = summed(world.held_by_queue[name] for name in below)
            for resource, limit in queue.capability:
                more, used = gain.get(resource, 0), held.get(resource, 0)
                if more and used + more > limit:
                    detail = (
                        f"{amount_text(resource, used + more)} would be in use, "
                        f"the capability is {amount_text(resource, limit)}"
                    )
                    yield Violation(self.name, f"queue {queue.name}", detail)

    def encode(self, form: Formulation) -> None:
        """Σ over the subtree of request·x ≤ capability − allocated, where there is a ceiling."""
        queues = form.problem.queues
        form.add_usage_rows(queues.subtree, _room(queues.capability, _subtree_use(form.problem)))

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        limited = (problem.queues.capability < UNLIMITED).any()
        return _Ceilings(problem, ledger) if limited else None

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`: names the queue or the ancestor whose ceiling binds."""
        problem = outcome.problem
        queues = problem.queues
        queue = int(problem.queue_of[gang])
        asked = asked_next(outcome, gang)
        used = queues.subtree.astype(np.int64) @ outcome.queue_allocated
        above = queues.subtree[:, queue]
        over = (asked > 0) & (used + asked > queues.capability) & above[:, None]
        for at, r in np.argwhere(over).tolist():
            return Reason(
                ReasonCode.CAPABILITY,
                f"{_place(queues.names[queue], queues.names[at])} has capability "
                f"{amount_text(problem.resources[r], int(queues.capability[at, r]))}, "
                f"{amount_text(problem.resources[r], int(used[at, r]))} are in use, "
                f"{amount_text(problem.resources[r], int(asked[r]))} are asked for",
            )
        return None


def _place(queue: str, at: str) -> str:
    return f"queue {queue}" if queue == at else f"queue {at}, an ancestor of {queue},"


def _subtree_use(problem: Problem) -> I64:
    used: I64 = problem.queues.subtree.astype(np.int64) @ problem.queues.allocated
    return used


def _room(limit: I64, used: I64) -> I64:
    return np.where(limit < UNLIMITED, limit - used, UNLIMITED)


class _Ceilings(Greedy):
    """Room below the ceilings of a queue and its ancestors."""

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        queues = problem.queues
        self._ledger = ledger
        self._ceiling: list[list[int]] = queues.capability.tolist()
        limited = [np.flatnonzero(row < UNLIMITED).tolist() for row in queues.capability]
        self._below = [np.flatnonzero(row).tolist() for row in queues.subtree]
        self._least: list[list[int]] = least_resources(problem).tolist()
        self._expected: list[list[int]] = expected_by_queue(problem).tolist()
        self._binding = [
            [(a, r) for a in np.flatnonzero(queues.subtree[:, q]).tolist() for r in limited[a]]
            for q in range(len(queues.names))
        ]

    def room(self, queue: int, task_class: int) -> int:
        request = self._ledger.request[task_class]
        rooms = (self._left(a, r) // request[r] for a, r in self._binding[queue] if request[r])
        return min(rooms, default=int(UNLIMITED))

    def _left(self, queue: int, r: int) -> int:
        used = sum(self._ledger.queue_used[q][r] for q in self._below[queue])
        return max(self._ceiling[queue][r] - used, 0)

    def enqueue_vote(self, gang: int) -> int:
        least = self._least[gang]
        binding = [(a, r) for a, r in self._binding[self._ledger.queue_of[gang]] if least[r]]
        fits = all(least[r] + self._expected_below(a, r) <= self._left(a, r) for a, r in binding)
        return 1 if fits else -1

    def _expected_below(self, queue: int, r: int) -> int:
        return sum(self._expected[q][r] for q in self._below[queue])

    def enqueued(self, gang: int) -> None:
        expected = self._expected[self._ledger.queue_of[gang]]
        for r, amount in enumerate(self._least[gang]):
            expected[r] += amount
