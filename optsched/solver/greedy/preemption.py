"""The actions `preempt` and `reclaim` of policies without a solver.

The actions select and order victims as in Volcano (`pkg/scheduler/actions/preempt`, `reclaim`):
gang by gang, task by task and node by node. In each step, the tiers of plugins vote on the victims.
If the policy enables `gang` or `tdm`, evictions for a gang are undone unless nodes are nominated
for its whole minimum. Pod and gang names break ties; Volcano breaks ties at random. The nodes of
the victims are nominated for the gang.
"""

from __future__ import annotations

import heapq
import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Floors
from optsched.plugins.extension_points import Switch
from optsched.plugins.nodes.node_filters import preferred_nodes
from optsched.problem.relations import TermKind
from optsched.problem.running import (
    running_tasks,
    selected_tasks,
    without_gangs,
    without_terminating,
)
from optsched.solver.greedy.eviction_log import EvictionLog
from optsched.solver.greedy.nodes import NOWHERE
from optsched.solver.greedy.queue_order import ALONE, GangQueue, group_by_queue
from optsched.solver.model.node_masks import find_lacking_shapes
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from optsched.plugins.extension_points import Blocker
    from optsched.problem.arrays import I64, Bool
    from optsched.solver.greedy.placement import PlacementState
    from optsched.solver.greedy.queue_order import GangClasses, GangOrder, Key

_Entry = tuple[int, int]
"""A gang index, and the index of one of its entries (groups of equal tasks)."""

_LOWEST = 2**31
"""Number added to each victim's priority, so that an additional victim never lowers the cost."""


@dataclass(frozen=True)
class _Keys:
    """A cache of the negated sort keys of gangs and queues, and of the sort keys of victims.

    `of_victim` maps each reclaiming queue to the sort keys of running tasks. The cache is valid
    until a placement or eviction changes sort keys.
    """

    of_gang: dict[int, Key] = field(default_factory=dict)
    of_queue: dict[int, Key] = field(default_factory=dict)
    of_victim: dict[int, dict[int, tuple[object, ...]]] = field(default_factory=dict)


@dataclass(eq=False)
class _Rivals:
    """Gang classes whose gangs may evict the same tasks in an action, with one gang per class.

    `lacking` holds the gang classes whose gangs miss their minimum even after all possible
    evictions. `num_commits` is the number of commits when `lacking` was computed; after a further
    commit, `lacking` is computed again.
    """

    gangs: list[int] = field(default_factory=list)
    lacking: set[int] = field(default_factory=set)
    num_commits: int = -1


class GreedyPreemption:
    """Selects and records the evictions of the greedy pipeline.

    Attributes
    ----------
    placing, running, plugins
        The placements and the running tasks of the session, and the plugins of the policy.

    """

    def __init__(
        self,
        placing: PlacementState,
        order: GangOrder,
        gang_classes: GangClasses,
        *,
        weighs: bool = False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """Once `is_late` returns True, no further gang gets an attempt.

        If `weighs` is True, the action `preempt` compares nodes by the cost of their victims.
        """
        self.placing = placing
        self.plugins = placing.plugins
        self._problem = placing.problem
        self.running = running_tasks(placing.problem)
        self._order = order
        self._gang_classes = gang_classes
        self._weighs = weighs
        self.is_late = is_late
        self.log = EvictionLog(placing)
        self._overrides_budgets = False
        self._owed: dict[tuple[int, bytes], Bool] = {}
        self._blockers: dict[int, list[Blocker]] = {}
        self._refused: set[int] = set()
        self._rivals: dict[int, _Rivals] = {}
        self._keys = _Keys()

    @cached_property
    def _atomic(self) -> bool:
        """Whether the evictions for a gang are undone if the gang does not reach its minimum."""
        rules = self.placing.rules
        return any(rules.enables(name, Switch.JOB_PIPELINED) for name in ("gang", "tdm"))

    @cached_property
    def _counted_resources(self) -> list[int]:
        """The indices of all resources except the number of pods."""
        return [i for i, name in enumerate(self._problem.resources) if name != PODS]

    @cached_property
    def _reclaimable(self) -> Bool:
        return np.array([q.reclaimable for q in self._problem.snapshot.queues], np.bool_)

    @cached_property
    def _running_gangs(self) -> set[int]:
        return set(self.running.gang_of.tolist())

    @cached_property
    def _claimable(self) -> I64 | None:
        """The amounts (Q, R) that queues may reclaim, or None if no plugin defines entitlements."""
        return self.placing.rules.entitling(self._problem)[0]

    @cached_property
    def _floors(self) -> Floors:
        return Floors(self._problem, self.placing.rules)

    # --- actions ---------------------------------------------------------------------------------

    def preempt(self, gangs: I64) -> None:
        """Evict lower-priority tasks for starving gangs.

        The first victims are tasks of other gangs in the queue; the next are tasks of the gang
        itself. As in Volcano, no tasks are evicted for gangs with a network topology.
        """
        with self.ignoring_possible_victims():
            self._refused.clear()
            bounds, shape = self._problem.topology.bounds, self._problem.shape_of
            is_bound = np.array([bool(bound.existing) for bound in bounds], np.bool_)
            starving = self.starving(gangs[~is_bound[shape[gangs]]] if is_bound.any() else gangs)
            self._group_rivals(starving, PREEMPT)
            is_futile = self._is_futile(starving, PREEMPT, self.tasks_of_other_gangs)
            line = GangQueue(self._order, [] if is_futile else self._order.sorted(starving))
            while line and not self.is_late():
                gang = line.pop()
                if not self._is_refused(gang, PREEMPT) and self._preempt_for_gang(
                    gang, PREEMPT, self.tasks_of_other_gangs
                ):
                    line.rejoin(gang)
            # Only a gang with running tasks can evict its own tasks.
            exchanging = self._running_gangs.intersection(starving)
            for gang in sorted(exchanging, key=self.gang_key):
                while self.plugins.is_starving(gang) and self._preempt_within_gang(gang):
                    pass

    @contextmanager
    def ignoring_possible_victims(self) -> Iterator[None]:
        """Return a context manager that hides running gangs from filters for future idle capacity.

        Tasks of running gangs may become victims, so these tasks must not exclude nodes.
        """
        self.placing.future.use_masks_of(without_gangs(self._problem))
        self._keys = _Keys()
        try:
            yield
        finally:
            self.placing.future.use_masks_of(without_terminating(self._problem))

    def reclaim(self, gangs: I64, is_overused: Callable[[int], bool]) -> None:
        """Evict tasks of other queues for starving gangs whose queues may reclaim capacity."""
        for _ in self.iterate_attempts():
            self._refused.clear()
            with self.ignoring_possible_victims():
                starving = self.starving(gangs)
                self._group_rivals(starving, RECLAIM)
                if not self._is_futile(starving, RECLAIM, self.tasks_of_other_queues):
                    self.by_queue(
                        starving,
                        is_overused,
                        lambda g: self._preempt_for_gang(g, RECLAIM, self.tasks_of_other_queues),
                        lambda g: self._is_refused(g, RECLAIM),
                    )

    def iterate_attempts(self) -> Iterator[None]:
        """Yield once before each attempt to reclaim.

        Only in the last attempt may reclaims within a guarantee override disruption budgets. No
        disruption budget is overridden if other evictions suffice.
        """
        yield
        if self._floors.yielding.any():
            self._overrides_budgets = True
            yield
            self._overrides_budgets = False

    def by_queue(
        self,
        starving: Sequence[int],
        is_overused: Callable[[int], bool],
        attempt: Callable[[int], bool],
        is_refused: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Call `attempt` for starving gangs in queue order.

        After a successful attempt, the gang returns to the queue order for another attempt. Gangs
        for which `is_refused` returns True are skipped, unless an eviction was committed after the
        sort key of their queue was computed.
        """
        lines = group_by_queue(self._order, self._problem.queue_of.tolist(), starving)
        queues = [(self.queue_order(q), q, self.log.num_commits) for q in lines]
        heapq.heapify(queues)
        while queues and not self.is_late():
            _, queue, read = heapq.heappop(queues)
            line = lines[queue]
            if is_overused(queue) or not line:
                continue
            gang = line.pop()
            while read == self.log.num_commits and line and is_refused(gang):
                gang = line.pop()
            if attempt(gang):
                line.rejoin(gang)
            heapq.heappush(queues, (self.queue_order(queue), queue, self.log.num_commits))

    def _is_futile(self, gangs: Sequence[int], action: str, who: Callable[[int], Bool]) -> bool:
        """Return True if no starving gang can fit, even after all possible evictions of an action.

        One gang of each gang class is checked.
        """
        if not (self._atomic and self._gang_classes.is_known):
            return False
        entry_of_gang = self._gang_classes.representatives(np.array(gangs, np.int64))
        if entry_of_gang is None:
            return False
        known: dict[tuple[int, int, int, tuple[int, ...]], bool] = {}
        reach_of: dict[tuple[int, int | bytes], Bool] = {}
        for gang in entry_of_gang:
            if self._is_lacking(gang, action):
                continue
            cursor = self.placing.cursor(gang)
            if cursor.has_minimum or cursor.failed:
                return False
            classes = tuple(self.placing.class_of(gang, e) for e in self.entries(gang))
            queue, priority = int(self._problem.queue_of[gang]), int(self._problem.priority[gang])
            rival_key = self._rival_key(gang, action)
            if rival_key not in reach_of:
                reach_of[rival_key] = np.atleast_1d(self._reach(gang, action))
            reach = reach_of[rival_key]
            # The request of the entire gang determines which protected tasks the gang may evict.
            shape = int(self._problem.shape_of[gang]) if reach.any() else -1
            kind = (queue, priority, shape, classes)
            if kind not in known:
                reach = who(gang) & reach if reach.any() else np.zeros(len(self.running), np.bool_)
                known[kind] = any(
                    next(self._nodes(c, action, reach, takes_idle=action == PREEMPT), -1) >= 0
                    for c in classes
                )
            if known[kind]:
                return False
        return True

    def _is_refused(self, gang: int, action: str) -> bool:
        """Return whether evictions provably do not help a gang.

        Evictions do not help if a bound shows that too few tasks of the gang fit. Evictions do not
        help either if no victims were found for a gang of the same gang class and no placement has
        changed since.
        """
        if not self._atomic:
            return False
        number = self._gang_classes.class_now(gang)
        return number in self._refused or self._is_lacking(gang, action)

    def _group_rivals(self, starving: Sequence[int], action: str) -> None:
        """Group gang classes by the tasks that gangs of the class may evict in an action."""
        self._rivals.clear()
        classes = self._gang_classes
        chosen = classes.one_per_class(np.array(starving, np.int64)).tolist()
        groups: dict[tuple[int, int | bytes], _Rivals] = {}
        for gang in chosen if chosen and self._can_bound else ():
            rivals = groups.setdefault(self._rival_key(gang, action), _Rivals())
            rivals.gangs.append(gang)
            self._rivals[classes.class_of[gang]] = rivals

    def _rival_key(self, gang: int, action: str) -> tuple[int, int | bytes]:
        """Return a key; gangs with equal keys may evict the same tasks in an action.

        In `preempt`, the returned key depends on the gang's queue and priority. In `reclaim`, the
        returned key depends on the gang's queue and on the resources that the gang requests.
        """
        problem = self._problem
        part: int | bytes = int(problem.priority[gang])
        if action == RECLAIM:
            part = self._requested_by_shape[problem.shape_of[gang]].tobytes()
        return int(problem.queue_of[gang]), part

    @cached_property
    def _can_bound(self) -> bool:
        """Whether the upper bounds on the number of tasks that fit after evictions are valid."""
        is_bounded = self._atomic and self._gang_classes.is_known
        return is_bounded and not bool(self._floors.overridable.any())

    def _is_lacking(self, gang: int, action: str) -> bool:
        """Return whether a gang misses its minimum even if all candidates are evicted.

        Gang classes whose gangs may evict the same tasks are checked together. After a commit, the
        gang classes are checked again. Returns False for gangs with running or placed tasks.
        """
        number = self._gang_classes.class_now(gang)
        rivals = self._rivals.get(number)
        if rivals is None or self.placing.has_failed_entry(gang):
            return False
        if rivals.num_commits != self.log.num_commits:
            rivals.lacking = self._find_lacking_classes(rivals.gangs, action)
            rivals.num_commits = self.log.num_commits
        return number in rivals.lacking

    def _find_lacking_classes(self, gangs: Sequence[int], action: str) -> set[int]:
        problem, running, plugins = self._problem, self.running, self.plugins
        first, chosen = gangs[0], np.array(gangs, np.int64)
        who = self.tasks_of_other_gangs if action == PREEMPT else self.tasks_of_other_queues
        candidates = np.flatnonzero(who(first) & self._reach(first, action))
        idle = self.placing.future.idle.copy()
        if action == RECLAIM:
            with_victims = np.zeros(problem.num_nodes, np.bool_)
            with_victims[running.node_of[candidates]] = True
            idle[~with_victims] = 0
        np.add.at(idle, running.node_of[candidates], running.request[candidates])
        queue = int(problem.queue_of[first])
        most_tasks = partial(plugins.most_reclaimed, queue)
        if action == PREEMPT:
            freed: list[int] = running.request[candidates].sum(axis=0).tolist()
            # Without candidates, no eviction can raise the queue's limit, so the current limit is
            # an upper bound.
            most_tasks = (
                partial(plugins.most_preempted, queue, freed=freed)
                if len(candidates)
                else partial(plugins.max_tasks, queue)
            )
        shapes, which = np.unique(problem.shape_of[chosen], return_inverse=True)
        lacks = find_lacking_shapes(problem, shapes, idle, self._preempting, most_tasks)
        return {self._gang_classes.class_of[g] for g in chosen[lacks[which]].tolist()}

    @cached_property
    def _preempting(self) -> I64:
        """The number of tasks of each entry, shape (E,); 0 if the tasks may not preempt."""
        problem = self._problem
        may_preempt = np.array([s.preempts for s in problem.classes.shapes], np.bool_)
        return np.where(may_preempt[problem.shapes.class_of], problem.shapes.count, 0)

    def starving(self, gangs: I64) -> list[int]:
        """Return the gangs in `gangs` (m,) for which running tasks may be evicted."""
        may_preempt = np.asarray(self._requested_by_shape.any(axis=1))
        chosen = gangs[may_preempt[self._problem.shape_of[gangs]]]
        starve, class_of = self._gang_classes.evaluate(chosen, self.plugins.is_starving)
        found: list[int] = chosen[np.array(starve, np.bool_)[class_of]].tolist()
        return found

    def is_losing_tasks(self, gang: int) -> bool:
        """Return whether the session has evicted tasks of a gang; such a gang gets no nodes."""
        return self.placing.ledger.gang_evicted[gang] > 0

    def gang_key(self, gang: int) -> tuple[Key, int, int]:
        """Return the sort key of a gang, with creation time and index as tie-breakers."""
        return self._order.entry(gang)

    def queue_order(self, queue: int) -> tuple[Key, int, int]:
        """Return the sort key of a queue, with creation time and index as tie-breakers."""
        born = int(self._problem.queues.created_ms[queue])
        return (self.plugins.queue_key(queue), born, queue)

    # --- one gang --------------------------------------------------------------------------------

    def _preempt_for_gang(self, gang: int, action: str, who: Callable[[int], Bool]) -> bool:
        """Evict tasks for a starving gang; return whether nodes are nominated for the gang.

        If the policy enables `gang` or `tdm` and the gang misses its minimum, all evictions are
        undone.
        """
        if self.is_losing_tasks(gang):
            return False
        # A gang with running tasks, or with tasks that found no node, does not represent its gang
        # class.
        is_typical = gang not in self._running_gangs and not self.placing.has_failed_entry(gang)
        number = self._gang_classes.class_now(gang) if self._atomic and is_typical else ALONE
        if number in self._refused:
            return False
        assigned = False
        is_futile = self._lacks_victims(gang, action, who)
        for entry in [] if is_futile else self.entries(gang):
            while self._has_unplaced_task(gang, entry) and self.plugins.is_starving(gang):
                takes_idle = action == PREEMPT
                if not self._evict_for_task(
                    (gang, entry), action, who(gang), takes_idle=takes_idle
                ):
                    break
                assigned = True
        if self._atomic and not self.placing.cursor(gang).has_minimum:
            self.rollback(gang)
            if number != ALONE:
                self._refused.add(number)
            return False
        self._refused.clear()
        return self.commit(gang, action) and assigned

    def _lacks_victims(self, gang: int, action: str, who: Callable[[int], Bool]) -> bool:
        """Return whether a gang misses its minimum even if all candidates are evicted.

        The check uses upper bounds on the tasks that fit on nodes and within queue limits. The
        check assumes that evictions for the gang do not change the candidates. The check returns
        False if protected tasks could become candidates.
        """
        cursor, queue = self.placing.cursor(gang), int(self._problem.queue_of[gang])
        if not self._can_bound or cursor.has_minimum:
            return False
        left = dict.fromkeys(self.entries(gang), 0)
        for entry, number in cursor.runs:
            if entry in left:
                left[entry] += number
        if action == RECLAIM:
            for entry, number in left.items():
                most = self.plugins.most_reclaimed(queue, self.placing.class_of(gang, entry))
                left[entry] = min(number, most)
        if sum(left.values()) < cursor.need:
            return True
        candidates = np.flatnonzero(who(gang) & self._reach(gang, action))
        if action == PREEMPT and not len(candidates):
            # Without candidates, no eviction can raise the queue's limit, so the current limit is
            # an upper bound.
            for entry, number in left.items():
                most = self.plugins.max_tasks(queue, self.placing.class_of(gang, entry))
                left[entry] = min(number, most)
            if sum(left.values()) < cursor.need:
                return True
        if len(candidates) > self._problem.num_nodes:
            return False  # With many candidates, the check takes longer than the victim search.
        node_of, gain = self.running.node_of[candidates], self.running.request[candidates]
        nodes, at = np.unique(node_of, return_inverse=True)
        idle = self.placing.future.idle[nodes]
        np.add.at(idle, at, gain)
        possible = 0
        for entry, number in left.items():
            task_class = self.placing.class_of(gang, entry)
            request = self._problem.classes.request[task_class]
            requested = np.flatnonzero(request)
            fits = np.maximum(
                (idle[:, requested] // request[requested]).min(axis=1, initial=number), 0
            )
            most = int(fits.sum())
            if action == PREEMPT:
                without = self.placing.future.fits(task_class)
                most += int(without.sum()) - int(without[nodes].sum())
            possible += min(number, most)
        return possible < cursor.need

    def _preempt_within_gang(self, gang: int) -> bool:
        """Evict tasks of a gang so that a higher-priority task of the same gang can start.

        Returns False if no node is nominated for an unplaced task of the gang.
        """
        for entry in self.entries(gang):
            own = self.log.evictable & (self.running.gang_of == gang)
            if self._has_unplaced_task(gang, entry) and self._evict_for_task(
                (gang, entry), PREEMPT, own
            ):
                return self.commit(gang, PREEMPT)
        return False

    def entries(self, gang: int) -> list[int]:
        """Return the gang's entries whose tasks may preempt, in the order of their first tasks."""
        shapes, placing = self._problem.classes.shapes, self.placing
        entries = dict.fromkeys(entry for entry, _ in placing.cursor(gang).runs)
        return [e for e in entries if shapes[placing.class_of(gang, e)].preempts]

    def _has_unplaced_task(self, gang: int, entry: int) -> bool:
        return any(left for e, left in self.placing.cursor(gang).runs if e == entry)

    def rollback(self, gang: int) -> None:
        """Undo all evictions and nominations for a gang since the last commit."""
        if self.log.uncommitted or self.placing.mark:
            self._keys = _Keys()
        self.log.undo(len(self.log.uncommitted))
        self.placing.undo(gang)

    def commit(self, gang: int, action: str) -> bool:
        """Commit the evictions for a gang; if a rule is violated, undo them and return False."""
        shapes, done = self._problem.classes.shapes, self.placing.cursor(gang).done
        placed = [self.placing.class_of(gang, e) for e, number in enumerate(done) if number]
        entitled = not self.log.uncommitted or all(shapes[c].preempts for c in placed)
        if not (
            entitled
            and self.plugins.all_rules_hold(gang)
            and self.log.gang_minimums.has_minimum(gang)
        ):
            self.rollback(gang)
            return False
        self.log.commit(gang, action)
        self.placing.commit_nominations(self.placing.future)
        self._keys = _Keys()
        return True

    # --- candidates ------------------------------------------------------------------------------

    def tasks_of_other_gangs(self, gang: int) -> Bool:
        """Return a mask (V,) of the evictable tasks of other gangs in the gang's queue."""
        running = self.running
        same = self.log.evictable & (running.queue_of == self._problem.queue_of[gang])
        others: Bool = same & (running.gang_of != gang)
        return others

    def tasks_of_other_queues(self, gang: int) -> Bool:
        """Return a mask (V,) of the evictable tasks in queues from which the gang may reclaim.

        Within the guarantee of its queue or of an ancestor, a gang may also evict protected tasks.
        The protection is an annotation or, in the last attempt to reclaim, a disruption budget that
        guarantees may override.
        """
        queue, free, floors = self.running.queue_of, self.log.evictable, self._floors
        lends = np.append(self._reclaimable & self._queues_in_debt(gang), False)
        waivable = floors.overridable if self._overrides_budgets else floors.waivable
        if waivable.any():
            waived = waivable & self._find_covered(gang)
            waived[list(self.log.evicted)] = False
            free = free | waived
        others: Bool = free & lends[queue] & (queue != self._problem.queue_of[gang])
        return others

    def _find_covered(self, gang: int) -> Bool:
        """Return a mask (V,) of the tasks that a gang may currently reclaim within a guarantee."""
        shapes, classes = self._problem.classes, self.entries(gang)
        cursor, ledger = self.placing.cursor(gang), self.placing.ledger
        request = shapes.request[[self.placing.class_of(gang, entry) for entry in classes]]
        if not len(request):
            return np.zeros_like(self.log.evictable)
        least = request.min(axis=0) * max(cursor.need, 1)
        held = np.array(ledger.subtree_used, np.int64)
        return self._floors.covered(int(self._problem.queue_of[gang]), request, least, held)

    def is_possible_victim(self, v: int, candidates: Bool) -> bool:
        """Return whether a task is evictable, or is protected only by an overridden budget."""
        overrides = self._overrides_budgets and bool(candidates[v]) and v not in self.log.evicted
        return bool(self.log.evictable[v]) or overrides

    def _queues_in_debt(self, gang: int) -> Bool:
        """Return a mask (Q,) of the queues from which a gang's queue may reclaim.

        The gang's queue, or one of its ancestors, must be entitled to capacity. If only a parent
        queue is entitled, its child queues may not reclaim from each other, because gangs of the
        child queues would then evict each other repeatedly.
        """
        queue = int(self._problem.queue_of[gang])
        requested = self._requested_by_shape[self._problem.shape_of[gang]]
        key = (queue, requested.tobytes())
        if key not in self._owed:
            due, subtree = self._claimable, self._problem.queues.subtree
            owing: Bool = np.ones(len(subtree), np.bool_)
            if due is not None:
                has_claim = subtree[:, queue] & (due[:, requested] > 0).any(axis=1)
                owing = np.logical_not(subtree[np.flatnonzero(has_claim)].all(axis=0))
            self._owed[key] = owing
        return self._owed[key]

    @cached_property
    def _requested_by_shape(self) -> Bool:
        """The resources requested by tasks that may preempt: a mask (S, R) by gang shape."""
        problem, shapes = self._problem, self._problem.shapes
        entries = np.flatnonzero(self._preempting)
        found = np.zeros((len(shapes.shapes), len(problem.resources)), np.bool_)
        requested = problem.classes.request[shapes.class_of[entries]] > 0
        np.logical_or.at(found, shapes.shape_of_entry[entries], requested)
        return found

    # --- one task --------------------------------------------------------------------------------

    def _evict_for_task(
        self, entry_of_gang: _Entry, action: str, candidates: Bool, *, takes_idle: bool = False
    ) -> bool:
        """Evict tasks on one node until a task fits, and nominate the node for the task.

        If `takes_idle` is True, nodes that fit the task without victims come first. Volcano's
        `preempt` also accepts nodes without victims (`ValidateVictims`), but compares nodes only by
        score.
        """
        gang, entry = entry_of_gang
        task_class = self.placing.class_of(gang, entry)
        request = self._problem.classes.request[task_class]
        queue = int(self._problem.queue_of[gang])
        if action == RECLAIM and not self.plugins.may_reclaim(queue, task_class):
            return False
        if not request[self._counted_resources].any():
            # A task that requests no resource may evict only tasks that request no resource.
            requested = self.running.request[:, self._counted_resources]
            candidates = candidates & ~requested.any(axis=1)

        may_go = np.flatnonzero(candidates)
        may_go = may_go[np.argsort(self.running.node_of[may_go], kind="stable")]
        on_node = self.running.node_of[may_go]

        def clears(node: int) -> bool:
            first, end = np.searchsorted(on_node, (node, node + 1)).tolist()
            here = may_go[first:end]
            named = self.sort_victims(here, queue, self._keys)
            victims = self.plugins.find_allowed_victims(action, gang, task_class, named)
            return (takes_idle or len(victims) > 0) and self._evict_on_node(
                entry_of_gang, node, victims
            )

        possible = candidates & self._reach(gang, action)
        nodes: Iterable[int] = self._nodes(task_class, action, possible, takes_idle=takes_idle)
        is_known = self._gang_classes.is_known
        if takes_idle and is_known and self.plugins.max_tasks(queue, task_class) <= 0:
            # The queue's limit allows another task only after evictions, so skip nodes without
            # candidates.
            with_victims = set(self.running.node_of[possible].tolist())
            nodes = (node for node in nodes if node in with_victims)
        if takes_idle and self.placing.table.is_tied(task_class):
            # If other pods exclude a node, only evictions on the node make the node usable.
            allowed = self.plugins.fits(gang, task_class, later=True)
            if allowed is not None:
                has_candidates = set(on_node.tolist())
                nodes = (node for node in nodes if allowed[node] or node in has_candidates)
        if action == PREEMPT and self._weighs:
            nodes = self._by_cost(entry_of_gang, nodes, clears)
        has_room = any(map(clears, nodes))
        if has_room or not (self._atomic and self._gang_classes.is_known):
            self._keys = _Keys()
        return has_room

    def _reach(self, gang: int, action: str) -> Bool | np.bool_:
        """Return a mask (V,) that includes all running tasks that plugins may allow as victims."""
        if not self._gang_classes.is_known:
            return np.True_
        found = self.plugins.find_possible_victims(action, gang)
        return np.True_ if found is None else found

    def _by_cost(
        self, entry_of_gang: _Entry, nodes: Iterable[int], clears: Callable[[int], bool]
    ) -> list[int]:
        """Return the nodes that fit a task after evictions, cheapest first (`preempt.go`).

        Nodes are compared by the highest priority of their victims, then by the sum of the victims'
        priorities, then by the number of victims. Among equal nodes, a node is cheaper if its
        highest-priority victims started later.
        """
        found: list[tuple[tuple[float, ...], int]] = []
        first = preferred_nodes(self._problem)
        for node in nodes:
            before, mark = len(self.log.uncommitted), self.placing.mark
            if not clears(node):
                continue
            victims = [self.running.tasks[v] for v in self.log.uncommitted[before:]]
            highest = max((t.priority for t in victims), default=-math.inf)
            total = sum(t.priority + _LOWEST for t in victims)
            began_ms = min((t.started_ms for t in victims if t.priority == highest), default=0)
            is_later = first is not None and not first[node]
            found.append(((is_later, highest, total, len(victims), -began_ms), node))
            self.placing.undo_to(entry_of_gang[0], mark)
            self.log.undo(len(self.log.uncommitted) - before)
        return [node for _, node in sorted(found)]

    def _nodes(
        self, task_class: int, action: str, candidates: Bool, *, takes_idle: bool
    ) -> Iterator[int]:
        """Yield the nodes that would fit a task if all candidates were evicted.

        `preempt` sorts nodes by score, `reclaim` by index. Nodes of the scheduler's shard come
        first if the policy prefers these nodes. With `takes_idle`, nodes that fit the task without
        victims come before all others.
        """
        problem, running = self._problem, self.running
        may_go = np.flatnonzero(candidates)
        if not takes_idle and not len(may_go):
            return
        later, request = self.placing.future, problem.classes.request[task_class]
        requested = np.flatnonzero(request).tolist()
        has_room = problem.ready & takes_idle
        for r in requested:
            has_room &= later.idle[:, r] >= request[r]
        fits = has_room
        if len(may_go):
            node_of = running.node_of[may_go]
            fits = has_room.copy()
            fits[node_of] = True
            for r in requested:
                gain = np.zeros(problem.num_nodes, np.int64)
                np.add.at(gain, node_of, running.request[may_go, r])
                fits &= later.idle[:, r] + gain >= request[r]
        if not fits.any():
            return
        if action == PREEMPT or not self._gang_classes.is_known:
            score = later.preference_scores(task_class)
            fits = fits & (score > NOWHERE)
        elif (allowed := later.allowed(task_class)) is not None:
            fits = fits & allowed
        order = np.flatnonzero(fits)
        if action == PREEMPT:
            order = order[np.argsort(-score[order], kind="stable")]
        first = preferred_nodes(problem)
        if first is not None:
            order = order[np.argsort(~first[order], kind="stable")]
        if takes_idle:
            order = order[np.argsort(~has_room[order], kind="stable")]
        yield from order.tolist()

    def victim_order(
        self, gang: int, claimer: int, keys: _Keys | None = None
    ) -> tuple[object, ...]:
        """Return a sort key that puts the gangs of victims in reverse queue and gang order.

        `keys` caches sort keys; if `keys` is None, all sort keys are computed.
        """
        keys = keys or _Keys()
        lender = int(self._problem.queue_of[gang])
        if gang not in keys.of_gang:
            keys.of_gang[gang] = tuple(-part for part in self._order.key(gang))
        if lender == claimer:
            return ((), keys.of_gang[gang])
        if lender not in keys.of_queue:
            keys.of_queue[lender] = tuple(-part for part in self.plugins.queue_key(lender))
        first = (*self.plugins.victim_queue_key(lender, claimer), *keys.of_queue[lender])
        return (first, keys.of_gang[gang])

    def sort_victims(self, victims: I64, claimer: int, keys: _Keys | None = None) -> I64:
        """Return the victims sorted in the reverse order of queues, gangs and tasks.

        `keys` caches sort keys; if `keys` is None, all sort keys are computed.
        """
        running = self.running
        known = keys or _Keys()

        ranks = known.of_victim.setdefault(claimer, {})
        chosen: list[int] = victims.tolist()
        for v in chosen:
            if v not in ranks:
                gang, task = int(running.gang_of[v]), running.tasks[v]
                key = (*self.victim_order(gang, claimer, known), task.priority)
                turned = (-task.index, -task.created_ms, task.key)
                ranks[v] = (key, -int(self._problem.created_ms[gang]), -gang, turned)
        return np.array(sorted(chosen, key=ranks.__getitem__), np.int64)

    def _evict_on_node(self, entry_of_gang: _Entry, node: int, victims: I64) -> bool:
        gang, entry = entry_of_gang
        placing, before = self.placing, len(self.log.uncommitted)
        request = self._problem.classes.request[placing.class_of(gang, entry)]
        requested = np.flatnonzero(request)
        freed = self.running.request[victims].sum(axis=0)
        idle = placing.future.idle[node]
        if (idle + freed < request)[requested].any():
            return False
        for v in victims.tolist():
            if self._nominate_one(entry_of_gang, node):
                return self._spare_needless_victims(entry_of_gang, node, before)
            if self.can_evict(v, gang):
                self.log.evict(v)
        if self._nominate_one(entry_of_gang, node):
            return self._spare_needless_victims(entry_of_gang, node, before)
        self.log.undo(len(self.log.uncommitted) - before)
        return False

    def _nominate_one(self, entry_of_gang: _Entry, node: int) -> bool:
        return not self.is_blocked(entry_of_gang, node) and self.placing.nominate_one(
            *entry_of_gang, node
        )

    def is_blocked(self, entry_of_gang: _Entry, node: int) -> bool:
        """Return whether a running task that is not evicted excludes a node for a gang's entry."""
        task_class = self.placing.class_of(*entry_of_gang)
        if task_class not in self._blockers:
            rules = [r for r in self.placing.rules.blocking if r.hard_switch is Switch.PREDICATE]
            problem = self._problem
            self._blockers[task_class] = [b for r in rules for b in r.blockers(problem, task_class)]
        for blocker in self._blockers[task_class]:
            domain = blocker.domain_of[node]
            domains = blocker.domain_of[self.running.node_of[blocker.tasks]]
            if domain >= 0 and not self.log.evicted.issuperset(
                blocker.tasks[domains == domain].tolist()
            ):
                return True
        return False

    def _spare_needless_victims(self, entry_of_gang: _Entry, node: int, before: int) -> bool:
        """Undo evictions on a node that a nominated task does not need; always return True."""
        for v in self.log.uncommitted[before:-1][::-1]:
            self.placing.undo_to(entry_of_gang[0], self.placing.mark - 1)
            self.log.keep_running([v])
            if not self._nominate_one(entry_of_gang, node):
                self.log.evict(v)
                self._nominate_one(entry_of_gang, node)
        return True

    def can_evict(self, v: int, gang: int) -> bool:
        """Return whether a task may be evicted for a gang in addition to the earlier victims."""
        spent = self.log.exhausted_budgets(v)
        if spent and not (
            self._overrides_budgets
            and all(b.yields_to_guarantees for b in spent)
            and self._find_covered(gang)[v]
        ):
            return False
        if terms := self._selecting_terms.get(v):
            # Placed tasks of other gangs may depend on pods that their affinity or spread terms
            # select.
            problem, ledger = self._problem, self.placing.ledger
            placed = (g for g in ledger.touched if g != gang and ledger.gang_placed[g] > 0)
            shapes = {t.shape for g in placed for t in problem.rows[g].pending}
            if any(m in terms for shape in shapes for m in problem.relations.carried_by(shape)):
                return False
        return int(self.running.gang_of[v]) == gang or self.log.gang_minimums.can_spare(v)

    @cached_property
    def _selecting_terms(self) -> dict[int, set[int]]:
        """The indices of the affinity and spread terms that select each running task."""
        found: dict[int, set[int]] = {}
        for m, tasks in enumerate(selected_tasks(self._problem)):
            if self._problem.relations.terms[m].kind is not TermKind.ANTI_AFFINITY:
                for v in tasks.tolist():
                    found.setdefault(v, set()).add(m)
        return found
