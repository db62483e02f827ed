"""Assign a preemptor to each victim in a solution of the joint model."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Evict
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.tiers import Tiers
    from optsched.solver.preemption.joint.entitlement import ReclaimPair
    from optsched.solver.preemption.joint.model import JointModel


class Preemptors:
    """Matches victims to preemptors: entitled gangs that use the victims' capacity.

    On each node, a preemptor can use the capacity of a further victim only if the preemptor's tasks
    request more than its earlier victims release. If a gang is evicted entirely, its preemptor must
    use the capacity of at least one evicted task. Equal tasks of two gangs may swap nodes, because
    the model does not distinguish such tasks.

    Attributes
    ----------
    node_of
        (T,) node index of each task, after swaps of equal tasks.
    order
        Indices of the gangs that get a node, most important first.

    """

    def __init__(self, joint: JointModel, tiers: Tiers, node_of: I64) -> None:
        problem, gangs = joint.form.problem, joint.form.gangs
        self._problem, self._running = problem, joint.facts.running
        self._before = joint.facts.problem
        self._able = joint.able
        self.node_of = node_of.copy()
        served = np.unique(problem.gang_of[node_of >= 0]).tolist()
        age = problem.created_ms
        self.order: list[int] = sorted(served, key=lambda g: (int(tiers.of[g]), int(age[g]), g))
        self._class_of = np.full(problem.num_gangs, -1, np.int64)
        classes = np.arange(len(gangs.shape_of))
        self._class_of[gangs.members] = np.repeat(classes, gangs.multiplicity)
        self._given: dict[tuple[int, int], I64] = {}

    def list_evictions(
        self, victims: I64, reclaimed: Bool, pairs: Sequence[ReclaimPair]
    ) -> list[Evict]:
        """Return the evictions of all victims that have a preemptor; reclaimed tasks come first.

        A unit is a task, or all tasks of a gang that is evicted entirely. The preemptors of a
        lending queue's largest unit come last. Each of these preemptors evicts tasks of this unit
        after all its other victims.
        """
        running, problem = self._running, self._problem
        tasks, gangs = running.tasks, problem.snapshot.gangs
        found: list[tuple[int, int, str]] = []
        lost, number = np.unique(running.gang_of[victims], return_counts=True)
        # The victim gangs that may have to lose several tasks together, because of minimums or
        # subgroups.
        whole_gangs = {
            g
            for g, leaving in zip(lost.tolist(), number.tolist(), strict=True)
            if gangs[g].role_minimums
            or gangs[g].sub_groups
            or sum(t.status.counts_as_ready for t in gangs[g].tasks) - leaving + 1
            < gangs[g].min_member
        }
        # The gangs that may preempt tasks of each victim gang, most important first.
        preemptors = {
            gang: [
                g
                for g in self.order
                if (self._able is None or self._able.preempt[self._class_of[g]])
                and problem.queue_of[g] == problem.queue_of[gang]
                and problem.priority[g] > problem.priority[gang]
            ]
            for gang in lost.tolist()
        }
        reclaimed = self._preempt_where_used(victims, reclaimed, whole_gangs, preemptors)
        held = np.bincount(running.gang_of, minlength=problem.num_gangs)
        ended = set(lost[number == held[lost]].tolist())
        gangs_of = zip(victims.tolist(), running.gang_of[victims].tolist(), strict=True)
        unit_of = {v: gang for v, gang in gangs_of if gang in ended}
        for pair in pairs:
            mine = victims[reclaimed & (running.queue_of[victims] == pair.lender)]
            reclaimers = [
                g
                for g in self.order
                if pair.kind.classes[self._class_of[g]]
                and (self._able is None or self._able.reclaim[self._class_of[g]])
            ]
            victim_gangs = running.gang_of[mine].tolist()
            named = self._name_preemptors(
                mine, whole_gangs, dict.fromkeys(victim_gangs, reclaimers)
            )
            by_gang = self._with_largest_last(named, unit_of)
            found += [(v, gang, RECLAIM) for v, gang in by_gang]

        preempted = victims[~reclaimed]
        named = self._name_preemptors(preempted, whole_gangs, preemptors)
        found += [(v, named[v], PREEMPT) for v in sorted(named)]
        return [Evict(tasks[v].key, tasks[v].node, how, gangs[g].key) for v, g, how in found]

    def _preempt_where_used(
        self,
        victims: I64,
        reclaimed: Bool,
        whole_gangs: set[int],
        preemptors_of: Mapping[int, Sequence[int]],
    ) -> Bool:
        """Turn some reclaims into preemptions; return a mask (m,) of the victims still reclaimed.

        If a gang is evicted entirely, a preemptor must use the capacity of one of the gang's
        preempted tasks. If no preemptor uses such capacity, a reclaimed task whose capacity a
        preemptor uses is preempted instead.
        """
        kept, lost_of = reclaimed.copy(), self._running.gang_of[victims]
        for lost in sorted(whole_gangs):
            mine = np.flatnonzero((lost_of == lost) & ~reclaimed)
            others = np.flatnonzero((lost_of == lost) & reclaimed)
            if not len(mine) or self._find_user(preemptors_of[lost], victims[mine]) is not None:
                continue
            for i in others.tolist():
                if self._find_user(preemptors_of[lost], victims[[i]]) is not None:
                    kept[i] = False
                    break
        return kept

    def drop_gangs_without_capacity(self, evictions: Sequence[Evict]) -> list[Evict]:
        """Drop gangs that do not fit after the evictions; return the evictions for the kept gangs.

        The most important gangs are kept. Victims of dropped gangs keep running.
        """
        before, number_of = self._before, {t.key: v for v, t in enumerate(self._running.tasks)}
        problem, kept, is_known = self._problem, list(evictions), False
        gang_keys = [gang.key for gang in before.snapshot.gangs]
        while not is_known:
            idle = before.allocatable - before.used + before.releasing
            victims = np.array([number_of[e.task] for e in kept], np.int64)
            np.add.at(idle, self._running.node_of[victims], self._running.request[victims])
            dropped = set()
            for g in self.order:
                first, end = problem.task_start[g : g + 2].tolist()
                tasks = first + np.flatnonzero(self.node_of[first:end] >= 0)
                nodes = self.node_of[tasks]
                request = problem.classes.request[problem.task_class[tasks]]
                np.subtract.at(idle, nodes, request)
                if not ((idle[nodes] >= 0) | (request == 0)).all():
                    np.add.at(idle, nodes, request)
                    dropped.add(gang_keys[g])
            self.order = [g for g in self.order if gang_keys[g] not in dropped]
            is_known = not any(e.preemptor in dropped for e in kept)
            kept = [e for e in kept if e.preemptor not in dropped]
        return kept

    def _with_largest_last(
        self, named: Mapping[int, int], unit_of: Mapping[int, int]
    ) -> list[tuple[int, int]]:
        """Return (victim, preemptor) pairs in eviction order, with the largest unit last.

        A unit is a task, or all tasks of a gang that is evicted entirely.
        """
        request = self._running.request
        sizes: dict[int, I64] = {}
        for v in named:
            unit = unit_of.get(v, -1 - v)
            sizes[unit] = sizes.get(unit, np.zeros_like(request[v])) + request[v]
        keys = {v: unit_of.get(v, -1 - v) for v in named}
        by_size = sorted(named, key=lambda v: (*sizes[keys[v]].tolist(), keys[v], *request[v]))
        last = {named[v] for v in by_size if keys[v] == keys[by_size[-1]]}
        pairs = [(v, named[v]) for v in by_size]
        return sorted(pairs, key=lambda pair: (pair[1] in last, pair[1]))

    def _name_preemptors(
        self, victims: I64, whole_gangs: set[int], preemptors_of: Mapping[int, Sequence[int]]
    ) -> dict[int, int]:
        """Return the preemptor of each victim; the mapping omits victims without a preemptor.

        Victims whose gang is evicted entirely get their preemptors first.
        """
        running, found = self._running, dict[int, int]()
        lost_of = running.gang_of
        for lost in sorted(whole_gangs & set(lost_of[victims].tolist())):
            mine = victims[lost_of[victims] == lost]
            gang = self._find_preemptor(preemptors_of[lost], mine)
            if gang is None:
                continue
            for victim in mine.tolist():
                # Prefer a preemptor that uses the capacity of the victim, because this preemptor
                # needs the eviction.
                user = self._find_user(preemptors_of[lost], np.array([victim]))
                found[victim] = gang if user is None else user
                self._record_capacity_taken(found[victim], victim)
        largest_first = np.argsort(-running.request[victims].sum(axis=1), kind="stable")
        for victim in victims[largest_first].tolist():
            lost = int(lost_of[victim])
            if lost in whole_gangs:
                continue
            gang = self._find_preemptor(preemptors_of[lost], np.array([victim]))
            if gang is not None:
                self._record_capacity_taken(gang, victim)
                found[victim] = gang
        return found

    def _record_capacity_taken(self, gang: int, victim: int) -> None:
        request = self._running.request[victim]
        at = gang, int(self._running.node_of[victim])
        self._given[at] = self._given.get(at, np.zeros_like(request)) + request

    def _find_preemptor(self, preemptors: Sequence[int], victims: I64) -> int | None:
        """Return the first gang that uses capacity of a victim, if necessary after swapping tasks.

        Returns None if no gang uses a victim's capacity.
        """
        gang = self._find_user(preemptors, victims)
        if gang is not None:
            return gang
        for gang in preemptors:
            if self._swap(gang, np.unique(self._running.node_of[victims])):
                return gang
        return None

    def _find_user(self, preemptors: Sequence[int], victims: I64) -> int | None:
        """Return the first gang that uses a victim's capacity on the victim's node, or None.

        The gang must request more on the node than its earlier victims on this node release.
        """
        problem = self._problem
        for gang, victim in product(preemptors, victims.tolist()):
            node = int(self._running.node_of[victim])
            first, end = problem.task_start[gang : gang + 2].tolist()
            mine = first + np.flatnonzero(self.node_of[first:end] == node)
            if not len(mine):
                continue
            requested = problem.classes.request[problem.task_class[mine]].sum(axis=0)
            released = self._given.get((gang, node), np.zeros_like(requested))
            gives = self._running.request[victim] > 0
            gives[problem.index(PODS)] = False
            if (gives & (released < requested)).any():
                return gang
        return None

    def _swap(self, gang: int, nodes: I64) -> bool:
        """Swap a gang's task with an equal task on `nodes`; return whether a swap is possible.

        A task is not swapped if its gang already uses the capacity of a victim on the node of the
        task.
        """
        problem = self._problem
        first, end = problem.task_start[gang : gang + 2].tolist()
        for task in (first + np.flatnonzero(self.node_of[first:end] >= 0)).tolist():
            here = int(self.node_of[task])
            if (gang, here) in self._given or here in nodes:
                continue
            same = problem.task_class == problem.task_class[task]
            for other in np.flatnonzero(same & np.isin(self.node_of, nodes)).tolist():
                at = int(problem.gang_of[other]), int(self.node_of[other])
                if at not in self._given and at[0] != gang:
                    self.node_of[[task, other]] = self.node_of[[other, task]]
                    return True
        return False
