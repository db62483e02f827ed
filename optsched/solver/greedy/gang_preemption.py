"""The actions gangpreempt and gangreclaim of a policy without a solver: room for whole gangs.

As Volcano's (`pkg/scheduler/actions/gangpreempt`, `gangreclaim`) they look for a domain of the
network in which victims free enough for the minimum of a gang, tasks that their gangs can spare
first, then gangs as a whole. Other than there a gang of victims never keeps a part that can not
work, what turns out not to be needed stays, and the room stays promised in later sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.eviction.entitled import GANG_PREEMPT, GANG_RECLAIM
from optsched.plugins.eviction.moves import left_broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.solver.greedy.preemption import Evicting
    from optsched.solver.greedy.topology import Domains


@dataclass(frozen=True, slots=True)
class ByGang:
    """How room is made for whole gangs.

    Attributes
    ----------
    max_domains
        Domains of the network that are tried.
    allow_whole
        Whether gangs may be evicted as a whole.

    """

    max_domains: int = 8
    allow_whole: bool = True


class Bundles:
    """Makes room gang by gang."""

    def __init__(self, evicting: Evicting, domains: Domains, rules: RuleSet) -> None:
        self._evicting = evicting
        self._domains = domains
        self._rules = rules
        self._placing = evicting.placing
        self._problem = evicting.placing.problem
        self._running = evicting.running

    def preempt(self, gangs: Iterable[int], how: ByGang) -> None:
        """Evict gangs of the same queue that are less important."""
        priority = self._problem.priority

        def who(gang: int) -> Bool:
            less: Bool = priority[self._running.gang_of] < priority[gang]
            less &= self._evicting.of_others(gang)
            return less

        for gang in sorted(self._evicting.starving(gangs), key=self._evicting.order):
            if self._evicting.is_late():
                return
            while self._try(gang, GANG_PREEMPT, who, how):
                pass

    def reclaim(
        self, gangs: Iterable[int], is_overused: Callable[[int], bool], how: ByGang
    ) -> None:
        """Evict gangs of other queues for queues that are due more."""

        def attempt(gang: int) -> bool:
            queue = int(self._problem.queue_of[gang])
            classes = {self._placing.class_of(gang, e) for e in self._evicting.entries(gang)}
            if not all(self._evicting.faces.may_reclaim(queue, c) for c in classes):
                return False
            return self._try(gang, GANG_RECLAIM, self._evicting.of_other_queues, how)

        self._evicting.by_queue(self._evicting.starving(gangs), is_overused, attempt)

    # --- one gang --------------------------------------------------------------------------------

    def _try(self, gang: int, action: str, who: Callable[[int], Bool], how: ByGang) -> bool:
        """Make room for the minimum of a gang; for one more task where that is reached."""
        evicting = self._evicting
        if evicting.has_lost(gang) or not (evicting.faces.is_starving(gang) and self._open(gang)):
            return False
        sit = self._sit
        if self._placing.cursor(gang).is_ready:
            sit = self._sit_one_more
            if sit(gang):
                return evicting.commit(gang, action)
        for within in self._fences(gang)[: how.max_domains]:
            if self._clear(gang, self._units(gang, action, who(gang) & within, how), sit):
                return evicting.commit(gang, action)
        return False

    def _open(self, gang: int) -> list[list[int]]:
        """What is left of a gang for which others may be evicted: entry and number."""
        entries = self._evicting.entries(gang)
        return [run for run in self._placing.cursor(gang).runs if run[1] and run[0] in entries]

    def _fences(self, gang: int) -> list[Bool]:
        """(V,) running tasks of each domain in which room may be made."""
        found: list[Bool] = [np.ones(len(self._running), np.bool_)]
        rule = self._rules.topology
        domains = None if rule is None else rule.find_eviction_domains(self._problem, gang)
        if domains is not None:
            found = [mask[self._running.node_of] for mask in domains.masks]
        return found

    def _units(self, gang: int, action: str, candidates: Bool, how: ByGang) -> Iterator[list[int]]:
        """What may go at once, in order: spare tasks one by one, then gangs as a whole."""
        faces = self._evicting.faces
        votes = faces.gang_preemptable if action == GANG_PREEMPT else faces.gang_reclaimable
        entry = self._evicting.entries(gang)[0]
        named = votes(gang, self._placing.class_of(gang, entry), np.flatnonzero(candidates))
        queue = int(self._problem.queue_of[gang])
        order = self._evicting.in_order(named, queue).tolist()
        for v in order:
            if self._evicting.free[v] and self._is_spare(v) and self._evicting.may_take(v, gang):
                yield [v]
        if not how.allow_whole:
            return
        asked = self._asked(gang)
        owners = dict.fromkeys(self._running.gang_of[order].tolist())
        wholes = [w for g in owners if (w := self._whole(g, gang, set(order)))]
        born = self._problem.created_ms

        def rank(whole: tuple[int, list[int]]) -> tuple[object, ...]:
            owner, tasks = whole
            order = self._evicting.victim_order(owner, queue)
            return (order, -self._use(tasks, candidates, asked), -int(born[owner]), -owner)

        for whole in sorted(wholes, key=rank):
            yield whole[1]

    def _is_spare(self, v: int) -> bool:
        """Whether the gang of a task stays whole without it."""
        number = int(self._running.gang_of[v])
        found = self._problem.snapshot.gangs[number]
        gone = {self._running.tasks[u].key for u in (v, *self._gone(number))}
        if len(found.tasks) == 1:
            return True
        ends = not any(t.status.holds_resources and t.key not in gone for t in found.tasks)
        return not (ends or found.sub_groups or left_broken(found, gone))

    def _is_whole(self, unit: list[int]) -> bool:
        """Whether the gang of those that stay after all can work with what is left of it."""
        number = int(self._running.gang_of[unit[0]])
        gone = {self._running.tasks[v].key for v in self._gone(number)}
        return not left_broken(self._problem.snapshot.gangs[number], gone)

    def _gone(self, gang: int) -> list[int]:
        mine = np.flatnonzero(self._running.gang_of == gang).tolist()
        return [v for v in mine if v in self._evicting.left]

    def _whole(self, owner: int, gang: int, named: set[int]) -> tuple[int, list[int]] | None:
        """The tasks of a gang that are left, if all of them may go."""
        mine = np.flatnonzero(self._running.gang_of == owner).tolist()
        rest = [v for v in mine if v not in self._evicting.left]
        may = all(self._evicting.free[v] for v in rest)
        # One task may be more than its queue has to give back, as in reclaim.
        return (owner, rest) if rest and may and len(set(rest) - named) <= 1 else None

    def _use(self, unit: list[int], candidates: Bool, asked: I64) -> float:
        """The part of what a gang holds, of what is asked for, that lies where it is of use."""
        held = self._running.request[unit][:, asked]
        inside = held[candidates[unit]].sum()
        return float(inside) / max(float(held.sum()), 1.0)

    def _asked(self, gang: int) -> I64:
        classes = [self._placing.class_of(gang, e) for e in self._evicting.entries(gang)]
        found: I64 = np.flatnonzero(self._problem.classes.request[classes].sum(axis=0))
        return found

    def _clear(self, gang: int, units: Iterator[list[int]], sit: Callable[[int], bool]) -> bool:
        """Let units go until the gang sits; then let those stay that are not needed."""
        evicting = self._evicting
        gone: list[list[int]] = []
        for unit in units:
            if not self._take(unit, gang):
                continue
            gone.append(unit)
            if self._may_fit(gang) and sit(gang):
                self._let_stay(gang, gone, sit)
                return True
        evicting.take_back(gang)
        return False

    def _take(self, unit: list[int], gang: int) -> bool:
        """Let a unit go, all of it or nobody."""
        before = len(self._evicting.taken)
        for v in unit:
            if not self._evicting.may_take(v, gang):
                self._evicting.give_back(len(self._evicting.taken) - before)
                return False
            self._evicting.take(v)
        return True

    def _may_fit(self, gang: int) -> bool:
        """Whether the sum of what will be free does for the minimum of a gang."""
        asked, need = self._asked(gang), self._least(gang)
        room = np.maximum(self._placing.future.idle[:, asked], 0).sum(axis=0)
        return bool((room >= need[asked]).all())

    def _least(self, gang: int) -> I64:
        """(R,) what the tasks take that a gang can not do without."""
        left, total = (
            self._placing.cursor(gang).need,
            np.zeros(len(self._problem.resources), np.int64),
        )
        for entry, number in self._placing.cursor(gang).runs:
            taken = min(left, number)
            request = self._problem.classes.request[self._placing.class_of(gang, entry)]
            total += taken * request
            left -= taken
        return total

    def _sit(self, gang: int) -> bool:
        """Promise a gang what it needs; nothing stands where that can not be."""
        placing = self._placing
        placing.undo(gang)
        if self._domains.guide(gang):
            return self._domains.promise(gang)
        placing.start(gang)
        placing.wait(gang, placing.future)
        if placing.cursor(gang).is_ready and self._evicting.faces.holds(gang):
            return True
        placing.undo(gang)
        return False

    def _sit_one_more(self, gang: int) -> bool:
        """Promise a gang that has its minimum one more task; nothing stands where that can not be.

        Gangs that stay together in the network, or start group by group, grow by other actions.
        """
        placing = self._placing
        placing.undo(gang)
        placing.cursor(gang).failed.clear()
        where = (placing.future, placing.nominated)
        runs = () if self._domains.guide(gang) else self._open(gang)
        grown = any(placing.place(gang, run, 1, where) for run in runs)
        if grown and self._evicting.faces.holds(gang):
            return True
        placing.undo(gang)
        return False

    def _let_stay(self, gang: int, gone: list[list[int]], sit: Callable[[int], bool]) -> None:
        """Of those that go let stay whom the gang does not need, the most important first."""
        for unit in reversed(gone[:-1]):
            self._placing.undo(gang)
            self._evicting.spare(unit)
            if not self._is_whole(unit) or not sit(gang):
                for v in unit:
                    self._evicting.take(v)
                sit(gang)
