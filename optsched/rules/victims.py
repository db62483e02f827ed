"""Whom nobody may evict, whoever asks: the part of preemption that holds in every policy.

Mathematics: models/formulation/victims.md. Volcano deletes its victims without asking their
disruption budgets; here a budget holds, as it does in the eviction API that carries plans out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.task import TaskStatus
from optsched.problem.running import running_tasks
from optsched.rules.base import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.domain.cluster import Budget, Snapshot
    from optsched.domain.decisions import Evict
    from optsched.domain.task import Task
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem
    from optsched.rules.world import World

_HELD = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING})


class Victims(Rule):
    """Only running tasks of ours that allow it are evicted, for gangs that get room by it."""

    name = "victims"

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        seen: set[str] = set()
        for eviction in world.evictions:
            where = f"task {eviction.task}"
            if eviction.task in seen:
                yield Violation(self.name, where, "evicted more than once")
            seen.add(eviction.task)
            problem = _problem(world, eviction)
            if problem:
                yield Violation(self.name, where, problem)
        for budget in world.snapshot.budgets:
            evicted = [t for t in _tasks(world.snapshot) if t.key in seen and covers(budget, t)]
            if len(evicted) > budget.allowed:
                detail = f"{len(evicted)} evicted, {budget.allowed} allowed"
                yield Violation(self.name, f"budget {budget.key}", detail)

    def spares(self, problem: Problem) -> Bool:
        """See `Rule`: who does not allow it, is cooling down, or has a budget of nothing."""
        snapshot = problem.snapshot
        spent = [b for b in snapshot.budgets if b.allowed <= 0]
        return np.array(
            [
                bool(_refusal(t, snapshot.taken_ms)) or any(covers(b, t) for b in spent)
                for t in running_tasks(problem).tasks
            ],
            np.bool_,
        )


def covers(budget: Budget, task: Task) -> bool:
    """Whether a budget protects a task."""
    if budget.selector is None or budget.namespace != task.namespace:
        return False
    return budget.selector.matches(task.labels)


def _refusal(task: Task, now_ms: int) -> str:
    """Why a running task may not be evicted; empty when it may."""
    if not task.preemptable:
        return "evicted, but says that it may not be"
    if task.cooldown_ms and now_ms < task.started_ms + task.cooldown_ms:
        return "evicted before its cooldown has ended"
    return ""


def _problem(world: World, eviction: Evict) -> str:
    task = world.task_by_key.get(eviction.task)
    if task is None:
        return "evicted, but belongs to no gang"
    return _misplaced(task, eviction) or _groundless(world, eviction)


def _misplaced(task: Task, eviction: Evict) -> str:
    if task.status not in _HELD:
        return f"evicted, but is {task.status.value}"
    if task.node != eviction.node:
        return f"evicted from {eviction.node}, but runs on {task.node}"
    return ""


def _groundless(world: World, eviction: Evict) -> str:
    preemptor = world.snapshot.gang_by_key.get(eviction.preemptor)
    if preemptor is None:
        return f"evicted for {eviction.preemptor}, which does not exist"
    gains = world.placed_of.get(preemptor.key, [])
    if not gains:
        return f"evicted for {preemptor.key}, which gets no room"
    if not all(t.preempts for t in gains):
        return f"evicted for {preemptor.key}, whose preemptionPolicy is Never"
    return _refusal(world.task_by_key[eviction.task], world.snapshot.taken_ms)


def _tasks(snapshot: Snapshot) -> Iterator[Task]:
    return (task for gang in snapshot.gangs for task in gang.tasks)
