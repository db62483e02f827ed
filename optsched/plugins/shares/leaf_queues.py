"""Leaf queues: with `enableHierarchy` of `capacity`, gangs run only in leaf queues.

Mathematics: models/formulation/leaf_queues.md. In Volcano (`pkg/scheduler/plugins/capacity`), one
gang in a parent queue disables the whole plugin (`checkHierarchicalQueue`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from optsched.plugins.ledger import Ledger
    from optsched.plugins.outcome import Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem

SHOWN = 3
"""Maximum number of child queues that a reason lists."""


class LeafQueues(Rule):
    """Rule: gangs run only in leaf queues."""

    name = "leaf-queues"
    hard_switch = Switch.ALLOCATABLE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        parents = {q.parent or ROOT_QUEUE for q in world.snapshot.queues if q.name != ROOT_QUEUE}
        for key in world.placed_of:
            queue = world.snapshot.gang_by_key[key].queue
            if queue in parents:
                detail = f"its queue {queue} has child queues"
                yield Violation(self.name, f"gang {key}", detail)

    def excludes(self, problem: Problem) -> Bool | None:
        """See `GangExclusion`."""
        found = problem.derived(_excluded)
        return found if found.any() else None

    def encode(self, form: Formulation) -> None:
        """Add constraints that gangs in parent queues place no task and do not start."""
        excluded = form.problem.derived(_excluded)
        gangs = form.gangs
        closed = excluded[gangs.members[gangs.member_start[:-1]]]
        entries = closed[gangs.gang_class_of]
        starts = form.start[closed]
        variables = np.unique(np.concatenate([form.placed_variable[entries], starts[starts >= 0]]))
        rows = np.arange(len(variables))
        form.model.add_rows(rows, variables, 1, upper=np.zeros(len(variables), np.int64))

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        excluded = problem.derived(_excluded)
        return _ParentQueues(excluded.tolist(), set(problem.queue_of[excluded].tolist()))

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason names the queue and some of its child queues."""
        problem = outcome.problem
        if not problem.derived(_excluded)[gang]:
            return None
        queues, number = problem.queues, int(problem.queue_of[gang])
        below = [queues.names[i] for i in np.flatnonzero(queues.parent_of == number).tolist()]
        more = " and more" if len(below) > SHOWN else ""
        return Reason(
            ReasonCode.NOT_A_LEAF,
            f"queue {queues.names[number]} has child queues ({', '.join(below[:SHOWN])}{more}) "
            "and accepts no jobs itself; use one of them",
        )

    explain_refusal = explain


def _excluded(problem: Problem) -> Bool:
    """Return the mask (G,) of gangs in parent queues."""
    found: Bool = np.isin(problem.queue_of, problem.queues.parent_of) & (problem.queue_of >= 0)
    return found


@dataclass(eq=False)
class _ParentQueues(Greedy):
    """Rejects gangs in parent queues, using the mask (G,) of these gangs and the queue indices."""

    _excluded: Sequence[bool]
    _queues: Collection[int]

    def max_tasks(self, queue: int, task_class: int) -> int:
        return 0 if queue in self._queues else int(UNLIMITED)

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        return queue not in self._queues

    def enqueue_vote(self, gang: int) -> int:
        return -1 if self._excluded[gang] else 0
