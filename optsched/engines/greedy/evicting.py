"""The actions preempt and reclaim of a policy without a solver.

Who is tried and in which order is Volcano's (`pkg/scheduler/actions/preempt`, `reclaim`): gang by
gang, task by task, node by node, votes of plugins by tiers, all or nothing for a gang. Where
Volcano leaves the order to chance, names end it. What evictions free is promised to the gang.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.decisions import Evict
from optsched.engines.greedy.book import NOWHERE
from optsched.engines.greedy.wholeness import Wholeness
from optsched.problem.running import running_tasks
from optsched.rules.entitled import PREEMPT, RECLAIM
from optsched.rules.faces import Face
from optsched.rules.shards import preferred_nodes
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from optsched.engines.greedy.lines import Key
    from optsched.engines.greedy.placing import Placing
    from optsched.problem.arrays import I64, Bool
    from optsched.rules.ruleset import RuleSet

_Asking = tuple[int, int]
"""A gang and an entry of it."""


class Evicting:
    """Evictions as the pipeline goes along.

    Attributes
    ----------
    evictions
        What has been decided.

    """

    def __init__(self, placing: Placing, rules: RuleSet, gang_key: Callable[[int], Key]) -> None:
        self.evictions: list[Evict] = []
        self._placing = placing
        self._problem = problem = placing.problem
        self._faces = placing.faces
        self._gang_key = gang_key
        self._running = running_tasks(problem)
        self._free: Bool = ~rules.spared(problem)
        self._asking = [i for i, name in enumerate(problem.resources) if name != PODS]
        self._idles = ~self._running.request[:, self._asking].any(axis=1)
        self._reclaimable = np.array([q.reclaimable for q in problem.snapshot.queues], np.bool_)
        self._whole = rules.has("gang", Face.JOB_PIPELINED)
        self._wholeness = Wholeness(placing, rules)
        self._taken: list[int] = []

    # --- actions ---------------------------------------------------------------------------------

    def preempt(self, gangs: Iterable[int]) -> None:
        """Evict less important tasks of the same queue: of other gangs, then of the own gang.

        Gangs that ask something of the network evict nobody, as in Volcano.
        """
        bounds, shape = self._problem.topology.bounds, self._problem.shape_of
        starving = self._starving(g for g in gangs if not bounds[int(shape[g])].all)
        line = [(self._order(g), g) for g in starving]
        heapq.heapify(line)
        while line:
            gang = heapq.heappop(line)[1]
            if self._try(gang, PREEMPT, self._of_others):
                heapq.heappush(line, (self._order(gang), gang))
        for gang in sorted(starving, key=self._order):
            while self._faces.is_starving(gang) and self._try_one(gang, PREEMPT, self._of_its_own):
                pass

    def reclaim(self, gangs: Iterable[int], is_overused: Callable[[int], bool]) -> None:
        """Evict tasks of other queues for gangs of queues that are due more."""
        lines: dict[int, list[tuple[tuple[Key, int, int], int]]] = {}
        for gang in self._starving(gangs):
            queue = int(self._problem.queue_of[gang])
            heapq.heappush(lines.setdefault(queue, []), (self._order(gang), gang))
        queues = [(self._queue_order(q), q) for q in lines]
        heapq.heapify(queues)
        while queues:
            queue = heapq.heappop(queues)[1]
            if is_overused(queue) or not lines[queue]:
                continue
            gang = heapq.heappop(lines[queue])[1]
            if self._try(gang, RECLAIM, self._of_other_queues):
                heapq.heappush(lines[queue], (self._order(gang), gang))
            heapq.heappush(queues, (self._queue_order(queue), queue))

    def _starving(self, gangs: Iterable[int]) -> list[int]:
        return [g for g in gangs if self._faces.is_starving(g) and self._entries(g)]

    def _has_lost(self, gang: int) -> bool:
        """Whether tasks of a gang leave: it gets nothing while they do."""
        return self._placing.ledger.gang_evicted[gang] > 0

    def _order(self, gang: int) -> tuple[Key, int, int]:
        return (self._gang_key(gang), int(self._problem.created_ms[gang]), gang)

    def _queue_order(self, queue: int) -> tuple[Key, int, int]:
        born = int(self._problem.queues.created_ms[queue])
        return (self._faces.queue_key(queue), born, queue)

    # --- one gang --------------------------------------------------------------------------------

    def _try(self, gang: int, action: str, who: Callable[[int], Bool]) -> bool:
        """Make room for tasks of a gang while it starves; all is undone where it stays short."""
        if self._has_lost(gang):
            return False
        seated = False
        for entry in self._entries(gang):
            while self._left(gang, entry) and self._faces.is_starving(gang):
                if not self._make_room((gang, entry), action, who(gang)):
                    break
                seated = True
        if self._whole and not self._placing.cursor(gang).is_ready:
            self._take_back(gang)
            return False
        return self._commit(gang, action) and seated

    def _try_one(self, gang: int, action: str, who: Callable[[int], Bool]) -> bool:
        """The same for one task, whether or not that is enough."""
        for entry in self._entries(gang):
            if self._left(gang, entry) and self._make_room((gang, entry), action, who(gang)):
                return self._commit(gang, action)
        return False

    def _entries(self, gang: int) -> list[int]:
        """Entries for whose tasks others may be evicted, in the order of their first task."""
        shapes, placing = self._problem.classes.shapes, self._placing
        entries = dict.fromkeys(entry for entry, _ in placing.cursor(gang).runs)
        return [e for e in entries if shapes[placing.class_of(gang, e)].preempts]

    def _left(self, gang: int, entry: int) -> bool:
        return any(left for e, left in self._placing.cursor(gang).runs if e == entry)

    def _take_back(self, gang: int) -> None:
        self._give_back(len(self._taken))
        self._placing.undo(gang)

    def _commit(self, gang: int, action: str) -> bool:
        """Evict; False, with all undone, where a rule would not hold then."""
        if not self._faces.holds(gang) or not self._wholeness.holds(gang):
            self._take_back(gang)
            return False
        key = self._problem.snapshot.gangs[gang].key
        for v in self._taken:
            task = self._running.tasks[v]
            self.evictions.append(Evict(task.key, task.node, action, key))
            self._placing.frees(int(self._running.node_of[v]), self._running.request[v])
        self._taken.clear()
        self._placing.hold(self._placing.future)
        return True

    # --- who may go ------------------------------------------------------------------------------

    def _of_others(self, gang: int) -> Bool:
        running = self._running
        same = self._free & (running.queue_of == self._problem.queue_of[gang])
        others: Bool = same & (running.gang_of != gang)
        return others

    def _of_its_own(self, gang: int) -> Bool:
        mine: Bool = self._free & (self._running.gang_of == gang)
        return mine

    def _of_other_queues(self, gang: int) -> Bool:
        queue = self._running.queue_of
        lends = self._free & np.append(self._reclaimable, False)[queue]
        others: Bool = lends & (queue != self._problem.queue_of[gang])
        return others

    # --- one task --------------------------------------------------------------------------------

    def _make_room(self, asking: _Asking, action: str, candidates: Bool) -> bool:
        """Evict on one node until a task fits there, and promise it the room."""
        gang, entry = asking
        task_class = self._placing.class_of(gang, entry)
        request = self._problem.classes.request[task_class]
        queue = int(self._problem.queue_of[gang])
        if action == RECLAIM and not self._faces.may_reclaim(queue, task_class):
            return False
        if not request[self._asking].any():
            candidates = candidates & self._idles
        for node in self._nodes(task_class, action, candidates):
            here = np.flatnonzero(candidates & (self._running.node_of == node))
            here = self._in_order(here, queue)
            votes = self._faces.preemptable if action == PREEMPT else self._faces.reclaimable
            if self._clear(asking, node, votes(gang, task_class, here)):
                return True
        return False

    def _nodes(self, task_class: int, action: str, candidates: Bool) -> Iterator[int]:
        """Nodes where all candidates together would make room: by score, or by name to reclaim.

        Nodes of our shard come first where that is wished for.
        """
        problem, running = self._problem, self._running
        gain = np.zeros_like(problem.used)
        np.add.at(gain, running.node_of[candidates], running.request[candidates])
        later = self._placing.future
        asked = np.flatnonzero(problem.classes.request[task_class])
        room = later.idle[:, asked] + gain[:, asked]
        fits = (room >= problem.classes.request[task_class][asked]).all(axis=1)
        fits &= gain.any(axis=1)
        score = self._placing.book.wishes(task_class)
        order = np.argsort(-score, kind="stable") if action == PREEMPT else np.arange(len(score))
        first = preferred_nodes(problem)
        if first is not None:
            order = order[np.argsort(~first[order], kind="stable")]
        yield from order[fits[order] & (score[order] > NOWHERE)].tolist()

    def _in_order(self, victims: I64, claimer: int) -> I64:
        """The least important first: last in the orders of queues, of gangs and of their tasks."""
        running = self._running

        def rank(v: int) -> tuple[object, ...]:
            gang, task = int(running.gang_of[v]), running.tasks[v]
            lender = int(running.queue_of[v])
            first = self._faces.victim_queue_key(lender, claimer) if lender != claimer else ()
            key = tuple(-part for part in self._gang_key(gang))
            turned = (task.priority, -task.index, -task.created_ms, task.key)
            return (first, key, -int(self._problem.created_ms[gang]), -gang, turned)

        return np.array(sorted(victims.tolist(), key=rank), np.int64)

    def _clear(self, asking: _Asking, node: int, victims: I64) -> bool:
        gang, entry = asking
        placing, before = self._placing, len(self._taken)
        request = self._problem.classes.request[placing.class_of(gang, entry)]
        asked = np.flatnonzero(request)
        freed = self._running.request[victims].sum(axis=0)
        room = placing.future.idle[node]
        if not len(victims) or (room + freed < request)[asked].any():
            return False
        for v in victims.tolist():
            if placing.promise_one(gang, entry, node):
                return True
            if self._running.gang_of[v] == gang or self._wholeness.can_spare(v):
                self._take(v)
        if placing.promise_one(gang, entry, node):
            return True
        self._give_back(len(self._taken) - before)
        return False

    def _take(self, v: int) -> None:
        self._taken.append(v)
        self._count(v, 1)

    def _give_back(self, number: int) -> None:
        """Let the last so many victims stay after all."""
        for _ in range(number):
            self._count(self._taken.pop(), -1)

    def _count(self, v: int, sign: int) -> None:
        running = self._running
        self._free[v] = sign < 0
        self._placing.faces.leaves(v, sign)
        self._placing.future.reserve(running.node_of[v : v + 1], -sign * running.request[v])
        self._placing.ledger.evict(int(running.gang_of[v]), running.request[v].tolist(), sign)
        self._wholeness.leaves(v, sign)
