"""Pods that keep the cluster alive are never evicted.

Mathematics: models/formulation/conformance.md. Volcano: `pkg/scheduler/plugins/conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.running import running_tasks
from optsched.rules.base import Greedy, Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.domain.task import Task
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger
    from optsched.rules.world import World

SYSTEM_NAMESPACE = "kube-system"
SYSTEM_PRIORITY = 2_000_000_000
"""The least priority of `system-cluster-critical` and `system-node-critical`; users may define
none above half of it (Kubernetes `pkg/apis/scheduling/types.go`)."""


class Conformance(Rule):
    """No pod of `kube-system` is evicted, and none of a system priority class."""

    name = "conformance"

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        evicted = {action.task for action in world.evictions}
        for task in (t for node in world.snapshot.nodes for t in node.residents):
            if task.key in evicted and is_system(task):
                yield Violation(self.name, f"task {task.key}", "evicted, but keeps the cluster up")

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Sparing(problem)

    def spares(self, problem: Problem) -> Bool:
        """See `Rule`."""
        return np.array([is_system(t) for t in running_tasks(problem).tasks], np.bool_)


class _Sparing(Greedy):
    """Leaves out tasks that keep the cluster alive."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        return self._others(victims)

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        return self._others(victims)

    def _others(self, victims: I64) -> I64:
        tasks = running_tasks(self._problem).tasks
        return np.array([v for v in victims.tolist() if not is_system(tasks[v])], np.int64)


def is_system(task: Task) -> bool:
    """Whether a task keeps the cluster alive."""
    return task.namespace == SYSTEM_NAMESPACE or task.priority >= SYSTEM_PRIORITY
