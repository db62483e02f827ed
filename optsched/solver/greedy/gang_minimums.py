"""Check that each gang with placements in the session keeps its minimum despite evictions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from optsched.plugins.switches import Switch
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from optsched.plugins.ruleset import RuleSet
    from optsched.solver.greedy.placement import PlacementState


class GangMinimums:
    """A counter of the placed and evicted tasks of gangs by role."""

    def __init__(self, placing: PlacementState, rules: RuleSet) -> None:
        self._placing = placing
        self._problem = placing.problem
        self._running = running_tasks(placing.problem)
        self._counts = rules.enables("gang", Switch.JOB_READY)
        self._gone: dict[int, Counter[str]] = {}

    def record_eviction(self, victim: int, sign: int) -> None:
        """Record the eviction of a running task (`sign` 1), or undo the record (`sign` -1)."""
        gone = self._gone.setdefault(int(self._running.gang_of[victim]), Counter())
        gone[self._running.tasks[victim].role] += sign

    def can_spare(self, victim: int) -> bool:
        """Return whether a gang keeps its minimum if one more running task is evicted."""
        self.record_eviction(victim, 1)
        can = self.has_minimum(int(self._running.gang_of[victim]))
        self.record_eviction(victim, -1)
        return can

    def has_minimum(self, gang: int) -> bool:
        """Return whether a gang keeps its minimum despite the evictions of this session.

        The result is also True for gangs without placements in this session.
        """
        gone = self._gone.get(gang, Counter())
        if not self._counts or not self._placing.ledger.gang_placed[gang]:
            return True
        found = self._problem.snapshot.gangs[gang]
        if found.sub_groups and gone.total():
            return False
        left = Counter(t.role for t in found.tasks if t.status.counts_as_ready)
        left.subtract(gone)
        if not (found.min_resources and gone.total()):
            # If a gang with `minResources` loses a running task, the gang has to restart. Tasks of
            # a restarting gang that are placed in this session do not count towards the gang's
            # minimum.
            entries = self._problem.shapes.shapes[int(self._problem.shape_of[gang])].entries
            for entry, number in zip(entries, self._placing.cursor(gang).done, strict=True):
                left[entry.role] += number
        if left.total() < found.min_member:
            return False
        return all(left[role] >= least for role, least in found.role_minimums)
