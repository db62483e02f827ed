"""Group equal victims on a node, and compute how many tasks each victim gang can lose."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.topology import sub_group_of
from optsched.problem.arrays import row_groups
from optsched.solver.preemption.sequential.eviction_problem import Groups, VictimSubGroup, Whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.snapshot import Gang
    from optsched.problem.arrays import I64, Bool
    from optsched.solver.preemption.sequential.eviction_problem import EvictionState
    from optsched.solver.preemption.sequential.running import SessionFacts


class VictimGrouper:
    """Groups running tasks on one node whose evictions are interchangeable."""

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._problem, self._running = facts.problem, facts.running

    def groups(
        self, preemptor: int, tasks: I64, reclaimed: Bool, apart: Iterable[I64 | Bool]
    ) -> Groups:
        """Group running tasks whose evictions are interchangeable for a preemptor.

        Tasks that differ in any array of `apart` (V,) are in different groups.
        """
        running, problem = self._running, self._problem
        gang_of = running.gang_of[tasks]
        single = (self._facts.held[gang_of] == 1) & (gang_of != preemptor)
        members = np.unique(gang_of[~single])
        gang = np.where(single, -1, np.searchsorted(members, gang_of))
        role, part = np.zeros(len(tasks), np.int64), np.full(len(tasks), -1, np.int64)
        for i in np.flatnonzero(~single).tolist():
            task = running.tasks[int(tasks[i])]
            victim = problem.snapshot.gangs[int(gang_of[i])]
            minimums = [r for r, _ in victim.role_minimums]
            role[i] = minimums.index(task.role) + 1 if task.role in minimums else 0
            if victim.sub_groups:
                found = sub_group_of(victim.sub_groups, task.labels)
                part[i] = -1 if found is None else _list_sub_groups(victim).index(found)
        priority = problem.priority[gang_of]
        for i in np.flatnonzero(gang_of == preemptor).tolist():
            priority[i] = running.tasks[int(tasks[i])].priority
        columns = [
            running.node_of[tasks],
            gang,
            running.queue_of[tasks],
            role,
            part,
            priority,
            self._facts.lost[tasks],
            *running.request[tasks].T,
            *self._facts.cover[:, tasks],
            *(each[tasks] for each in apart),
        ]
        of_task, first = row_groups(columns)
        at = tasks[first]
        importance = problem.queues.priority[running.queue_of[at]]
        least = problem.queues.priority.min(initial=0)
        return Groups(
            of_task=of_task,
            tasks=tasks,
            node=running.node_of[at],
            queue=running.queue_of[at],
            priority=priority[first],
            lost=self._facts.lost[at],
            size=self._facts.size[at],
            count=np.bincount(of_task, minlength=len(first)).astype(np.int64),
            gang=gang[first],
            role=role[first],
            part=part[first],
            reclaimed=reclaimed[at],
            returned_last=reclaimed[at] & ~self._facts.returns_first[running.queue_of[at]],
            queue_priority=np.where(reclaimed[at], importance - least, 0),
            request=running.request[at],
        )

    def wholes(self, preemptor: int, groups: Groups, state: EvictionState) -> tuple[Whole, ...]:
        """Return each victim gang with its running and surplus tasks after earlier evictions."""
        problem, running = self._problem, self._running
        found = []
        by_gang = np.argsort(groups.gang, kind="stable")
        num_gangs = int(groups.gang.max(initial=-1)) + 1
        start = np.searchsorted(groups.gang[by_gang], np.arange(num_gangs + 1)).tolist()
        first_task = groups.tasks[np.unique(groups.of_task, return_index=True)[1]]
        have_lost = set(running.gang_of[state.evicted].tolist())
        for j in range(num_gangs):
            mine = by_gang[start[j] : start[j + 1]]
            number = int(running.gang_of[first_task[mine[0]]])
            gang = problem.snapshot.gangs[number]
            evicted = []
            if number in have_lost:
                evicted = np.flatnonzero(state.evicted & (running.gang_of == number)).tolist()
            held = int(self._facts.held[number]) - len(evicted)
            ready = int(problem.num_ready[number]) - len(evicted)
            # A gang that loses all its tasks counts as evicted entirely, even if its minimum is 0.
            most = held if number == preemptor else held - 1
            surplus = min(max(ready - gang.min_member, 0), most)
            by_role = []
            for i, (role, least) in enumerate(gang.role_minimums, start=1):
                runs = [t for t in gang.tasks if t.status.counts_as_ready and t.role == role]
                less = sum(running.tasks[v].role == role for v in evicted)
                here = sum(t.status.holds_resources for t in runs) - less
                by_role.append((i, here, min(max(len(runs) - less - least, 0), here)))
            can_leave = number != preemptor and int(groups.count[mine].sum()) == held
            least = max(gang.min_member, sum(s.size * s.min_groups for s in gang.sub_groups))
            core = max(held - max(ready - least, 0), 1)
            whole = Whole(number, held, surplus, tuple(by_role), can_leave, core=core)
            found.append(
                self._add_sub_groups(whole, groups, mine, evicted) if gang.sub_groups else whole
            )
        return tuple(found)

    def _add_sub_groups(self, whole: Whole, groups: Groups, mine: I64, evicted: list[int]) -> Whole:
        gang = self._problem.snapshot.gangs[whole.gang]
        left = {self._running.tasks[v].key for v in evicted}
        ready: Counter[tuple[int, tuple[str, ...]] | None] = Counter()
        held = ready.copy()
        for task in gang.tasks:
            if task.status.counts_as_ready and task.key not in left:
                name = sub_group_of(gang.sub_groups, task.labels)
                ready[name] += 1
                held[name] += task.status.is_standing
        parts, spare = [], {r: -rule.min_groups for r, rule in enumerate(gang.sub_groups)}
        for p, name in enumerate(_list_sub_groups(gang)):
            policy, there = name[0], held[name]
            size = gang.sub_groups[policy].size
            is_whole = ready[name] >= size
            spare[policy] += is_whole
            surplus = min(ready[name] - size, there) if is_whole else there
            can_leave = int(groups.count[mine[groups.part[mine] == p]].sum()) == there
            core = max(there - surplus, 1)
            parts.append(VictimSubGroup(policy, there, surplus, can_leave, core))
        more = tuple((r, max(n, 0)) for r, n in spare.items() if gang.sub_groups[r].min_groups)
        return replace(whole, parts=tuple(parts), spare_parts=more)


def _list_sub_groups(gang: Gang) -> list[tuple[int, tuple[str, ...]]]:
    """Return the sorted names of the subgroups that contain a gang's tasks."""
    found = {sub_group_of(gang.sub_groups, t.labels) for t in gang.tasks}
    return sorted(name for name in found if name is not None)
