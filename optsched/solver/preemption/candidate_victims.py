"""Candidate victims of a session: groups of running tasks that some plan may evict.

Running tasks form axis V. `SessionFacts` holds the data that all eviction problems of a session
share, such as protected tasks, lost work and the entitlements of queues.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Floors
from optsched.plugins.eviction.victims import cover_running
from optsched.plugins.shares.queue_limits import kept_amounts, returns_first
from optsched.problem.arrays import row_groups
from optsched.problem.running import running_tasks
from optsched.solver.preemption.sequential.eviction_problem import (
    Groups,
    VictimGang,
    VictimSubGroup,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.topology import SubGroup
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.running import Running
    from optsched.solver.preemption.sequential.eviction_problem import EvictionState

_MS = 1000


class SessionFacts:
    """The running tasks (axis V) of a session, and the deserved shares that restrict evictions.

    Attributes
    ----------
    spared
        (V,) mask of protected tasks, which may be evicted only if `floors` waives their protection.
    lost
        (V,) work lost if each task is evicted, on the logarithmic scale of `lost_steps`.
    size
        (V,) dominant share of the cluster held by each task, in millionths.
    due, kept
        (Q, R) deserved shares of queues, and amounts that lending queues keep; None if no rule
        entitles queues to capacity.
    returns_by_use
        Whether the excess of a lending queue is measured in the resources that the victims use,
        instead of the resources that the reclaimer requests.
    reclaimable, returns_first
        (Q,) masks of the queues that give back capacity, and of the queues that give back capacity
        before others.
    above
        (Q, Q) whether queue a is queue q or one of its ancestors, at element [q, a].
    held
        (G,) number of running tasks of each gang.
    cover
        (B, V) whether each disruption budget protects each task.

    """

    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self.problem = problem
        self.rules = rules
        self.running: Running = running_tasks(problem)
        self.spared = rules.spared(problem)
        self.floors = Floors(problem, rules)
        self.lost = lost_steps(problem)
        self.size = sizes(problem)
        self.due, self.returns_by_use = rules.entitling(problem)
        self.kept = None if self.due is None else kept_amounts(problem, self.due)
        self.returns_first = np.array(returns_first(problem), np.bool_)
        queues, gangs = problem.snapshot.queues, problem.snapshot.gangs
        self.reclaimable = np.array([q.reclaimable for q in queues], np.bool_)
        self.above: Bool = problem.queues.subtree.T
        self.held = np.bincount(self.running.gang_of, minlength=len(gangs)).astype(np.int64)
        self.cover = cover_running(problem)

    def covered(self, tasks: I64) -> I64:
        """Return how many of the given tasks each disruption budget protects, shape (B,)."""
        count: I64 = self.cover[:, tasks].sum(axis=1).astype(np.int64)
        return count

    def counts_of(self, gang: int) -> I64:
        """Return how many pending tasks each entry of a gang contains, shape (E,)."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        counts: I64 = shapes.count[shapes.start[shape] : shapes.start[shape + 1]]
        return counts

    def classes_of(self, gang: int) -> I64:
        """Return the task class (E,) of each entry of a gang."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        classes: I64 = shapes.class_of[shapes.start[shape] : shapes.start[shape + 1]]
        return classes

    def request_of(self, gang: int) -> I64:
        """Return the request of one task per entry of a gang, shape (E, R)."""
        request: I64 = self.problem.classes.request[self.classes_of(gang)]
        return request

    def surely_requested(self, gang: int, *, grows: bool) -> Bool:
        """Return a mask (R,) of the resources that a gang requests, no matter which tasks start.

        At least the gang's minimum starts, or at least one task if `grows` is True.
        """
        shape = self.problem.shapes.shapes[int(self.problem.shape_of[gang])]
        counts, lacks = self.counts_of(gang), self.request_of(gang) == 0
        sure: Bool = counts @ lacks < (1 if grows else max(shape.min_members, 1))
        for role, number in () if grows else shape.need_role:
            mine = np.array([entry.role == role for entry in shape.entries], np.bool_)
            sure |= counts[mine] @ lacks[mine] < number
        return sure

    def entitled(self, gang: int, lenders: I64) -> dict[tuple[int, int], int]:
        """Return the amounts that queues may hold after a gang reclaims from the queues `lenders`.

        The amounts are the deserved shares of requested resources, keyed by (queue, resource). The
        queues are the gang's queue and its ancestors, except ancestors that all lenders share.
        """
        if self.due is None:
            return {}
        queue = int(self.problem.queue_of[gang])
        requested = np.flatnonzero(self.request_of(gang).any(axis=0)).tolist()
        return {
            (a, r): int(self.due[a, r])
            for lender in np.unique(lenders).tolist()
            for a in np.flatnonzero(self.above[queue] & ~self.above[lender]).tolist()
            for r in requested
            if self.due[a, r] > 0
        }

    def sum_held(self, queue: int, resource: int, held: I64) -> int:
        """Return `held` (Q, R) for one resource, summed over a queue and its descendants."""
        below = self.problem.queues.subtree[queue]
        return int(held[below, resource].sum())


def find_minimum_request(problem: Problem, gang: int, *, grows: bool = False) -> I64:
    """Return a lower bound (R,) on the request of a gang's minimum.

    If `grows` is True, the bound holds for one more task of the gang, not for the minimum.
    """
    shapes, number = problem.shapes, int(problem.shape_of[gang])
    shape, entries = shapes.shapes[number], slice(*shapes.start[number : number + 2].tolist())
    request: I64 = problem.classes.request[shapes.class_of[entries]]
    if shape.is_rigid and not grows:
        total: I64 = shapes.count[entries] @ request
        return total
    smallest: I64 = request.min(axis=0) * (1 if grows else max(shape.need, 1))
    return smallest


def sizes(problem: Problem) -> I64:
    """Return each running task's dominant share (V,) of the cluster, in millionths."""
    total = np.maximum(problem.total, 1)
    share: I64 = (running_tasks(problem).request * 1_000_000 // total).max(axis=1, initial=0)
    return share


def lost_steps(problem: Problem) -> I64:
    """Return the base-2 logarithm (V,) of the work lost by evicting each task, rounded up.

    The lost work is the task's dominant share of the cluster in thousandths, times the seconds
    since the task started or last saved its work.
    """
    running = running_tasks(problem)
    now_ms = problem.snapshot.taken_ms
    since = np.array([max(t.started_ms, t.saved_ms) or now_ms for t in running.tasks], np.int64)
    seconds = np.maximum(now_ms - since, 0) // _MS
    lost = seconds * np.maximum(sizes(problem) // 1000, 1)
    steps: I64 = np.ceil(np.log2(lost + 1.0)).astype(np.int64)
    return steps


class Candidates(NamedTuple):
    """Masks of the running tasks that some plan may evict, one mask per reason.

    Attributes
    ----------
    preempted
        (V,) tasks of a lower priority than some pending gang in the same queue.
    exchanged
        (V,) tasks of a lower priority than some pending task of the same gang.
    reclaimed
        (V,) tasks in reclaimable queues, if a gang of another queue is pending.

    """

    preempted: Bool
    exchanged: Bool
    reclaimed: Bool

    @property
    def any_reason(self) -> Bool:
        """A mask (V,) of the tasks that some plan may evict, for any reason."""
        found: Bool = self.preempted | self.exchanged | self.reclaimed
        return found


def find_candidates(
    facts: SessionFacts, reach: frozenset[str], *, waives: bool = True
) -> Candidates:
    """Find all running tasks that some plan may evict by the actions `reach` (preempt, reclaim).

    If `waives` is True, the result includes protected tasks that may be evicted only by reclaims
    within a guarantee. Only a bounding model may include protected tasks, because the candidates do
    not depend on the reclaiming gang.
    """
    problem, running = facts.problem, facts.running
    gangs = problem.open_gangs
    free = ~facts.spared & (running.queue_of >= 0)
    preempted = exchanged = reclaimed = np.zeros(len(running), np.bool_)
    if PREEMPT in reach:
        highest = np.full(len(problem.queues.names) + 1, np.iinfo(np.int64).min)
        np.maximum.at(highest, problem.queue_of[gangs], problem.priority[gangs])
        highest[-1] = np.iinfo(np.int64).min
        preempted = free & (problem.priority[running.gang_of] < highest[running.queue_of])
        highest_of: dict[int, int] = {}
        for task, gang in zip(problem.tasks, problem.gang_of.tolist(), strict=True):
            highest_of[gang] = max(task.priority, highest_of.get(gang, task.priority))
        of_gang = zip(running.tasks, running.gang_of.tolist(), strict=True)
        lower = [task.priority < highest_of.get(gang, task.priority) for task, gang in of_gang]
        exchanged = free & np.array(lower, np.bool_)
    if RECLAIM in reach and facts.due is not None:
        pending = np.zeros(len(problem.queues.names), np.bool_)
        pending[problem.queue_of[gangs]] = True
        another = int(pending.sum()) - pending.astype(np.int64) > 0
        lends = facts.reclaimable & another
        can_go = free | facts.floors.overridable if waives else free
        reclaimed = can_go & np.append(lends, False)[running.queue_of]
    return Candidates(preempted, exchanged, reclaimed)


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
                found = victim.sub_group_of(task)
                part[i] = -1 if found is None else victim.derived(_number_sub_groups)[found]
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

    def wholes(
        self, preemptor: int, groups: Groups, state: EvictionState
    ) -> tuple[VictimGang, ...]:
        """Return the victim gangs, with the task counts that remain after earlier evictions."""
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
            whole = VictimGang(number, held, surplus, tuple(by_role), can_leave, core=core)
            found.append(
                self._add_sub_groups(whole, groups, mine, evicted) if gang.sub_groups else whole
            )
        return tuple(found)

    def _add_sub_groups(
        self, whole: VictimGang, groups: Groups, mine: I64, evicted: list[int]
    ) -> VictimGang:
        gang = self._problem.snapshot.gangs[whole.gang]
        left = {self._running.tasks[v].key for v in evicted}
        ready: Counter[tuple[int, tuple[str, ...]] | None] = Counter()
        held = ready.copy()
        for task in gang.tasks:
            if task.status.counts_as_ready and task.key not in left:
                name = gang.sub_group_of(task)
                ready[name] += 1
                held[name] += task.status.is_standing
        parts, spare = [], {r: -rule.min_groups for r, rule in enumerate(gang.sub_groups)}
        for name, p in gang.derived(_number_sub_groups).items():
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


def _number_sub_groups(gang: Gang) -> dict[SubGroup, int]:
    """Return the subgroups that contain a gang's tasks, in sorted order, and their numbers."""
    found = set(map(gang.sub_group_of, gang.tasks))
    return {name: p for p, name in enumerate(sorted(name for name in found if name is not None))}
