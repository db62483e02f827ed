"""The evictions of a greedy session, with an undo log for the current gang."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Evict
from optsched.plugins.eviction.victims import cover_running
from optsched.plugins.extension_points import Switch
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.snapshot import Budget
    from optsched.problem.arrays import Bool
    from optsched.solver.greedy.placement import PlacementState


class GangMinimums:
    """Counts the placed and evicted tasks of gangs by role, to check the minimums of gangs."""

    def __init__(self, placing: PlacementState) -> None:
        self._placing = placing
        self._problem = placing.problem
        self._running = running_tasks(placing.problem)
        self._counts = placing.rules.enables("gang", Switch.JOB_READY)
        self._num_evicted: dict[int, Counter[str]] = {}

    def record_eviction(self, victim: int, sign: int) -> None:
        """Record the eviction of a running task (`sign` 1), or the rollback of an eviction (-1)."""
        gang, role = int(self._running.gang_of[victim]), self._running.tasks[victim].role
        self._num_evicted.setdefault(gang, Counter())[role] += sign

    def can_spare(self, victim: int) -> bool:
        """Return whether a victim's gang would keep its minimum without the victim."""
        self.record_eviction(victim, 1)
        can = self.has_minimum(int(self._running.gang_of[victim]))
        self.record_eviction(victim, -1)
        return can

    def has_minimum(self, gang: int) -> bool:
        """Return whether a gang still reaches its minimum after the evictions of this session.

        Returns True, without a check, for gangs without placements in this session.
        """
        evicted_by_role = self._num_evicted.get(gang, Counter())
        if not self._counts or not self._placing.ledger.gang_placed[gang]:
            return True
        found = self._problem.snapshot.gangs[gang]
        if found.sub_groups and evicted_by_role.total():
            return False
        left = Counter(t.role for t in found.tasks if t.status.counts_as_ready)
        left.subtract(evicted_by_role)
        if not (found.min_resources and evicted_by_role.total()):
            # A gang with `minResources` that loses a running task has to restart. After a restart,
            # tasks that this session places do not count towards the gang's minimum.
            entries = self._problem.shapes.shapes[int(self._problem.shape_of[gang])].entries
            for entry, number in zip(entries, self._placing.cursor(gang).done, strict=True):
                left[entry.role] += number
        if left.total() < found.min_member:
            return False
        return all(left[role] >= least for role, least in found.role_minimums)


class EvictionLog:
    """The evictions of a session; the evictions for the current gang can still be undone.

    Attributes
    ----------
    num_commits
        Number of gangs for which evictions or nominations have been committed.
    uncommitted
        Indices of the running tasks that are evicted for the current gang, before the commit.
    evicted
        Indices of all running tasks evicted in this session, including `uncommitted`.
    gang_minimums
        Checks whether gangs that this session places keep their minimum.

    """

    def __init__(self, placing: PlacementState) -> None:
        self._placing = placing
        self._running = running_tasks(placing.problem)
        self._budgets = placing.problem.snapshot.budgets
        self._budget_left = np.array([b.allowed for b in self._budgets], np.int64)
        self._cover = cover_running(placing.problem)
        self.gang_minimums = GangMinimums(placing)
        self.committed: list[Evict] = []
        self.num_commits = 0
        self.uncommitted: list[int] = []
        self.evicted: set[int] = set()

    @cached_property
    def _spared(self) -> Bool:
        return self._placing.rules.spared(self._placing.problem)

    @cached_property
    def evictable(self) -> Bool:
        """A mask (V,) of the running tasks that are neither protected nor already evicted."""
        return ~self._spared

    def exhausted_budgets(self, v: int) -> list[Budget]:
        """Return all budgets of a task with several budgets, or its single budget if exhausted."""
        covering = np.flatnonzero(self._cover[:, v])
        if len(covering) == 1:
            covering = covering[self._budget_left[covering] <= 0]
        return [self._budgets[b] for b in covering]

    def evict(self, v: int) -> None:
        """Evict a running task; `undo` and `keep_running` revert the eviction."""
        self.uncommitted.append(v)
        self._record(v, 1)

    def keep_running(self, victims: Iterable[int]) -> None:
        """Undo the evictions of the given victims."""
        for v in victims:
            self.uncommitted.remove(v)
            self._record(v, -1)

    def undo(self, number: int) -> None:
        """Undo the last `number` evictions."""
        for _ in range(number):
            self._record(self.uncommitted.pop(), -1)

    def commit(self, gang: int, action: str) -> None:
        """Commit the evictions that `action` made for `gang` since the last commit."""
        running, key = self._running, self._placing.problem.snapshot.gangs[gang].key
        for v in self.uncommitted:
            task = running.tasks[v]
            self.committed.append(Evict(task.key, task.node, action, key))
            self._placing.add_releasing(int(running.node_of[v]), running.request[v])
        self.uncommitted.clear()
        self.num_commits += 1

    def _record(self, v: int, sign: int) -> None:
        placing, running = self._placing, self._running
        (self.evicted.add if sign > 0 else self.evicted.remove)(v)
        self.evictable[v] = sign < 0 and not self._spared[v]
        placing.plugins.record_eviction(v, sign)
        placing.future.reserve(running.node_of[v : v + 1], -sign * running.request[v])
        placing.ledger.evict(int(running.gang_of[v]), running.request[v].tolist(), sign)
        self.gang_minimums.record_eviction(v, sign)
        self._budget_left[self._cover[:, v]] -= sign
