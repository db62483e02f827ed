"""Whom nobody may evict, whoever asks: the part of preemption that holds in every policy.

Mathematics: models/formulation/victims.md. Volcano deletes its victims without asking their
disruption budgets; here a budget holds, as it does in the eviction API that carries plans out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.running import running_tasks
from optsched.rules.base import Greedy, Rule, Violation
from optsched.rules.moves import SHUFFLE, left_broken

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from optsched.domain.cluster import Budget, Snapshot
    from optsched.domain.decisions import Evict
    from optsched.domain.task import Task
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger
    from optsched.rules.world import World


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
        gone = [t for key in seen if (t := world.task_by_key.get(key)) is not None]
        for budget in world.snapshot.budgets:
            evicted = [t for t in gone if covers(budget, t)]
            if len(evicted) > budget.allowed:
                detail = f"{len(evicted)} evicted, {budget.allowed} allowed"
                yield Violation(self.name, f"budget {budget.key}", detail)

    def spares(self, problem: Problem) -> Bool:
        """See `Rule`: who does not allow it, is cooling down, or has a budget of nothing."""
        spent = [b for b in problem.snapshot.budgets if b.allowed <= 0]
        kept = [any(covers(b, t) for b in spent) for t in running_tasks(problem).tasks]
        return unwilling(problem) | np.array(kept, np.bool_)


def unwilling(problem: Problem) -> Bool:
    """(V,) running tasks that say themselves that they may not be evicted, or not yet."""
    now_ms = problem.snapshot.taken_ms
    found = [bool(_refusal(t, now_ms)) for t in running_tasks(problem).tasks]
    return np.array(found, np.bool_)


def ended_gangs(snapshot: Snapshot, victims: Collection[str]) -> list[str]:
    """Keys of the gangs that lose all their pods on ready nodes by evictions, in order.

    `victims` are keys of tasks that leave for good.
    """
    ready = {node.name for node in snapshot.nodes if node.ready}
    found = []
    for gang in snapshot.gangs:
        standing = [t for t in gang.tasks if t.status.is_standing and t.node in ready]
        if standing and all(t.key in victims for t in standing):
            found.append(gang.key)
    return found


class Cooldown(Rule):
    """The plugin `cdp`: names everybody who is not cooling down.

    That tasks which are cooling down stay holds without it as well, see `Victims`.
    """

    name = "cdp"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Cooldown(problem)


class Budgets(Rule):
    """The plugin `pdb`: names as many as disruption budgets allow.

    That no budget loses more than it allows holds without it as well, see `Victims`.
    """

    name = "pdb"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Budgets(problem)


class _Naming(Greedy):
    """Names the same tasks whoever asks."""

    def __init__(self, problem: Problem) -> None:
        self._snapshot = problem.snapshot
        self._tasks = running_tasks(problem).tasks

    def named(self, tasks: Sequence[Task]) -> list[bool]:
        """Which of some tasks may go."""
        raise NotImplementedError

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        return self.movable(victims)

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        return self.movable(victims)

    def movable(self, victims: I64) -> I64:
        return victims[np.array(self.named([self._tasks[v] for v in victims]), np.bool_)]


class _Cooldown(_Naming):
    def named(self, tasks: Sequence[Task]) -> list[bool]:
        return [not _is_cooling(task, self._snapshot.taken_ms) for task in tasks]


class _Budgets(_Naming):
    def named(self, tasks: Sequence[Task]) -> list[bool]:
        left = {b: b.allowed for b in self._snapshot.budgets}

        def permits(task: Task) -> bool:
            asked = [b for b in left if covers(b, task)]
            if any(left[b] <= 0 for b in asked):
                return False
            left.update((b, left[b] - 1) for b in asked)
            return True

        return [permits(task) for task in tasks]


def _unmovable(world: World, eviction: Evict) -> str:
    if eviction.preemptor or not eviction.plugin:
        return f"evicted by {SHUFFLE}, but no plugin wants it moved"
    task = world.task_by_key[eviction.task]
    gone = {e.task for e in world.evictions}
    broken = left_broken(world.snapshot.gang_by_key[task.gang], gone)
    return broken or _refusal(task, world.snapshot.taken_ms)


def covers(budget: Budget, task: Task) -> bool:
    """Whether a budget protects a task."""
    if budget.selector is None or budget.namespace != task.namespace:
        return False
    return budget.selector.matches(task.labels)


def _refusal(task: Task, now_ms: int) -> str:
    """Why a running task may not be evicted; empty when it may."""
    if not task.preemptable:
        return "evicted, but says that it may not be"
    if _is_cooling(task, now_ms):
        return "evicted before its cooldown has ended"
    return ""


def _is_cooling(task: Task, now_ms: int) -> bool:
    return bool(task.cooldown_ms) and now_ms < task.started_ms + task.cooldown_ms


def _problem(world: World, eviction: Evict) -> str:
    task = world.task_by_key.get(eviction.task)
    if task is None:
        return "evicted, but belongs to no gang"
    return _misplaced(task, eviction) or _groundless(world, eviction)


def _misplaced(task: Task, eviction: Evict) -> str:
    if not task.status.is_standing:
        return f"evicted, but is {task.status.value}"
    if task.node != eviction.node:
        return f"evicted from {eviction.node}, but runs on {task.node}"
    return ""


def _groundless(world: World, eviction: Evict) -> str:
    if eviction.action == SHUFFLE:
        return _unmovable(world, eviction)
    preemptor = world.snapshot.gang_by_key.get(eviction.preemptor)
    if preemptor is None:
        return f"evicted for {eviction.preemptor}, which does not exist"
    gains = world.placed_of.get(preemptor.key, [])
    if not gains:
        return f"evicted for {preemptor.key}, which gets no room"
    if not all(t.preempts for t in gains):
        return f"evicted for {preemptor.key}, whose preemptionPolicy is Never"
    return _refusal(world.task_by_key[eviction.task], world.snapshot.taken_ms)
