"""Open the scheduling gates of tasks that their queue admits but that fit on no node.

A scheduling gate hides a pod from autoscalers. If a pod lacks only a node, its gate opens so that
the autoscaler sees the pod. A task with an open gate is charged to its queue, so gates open only
within the queue's limits.

Source: Volcano, docs/design/scheduling-gates-queue-admission.md. In Volcano, gates open task by
task. In optsched, the gates of a gang's minimum open together or not at all.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.task import QueueGate
from optsched.plugins.accounting import Ledger
from optsched.plugins.extension_points import Greedy, Switch
from optsched.plugins.gangs.gang import next_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.reasons import Reason
    from optsched.plugins.accounting import Outcome
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.tiers import Tiers

_FOR_NODES: Final = frozenset(
    {
        ReasonCode.NO_NODES,
        ReasonCode.IMPOSSIBLE,
        ReasonCode.DEVICES,
        ReasonCode.PREDICATES,
        ReasonCode.RESOURCES,
        ReasonCode.RESERVED,
        ReasonCode.FRAGMENTED,
        ReasonCode.TOPOLOGY,
        ReasonCode.RELATIONS,
        ReasonCode.WAITING,
        ReasonCode.OUTRANKED,
    }
)
"""Codes of reasons for waiting that additional nodes may resolve."""


def opened(
    outcome: Outcome, rules: RuleSet, tiers: Tiers, pending: Mapping[str, Reason]
) -> tuple[str, ...]:
    """Return the keys of unplaced tasks whose gates open; more important gangs come first.

    `pending` maps the key of each gang with pending tasks to the reason why it waits.
    """
    problem = outcome.problem
    refused = outcome.decisions.refused
    gated = [g for g, row in enumerate(problem.rows) if row.is_gated and not refused[g]]
    if not gated:
        return ()
    quota = _RemainingQuota(outcome, rules)
    start = problem.task_start.tolist()
    waiting = {
        g: [t for t in range(start[g], start[g + 1]) if not outcome.assigned[t]] for g in gated
    }
    for g, tasks in waiting.items():
        quota.record_tasks(g, [t for t in tasks if problem.tasks[t].gate is QueueGate.OPEN])
    found: list[int] = []
    for g in sorted(gated, key=lambda g: (tiers.of[g], problem.created_ms[g], g)):
        reason = pending.get(problem.snapshot.gangs[g].key)
        if reason is not None and reason.code in _FOR_NODES:
            found += _releasable_tasks(outcome, quota, g, waiting[g])
    return tuple(problem.tasks[t].key for t in found)


def _releasable_tasks(
    outcome: Outcome, quota: _RemainingQuota, gang: int, tasks: Sequence[int]
) -> list[int]:
    """Return the gated tasks that a gang's queue admits: the minimum first, then single tasks."""
    problem = outcome.problem
    closed = [t for t in tasks if problem.tasks[t].gate is QueueGate.CLOSED]
    # The tasks that the gang must place together; tasks with open gates are preferred.
    first: set[int] = set()
    in_order = sorted(tasks, key=lambda t: (problem.tasks[t].gate is QueueGate.CLOSED, t))
    for task_class, role, number in next_entries(outcome, gang):
        of_entry = (
            t
            for t in in_order
            if problem.task_class[t] == task_class and problem.tasks[t].role == role
        )
        first.update(islice(of_entry, number))
    least = [t for t in closed if t in first]
    if not quota.has_capacity(gang, least):
        return []
    quota.record_tasks(gang, least)
    rest: list[int] = []
    for task in closed:
        if task not in first and quota.has_capacity(gang, [task]):
            quota.record_tasks(gang, [task])
            rest.append(task)
    return [*least, *rest]


class _RemainingQuota:
    """The quota of each queue minus the requests of placed tasks and of tasks with open gates."""

    def __init__(self, outcome: Outcome, rules: RuleSet) -> None:
        self._problem = outcome.problem
        self._ledger = Ledger(outcome.problem)
        states = (
            each.rule.open(outcome.problem, self._ledger)
            for each in rules.enforced
            if Switch.ALLOCATABLE in each.switches
        )
        # The state that each quota rule keeps, as in the greedy pipeline.
        self._ceilings: list[Greedy] = [
            state
            for state in states
            if state is not None and type(state).max_tasks is not Greedy.max_tasks
        ]
        assigned = np.flatnonzero(outcome.assigned)
        for gang in np.unique(outcome.problem.gang_of[assigned]).tolist():
            self.record_tasks(gang, assigned[outcome.problem.gang_of[assigned] == gang].tolist())

    def has_capacity(self, gang: int, tasks: Iterable[int]) -> bool:
        """Return whether a gang's queue admits all of the given tasks together."""
        queue, taken = self._ledger.queue_of[gang], list[tuple[int, int]]()
        fits = True
        for task_class, number in self._by_class(tasks):
            limits = (each.max_tasks(queue, task_class) for each in self._ceilings)
            fits = all(limit >= number for limit in limits)
            if not fits:
                break
            self._record_class(gang, task_class, number)
            taken.append((task_class, number))
        for task_class, number in taken:
            self._record_class(gang, task_class, -number)
        return fits

    def record_tasks(self, gang: int, tasks: Iterable[int]) -> None:
        for task_class, number in self._by_class(tasks):
            self._record_class(gang, task_class, number)

    def _by_class(self, tasks: Iterable[int]) -> list[tuple[int, int]]:
        classes = self._problem.task_class[np.array(list(tasks), np.int64)]
        found, numbers = np.unique(classes, return_counts=True)
        return list(zip(found.tolist(), numbers.tolist(), strict=True))

    def _record_class(self, gang: int, task_class: int, number: int) -> None:
        self._ledger.record_placement(gang, task_class, number)
        for each in self._ceilings:
            if type(each).record_placement is not Greedy.record_placement:
                each.record_placement(gang, task_class, _ANYWHERE, np.array([number]))


_ANYWHERE: Final = np.zeros(1, np.int64)
"""Stands for the node of any task: quota rules need a node but do not read it."""
