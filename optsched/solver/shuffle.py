"""The action `shuffle`: evict tasks that plugins propose to move, if other rules allow it.

The action evicts no protected pod and respects disruption budgets. A gang loses only surplus tasks
or is evicted entirely, so no gang runs below its minimum. The action runs before the session places
any task.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.decisions import Evict
from optsched.cluster.relocation import with_terminating
from optsched.cluster.snapshot import Gang, GangPhase
from optsched.cluster.task import TaskStatus
from optsched.plugins.accounting import Ledger
from optsched.plugins.eviction.moves import SHUFFLE, Mover, describe_broken_gang, has_period_passed
from optsched.plugins.eviction.victims import cover_running, cover_tasks
from optsched.plugins.extension_points import Switch
from optsched.plugins.ruleset import RuleSet
from optsched.problem.compile import compile_problem
from optsched.problem.running import running_tasks
from optsched.solver.greedy.nodes import NodeView
from optsched.solver.greedy.placement import PlacementState
from optsched.solver.greedy.plugins import GreedyPlugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.eviction.moves import Moves, Relief
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem

_COPY: Final = "~shuffle"
"""Suffix of the key of a task's copy; Kubernetes object names cannot contain `~`."""


def shuffle(problem: Problem, rules: RuleSet) -> tuple[Evict, ...]:
    """Return the evictions of the first tier of plugins that proposes an allowed eviction."""
    action = _Shuffle(problem, rules)
    for _, tier in groupby(rules.active, key=lambda a: a.tier):
        for active in tier:
            if Switch.VICTIM not in active.switches or not isinstance(active.rule, Mover):
                continue
            moves = active.rule.find_moves(problem)
            if moves is not None and has_period_passed(
                problem.snapshot, active.rule.name, moves.period_ms
            ):
                action.carry_out(moves, active.rule.name)
        if action.evictions:
            break
    return tuple(action.evictions)


def apply_moves(snapshot: Snapshot, evictions: Sequence[Evict]) -> Snapshot:
    """Return the snapshot in which the evicted tasks terminate and use their disruption budgets."""
    if not evictions:
        return snapshot
    evicted = {e.task for e in evictions}
    tasks = [t for g in snapshot.gangs for t in g.tasks if t.key in evicted]
    num_covered = cover_tasks(snapshot.budgets, tasks).sum(axis=1).tolist()
    budgets = tuple(
        replace(budget, allowed=budget.allowed - number)
        for budget, number in zip(snapshot.budgets, num_covered, strict=True)
    )
    return replace(with_terminating(snapshot, evicted), budgets=budgets)


class _Shuffle:
    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self.evictions: list[Evict] = []
        self._problem = problem
        self._rules = rules
        self._running = running_tasks(problem)
        self._gangs = problem.snapshot.gangs
        self._plugins = GreedyPlugins(problem, rules, Ledger(problem))
        self._stays = rules.spared(problem)
        self._budget_left = np.array([b.allowed for b in problem.snapshot.budgets], np.int64)
        self._cover = cover_running(problem)
        self._evicted_keys: set[str] = set()

    def carry_out(self, moves: Moves, plugin: str) -> None:
        """Evict the tasks that a plugin proposes to move and that other rules allow to move."""
        tasks = moves.tasks[~self._stays[moves.tasks]]
        tasks = self._plugins.movable(tasks)
        places = None if moves.relief is None else _Places(self._problem, self._rules, moves.relief)
        if places is not None:
            places.add_copies(tasks)
        most = dict(moves.most)
        for v in tasks.tolist():
            gang = int(self._running.gang_of[v])
            unit = self._find_unit(v, gang in moves.whole) if most.get(gang, 1) > 0 else []
            victims = [self._running.tasks[u] for u in unit]
            num_covered = self._cover[:, unit].sum(axis=1)
            exceeds = bool((self._budget_left < num_covered).any())
            if not unit or exceeds or not (places is None or places.move_task(v)):
                continue
            if gang in most:
                most[gang] -= len(unit)
            nodes = self._running.node_of[unit].tolist()
            why = next(reason for n in nodes if (reason := moves.reasons.get(n)))
            for task in victims:
                self._evicted_keys.add(task.key)
                self.evictions.append(
                    Evict(task.key, task.node, SHUFFLE, "", plugin=plugin, reason=why)
                )
            self._budget_left -= num_covered

    def _find_unit(self, v: int, may_be_whole: bool) -> list[int]:
        """Return the tasks to evict together: the task alone, or its entire gang.

        The gang is evicted entirely if it has subgroups or a topology request, or if it cannot run
        without the task. The list is empty if the eviction is not allowed.
        """
        gang = int(self._running.gang_of[v])
        task = self._running.tasks[v]
        found = self._gangs[gang]
        all_of = np.flatnonzero(self._running.gang_of == gang).tolist()
        all_of = [u for u in all_of if self._running.tasks[u].key not in self._evicted_keys]
        if v not in all_of:
            return []
        tied = bool(found.sub_groups or found.topology)
        if len(all_of) == 1 or not (
            tied or describe_broken_gang(found, {*self._evicted_keys, task.key})
        ):
            return [v]
        return all_of if may_be_whole and not self._stays[all_of].any() else []


# --- places --------------------------------------------------------------------------------------


class _Places:
    """The nodes to which tasks may move, and the load that each node can still take."""

    def __init__(self, problem: Problem, rules: RuleSet, relief: Relief) -> None:
        self._problem = problem
        self._running = running_tasks(problem)
        active = tuple(a for a in rules.active if a.rule.hard_switch is Switch.PREDICATE)
        self._rules = RuleSet(active)
        self._relief = relief
        self._excess = relief.excess.copy()
        self._space = relief.space.copy()
        self._placing: PlacementState | None = None
        self._copies: dict[str, int] = {}

    def add_copies(self, tasks: I64) -> None:
        """Add a pending copy of each task, for which the greedy pipeline can find a new node."""
        if self._relief.fits and len(tasks):
            gangs_now, gang_of = self._problem.snapshot.gangs, self._running.gang_of
            copies: list[Gang] = []
            for v in tasks.tolist():
                task, gang = self._running.tasks[v], gangs_now[int(gang_of[v])]
                key = task.key + _COPY
                waits = replace(
                    task, key=key, gang=key, status=TaskStatus.PENDING, node="", shared_gpus=()
                )
                copies.append(
                    Gang(
                        key,
                        queue=gang.queue,
                        priority=gang.priority,
                        created_ms=gang.created_ms,
                        phase=GangPhase.INQUEUE,
                        tasks=(waits,),
                        is_implicit=True,
                    )
                )
            gangs = sorted((*gangs_now, *copies), key=lambda g: g.key)
            snapshot = replace(self._problem.snapshot, gangs=tuple(gangs))
            self._placing = PlacementState(compile_problem(snapshot, self._problem), self._rules)
            self._copies = {g.key: i for i, g in enumerate(gangs)}

    def move_task(self, v: int) -> bool:
        """Move a task from an overloaded node to a node that can take the load; record the loads.

        Returns False if the move is not possible.
        """
        source, uses = int(self._running.node_of[v]), self._relief.uses[v]
        if not ((self._excess[source] > 0) & (uses > 0)).any():
            return False
        if self._relief.fits:
            node = self._find_node(v, uses)
        else:
            # Choose the node that can take the most load, if all nodes together can take the load
            # of the task.
            lacks = (uses > np.maximum(self._space, 0).sum(axis=0)).any()
            node = None if lacks else int(np.argmax(self._space.sum(axis=1)))
        if node is None:
            return False
        self._space[node] -= uses
        self._excess[source] -= uses
        return True

    def _find_node(self, v: int, uses: I64) -> int | None:
        placing = self._placing
        if placing is None:
            return None
        open_to = self._relief.is_open & (self._space >= uses).all(axis=1)
        gang = self._copies[self._running.tasks[v].key + _COPY]
        if placing.problem.shape_of[gang] < 0 or not open_to.any():
            return None
        cursor = placing.cursor(gang)
        first = int(placing.problem.task_start[gang])
        here = (placing.table, placing.node_of)
        if not placing.place_tasks(gang, cursor.runs[0], 1, here, NodeView(open_to)):
            return None
        placing.commit()
        return int(placing.node_of[first])
