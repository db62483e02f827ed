"""The actions `gangpreempt` and `gangreclaim` of policies without a solver.

As in Volcano (`pkg/scheduler/actions/gangpreempt`, `gangreclaim`), the actions search for a network
domain in which victims release enough capacity for a gang's minimum. The actions evict surplus
tasks of gangs first, and entire gangs last.

Three rules differ from Volcano: a gang that loses tasks keeps its minimum or is evicted entirely;
victims whose eviction turns out unnecessary keep running; nominations stay valid in later sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.eviction.entitled import GANG_PREEMPT, GANG_RECLAIM
from optsched.plugins.eviction.moves import describe_broken_gang

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.solver.greedy.preemption import GreedyPreemption
    from optsched.solver.greedy.topology import TopologyPlacement


@dataclass(frozen=True, slots=True)
class GangPreemptionOptions:
    """Options of the actions `gangpreempt` and `gangreclaim`.

    Attributes
    ----------
    max_domains
        Maximum number of network domains tried for a gang.
    allow_whole
        Whether entire gangs may be evicted.

    """

    max_domains: int = 8
    allow_whole: bool = True


class GangPreemption:
    """Evicts running tasks for starving gangs, one gang at a time.

    The nodes of the evicted tasks are nominated for tasks of the starving gang.
    """

    def __init__(
        self, evicting: GreedyPreemption, domains: TopologyPlacement, rules: RuleSet
    ) -> None:
        self._evicting = evicting
        self._domains = domains
        self._rules = rules
        self._placing = evicting.placing
        self._problem = evicting.placing.problem
        self._running = evicting.running

    def preempt(self, gangs: I64, how: GangPreemptionOptions) -> None:
        """Evict tasks of lower-priority gangs for starving gangs of the same queue."""
        priority = self._problem.priority
        for gang in sorted(self._evicting.starving(gangs), key=self._evicting.gang_key):
            if self._evicting.is_late():
                return
            while self._preempt_for_gang(
                gang,
                GANG_PREEMPT,
                lambda g: (
                    (priority[self._running.gang_of] < priority[g])
                    & self._evicting.tasks_of_other_gangs(g)
                ),
                how,
            ):
                pass

    def reclaim(
        self, gangs: I64, is_overused: Callable[[int], bool], how: GangPreemptionOptions
    ) -> None:
        """Evict tasks of other queues for starving gangs whose queues may reclaim capacity."""

        def attempt(gang: int) -> bool:
            queue = int(self._problem.queue_of[gang])
            classes = {self._placing.class_of(gang, e) for e in self._evicting.entries(gang)}
            if not all(self._evicting.plugins.may_reclaim(queue, c) for c in classes):
                return False
            return self._preempt_for_gang(
                gang, GANG_RECLAIM, self._evicting.tasks_of_other_queues, how
            )

        for _ in self._evicting.iterate_attempts():
            self._evicting.by_queue(self._evicting.starving(gangs), is_overused, attempt)

    # --- one gang --------------------------------------------------------------------------------

    def _preempt_for_gang(
        self,
        gang: int,
        action: str,
        candidates_of: Callable[[int], Bool],
        how: GangPreemptionOptions,
    ) -> bool:
        """Evict tasks for a gang that starves.

        The evictions are for the gang's minimum, or for one more task once the gang has reached its
        minimum. Returns whether nodes are nominated for the gang.
        """
        evicting = self._evicting
        if evicting.is_losing_tasks(gang) or not (
            evicting.plugins.is_starving(gang) and self._unplaced_runs(gang)
        ):
            return False
        nominate = self._nominate_minimum
        if self._placing.cursor(gang).has_minimum:
            nominate = self._nominate_one_more
            if nominate(gang):
                return evicting.commit(gang, action)
        # If the gang has network domains, all victims are in one domain.
        rule = self._rules.topology
        domains = None if rule is None else rule.find_eviction_domains(self._problem, gang)
        masks = [np.ones(len(self._running), np.bool_)]
        if domains is not None:
            masks = [mask[self._running.node_of] for mask in domains[0]]
        for within in masks[: how.max_domains]:
            if self._evict_until_placed(
                gang, self._units(gang, action, candidates_of(gang) & within, how), nominate
            ):
                return evicting.commit(gang, action)
        return False

    def _unplaced_runs(self, gang: int) -> list[list[int]]:
        """Return [entry, number of unplaced tasks] per sequence of equal tasks that may preempt."""
        entries = self._evicting.entries(gang)
        return [run for run in self._placing.cursor(gang).runs if run[1] and run[0] in entries]

    def _units(
        self, gang: int, action: str, candidates: Bool, how: GangPreemptionOptions
    ) -> Iterator[list[int]]:
        """Yield units of tasks to evict together: first single surplus tasks, then entire gangs."""
        plugins = self._evicting.plugins
        task_class = self._placing.class_of(gang, self._evicting.entries(gang)[0])
        named = plugins.find_allowed_victims(action, gang, task_class, np.flatnonzero(candidates))
        queue = int(self._problem.queue_of[gang])
        order = self._evicting.sort_victims(named, queue).tolist()
        for v in order:
            if (
                self._evicting.is_possible_victim(v, candidates)
                and self._is_spare(v)
                and self._evicting.can_evict(v, gang)
            ):
                yield [v]
        if not how.allow_whole:
            return
        requested = self._requested_resources(gang)
        wholes: list[tuple[tuple[object, ...], list[int]]] = []
        for owner in dict.fromkeys(self._running.gang_of[order].tolist()):
            mine = np.flatnonzero(self._running.gang_of == owner).tolist()
            rest = [v for v in mine if v not in self._evicting.log.evicted]
            # Plugins may reject one task of the gang: as in `reclaim`, the last victim may exceed
            # the amount that the lending queue must give back.
            if not rest or len(set(rest).difference(order)) > 1:
                continue
            if all(self._evicting.is_possible_victim(v, candidates) for v in rest):
                # Prefer victim gangs whose candidates hold a large fraction of the victim gang's
                # usage of the requested resources.
                held = self._running.request[rest][:, requested]
                useful = float(held[candidates[rest]].sum()) / max(float(held.sum()), 1.0)
                born = int(self._problem.created_ms[owner])
                rank = (self._evicting.victim_order(owner, queue), -useful, -born, -owner)
                wholes.append((rank, rest))
        for _, unit in sorted(wholes, key=itemgetter(0)):
            yield unit

    def _is_spare(self, v: int) -> bool:
        """Return whether a running task may be evicted while the rest of the gang keeps running.

        A gang of more than one task must keep its minimum.
        """
        number = int(self._running.gang_of[v])
        found = self._problem.snapshot.gangs[number]
        victims = {self._running.tasks[u].key for u in (v, *self._evicted_tasks(number))}
        if len(found.tasks) == 1:
            return True
        ends = not any(t.status.holds_resources and t.key not in victims for t in found.tasks)
        return not (ends or found.sub_groups or describe_broken_gang(found, victims))

    def _evicted_tasks(self, gang: int) -> list[int]:
        mine = np.flatnonzero(self._running.gang_of == gang).tolist()
        return [v for v in mine if v in self._evicting.log.evicted]

    def _requested_resources(self, gang: int) -> I64:
        classes = [self._placing.class_of(gang, e) for e in self._evicting.entries(gang)]
        found: I64 = np.flatnonzero(self._problem.classes.request[classes].sum(axis=0))
        return found

    def _evict_until_placed(
        self, gang: int, units: Iterator[list[int]], nominate: Callable[[int], bool]
    ) -> bool:
        """Evict one unit of tasks after another until the gang fits; return whether the gang fits.

        If the gang fits, unnecessary evictions are undone. If the gang does not fit, all evictions
        are undone.
        """
        evicting = self._evicting
        victims: list[list[int]] = []
        for unit in units:
            before = len(evicting.log.uncommitted)
            for v in unit:
                if not evicting.can_evict(v, gang):
                    evicting.log.undo(len(evicting.log.uncommitted) - before)
                    break
                evicting.log.evict(v)
            else:
                victims.append(unit)
                if self._may_fit(gang) and nominate(gang):
                    self._spare_needless_victims(gang, victims, nominate)
                    return True
        evicting.rollback(gang)
        return False

    def _may_fit(self, gang: int) -> bool:
        """Return whether the cluster's total future idle capacity covers a gang's minimum."""
        requested, cursor = self._requested_resources(gang), self._placing.cursor(gang)
        left, need = cursor.need, np.zeros(len(self._problem.resources), np.int64)
        for entry, number in cursor.runs:
            taken = min(left, number)
            need += taken * self._problem.classes.request[self._placing.class_of(gang, entry)]
            left -= taken
        idle = np.maximum(self._placing.future.idle[:, requested], 0).sum(axis=0)
        return bool((idle >= need[requested]).all())

    def _nominate_minimum(self, gang: int) -> bool:
        """Nominate nodes for a gang's minimum; return whether the whole minimum fits."""
        placing = self._placing
        placing.undo(gang)
        if self._domains.is_guided(gang):
            return self._domains.nominate(gang)
        placing.start(gang)
        placing.nominate_rest(gang, placing.future)
        if placing.cursor(gang).has_minimum and self._evicting.plugins.all_rules_hold(gang):
            return True
        placing.undo(gang)
        return False

    def _nominate_one_more(self, gang: int) -> bool:
        """Nominate a node for one more task of a gang that has reached its minimum.

        No node is nominated for a gang with network domains or subgroups: only other actions add
        tasks to such a gang. Returns False and changes nothing if no node fits the task.
        """
        placing = self._placing
        placing.undo(gang)
        placing.cursor(gang).failed.clear()
        where = (placing.future, placing.nominated)
        runs = () if self._domains.is_guided(gang) else self._unplaced_runs(gang)
        grown = any(placing.place_tasks(gang, run, 1, where) for run in runs)
        if grown and self._evicting.plugins.all_rules_hold(gang):
            return True
        placing.undo(gang)
        return False

    def _spare_needless_victims(
        self, gang: int, victims: list[list[int]], nominate: Callable[[int], bool]
    ) -> None:
        """Undo the evictions that the gang does not need, starting with the latest eviction."""
        for unit in reversed(victims[:-1]):
            self._placing.undo(gang)
            self._evicting.log.keep_running(unit)
            owner = int(self._running.gang_of[unit[0]])
            evicted = {self._running.tasks[v].key for v in self._evicted_tasks(owner)}
            is_broken = describe_broken_gang(self._problem.snapshot.gangs[owner], evicted)
            if is_broken or not nominate(gang):
                for v in unit:
                    self._evicting.log.evict(v)
                nominate(gang)
