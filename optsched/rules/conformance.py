"""Pods that keep the cluster alive are never evicted.

Mathematics: models/formulation/conformance.md. Volcano: `pkg/scheduler/plugins/conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.running import running_tasks
from optsched.rules.base import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.domain.task import Task
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem
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

    def spares(self, problem: Problem) -> Bool:
        """See `Rule`."""
        return np.array([is_system(t) for t in running_tasks(problem).tasks], np.bool_)


def is_system(task: Task) -> bool:
    """Whether a task keeps the cluster alive."""
    return task.namespace == SYSTEM_NAMESPACE or task.priority >= SYSTEM_PRIORITY
