"""Pods that keep the cluster alive come first and are never evicted.

Mathematics: models/formulation/conformance.md. Volcano: `pkg/scheduler/plugins/conformance`, which
has the second half only; its documentation promises both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import derived_of
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

SYSTEM_NAMESPACE = "kube-system"
SYSTEM_PRIORITY = 2_000_000_000
"""The least priority of `system-cluster-critical` and `system-node-critical`; users may define
none above half of it (Kubernetes `pkg/apis/scheduling/types.go`)."""


class Conformance(Rule):
    """Pods of `kube-system` and of system priority classes come first, and none is evicted."""

    name = "conformance"

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        evicted = {action.task for action in world.evictions}
        if not evicted:
            return
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
    """Leaves out tasks that keep the cluster alive, and has their gangs served before others."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._is_system = problem.derived(_system_gangs)

    def comes_first(self, gang: int) -> bool:
        return self._is_system[gang]

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        return self._drop_system_pods(victims)

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        return self._drop_system_pods(victims)

    def _drop_system_pods(self, victims: I64) -> I64:
        tasks = running_tasks(self._problem).tasks
        return np.array([v for v in victims.tolist() if not is_system(tasks[v])], np.int64)


def _system_gangs(problem: Problem) -> list[bool]:
    """By gang; asked for by every engine of a session."""
    return derived_of(problem.snapshot.gangs, is_system_gang)


def is_system(task: Task) -> bool:
    """Whether a task keeps the cluster alive."""
    return task.namespace == SYSTEM_NAMESPACE or task.priority >= SYSTEM_PRIORITY


def is_system_gang(gang: Gang) -> bool:
    """Whether any task of a gang keeps the cluster alive."""
    if gang.namespace == SYSTEM_NAMESPACE or gang.priority >= SYSTEM_PRIORITY:
        return True
    return any(task.priority >= SYSTEM_PRIORITY for task in gang.tasks)


def system_first(snapshot: Snapshot) -> Snapshot:
    """The snapshot with gangs that keep the cluster alive at a system priority, at least.

    The very same snapshot where all of them are.
    """
    system = derived_of(snapshot.gangs, is_system_gang)
    if not any(system):
        return snapshot
    pairs = zip(snapshot.gangs, system, strict=True)
    low = [gang for gang, is_system in pairs if is_system and gang.priority < SYSTEM_PRIORITY]
    if not low:
        return snapshot
    raised = {gang.key: replace(gang, priority=SYSTEM_PRIORITY) for gang in low}
    return replace(snapshot, gangs=tuple(raised.get(g.key, g) for g in snapshot.gangs))
