"""The order in which actions consider gangs: the next queue first, then its next gang.

Rules order the gangs of a queue; creation time and name break ties.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import KeyReach
from optsched.solver.greedy.gang_classes import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.solver.greedy.gang_classes import GangClasses
    from optsched.solver.greedy.plugins import GreedyPlugins

Key = tuple[float, ...]


class GangOrder:
    """The sort keys of gangs; gangs of one class without placements share one computed key."""

    def __init__(
        self,
        problem: Problem,
        plugins: GreedyPlugins,
        gang_classes: GangClasses,
        tier_of: I64 | None = None,
    ) -> None:
        """If `tier_of` (G,) is given, gangs are sorted first by tier, then by the rules."""
        self._created_ms = problem.created_ms
        self._born: list[int] = problem.created_ms.tolist()
        self._plugins = plugins
        self._gang_classes = gang_classes
        self._tier_of = tier_of
        self._tier: list[int] | None = None if tier_of is None else tier_of.tolist()
        self._shares = plugins.orders_by_class
        self._known: dict[int, Key] = {}
        self._read: dict[int, tuple[Key, int, int]] = {}

    def key(self, gang: int) -> Key:
        """Return the sort key of a gang; gangs with smaller keys come first."""
        key = self._rule_key(gang)
        return key if self._tier is None else (self._tier[gang], *key)

    def entry(self, gang: int) -> tuple[Key, int, int]:
        """Return a gang's sort key, with creation time and index as tie-breakers."""
        return (self.key(gang), self._born[gang], gang)

    def entry_in_line(self, gang: int) -> tuple[Key, int, int]:
        """Return the sort key by which a gang was last sorted, or else its current sort key."""
        return self._read[gang] if gang in self._read else self.entry(gang)

    def sorted(self, gangs: Sequence[int]) -> list[int]:
        """Return the given gangs, sorted by sort key."""
        if not self._shares:
            entries = sorted(map(self.entry, gangs))
            self._read.update((entry[2], entry) for entry in entries)
            return [gang for _, _, gang in entries]
        chosen = np.array(gangs, np.int64)
        keys, key_of = self._gang_classes.evaluate(chosen, self._rule_key)
        rank = {key: i for i, key in enumerate(sorted(set(keys)))}
        ranks = np.array([rank[key] for key in keys], np.int64)
        columns = [chosen, self._created_ms[chosen], ranks[key_of]]
        if self._tier_of is not None:
            columns.append(self._tier_of[chosen])
        found: list[int] = chosen[np.lexsort(columns)].tolist()
        return found

    def _rule_key(self, gang: int) -> Key:
        if not self._shares:
            return self._plugins.gang_key(gang)
        number = self._gang_classes.class_now(gang)
        if number == ALONE:
            return self._plugins.gang_key(gang)
        if number not in self._known:
            self._known[number] = self._plugins.gang_key(gang)
        return self._known[number]


class GangQueue:
    """The gangs of one queue in the order of their sort keys; a removed gang can be added again.

    `gangs` must be sorted. The sort key of a gang is computed when the gang is added.
    """

    def __init__(self, order: GangOrder, gangs: Sequence[int]) -> None:
        self._order = order
        self._rest = list(gangs[::-1])  # in reverse order, so the next gang is last
        self._again: list[tuple[Key, int, int]] = []
        self._head: tuple[Key, int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._rest or self._again)

    def pop(self) -> int:
        """Remove and return the next gang."""
        if not self._again:
            self._head = None
            return self._rest.pop()
        if self._rest:
            if self._head is None:
                self._head = self._order.entry_in_line(self._rest[-1])
            if self._head < self._again[0]:
                self._head = None
                return self._rest.pop()
        return heapq.heappop(self._again)[2]

    def pop_hopeful(self, classes: GangClasses) -> int | None:
        """Remove gangs until the class of a removed gang has not failed, and return this gang.

        Returns None if the classes of all gangs have failed.
        """
        while self._again:
            if not classes.has_failed(gang := self.pop()):
                return gang
        self._head = None
        return classes.pop_hopeful(self._rest)

    def rejoin(self, gang: int) -> None:
        """Add a removed gang again, at the position of its current sort key."""
        heapq.heappush(self._again, self._order.entry(gang))


def group_by_queue(
    order: GangOrder, queue_of: Sequence[int], gangs: Sequence[int]
) -> dict[int, GangQueue]:
    """Return the sorted gangs of each queue, keyed by queue index."""
    by_queue: defaultdict[int, list[int]] = defaultdict(list)
    for gang in order.sorted(gangs):
        by_queue[queue_of[gang]].append(gang)
    return {queue: GangQueue(order, mine) for queue, mine in by_queue.items()}


class QueueOrder:
    """The order of queues, with the sorted gangs of each queue.

    The sort key of a gang is computed when the gang is added. The sort key of a queue is computed
    after each of its turns. Keys computed at these times are up to date if a sort key depends only
    on tasks of the same gang or queue. If queue keys depend on tasks of other queues (`reach`), the
    keys that may have changed are computed again before each turn.
    """

    def __init__(
        self,
        problem: Problem,
        queue_key: Callable[[int], Key],
        order: GangOrder,
        reach: KeyReach = KeyReach.OWN,
    ) -> None:
        self._reach = reach
        self._queue_key = queue_key
        self._order = order
        self._queue_of: list[int] = problem.queue_of.tolist()
        self._queue_born: list[int] = problem.queues.created_ms.tolist()
        self._line: dict[int, GangQueue] = {}
        self._queues: list[tuple[Key, int, int]] = []

    def fill(self, gangs: Iterable[int]) -> None:
        """Replace the contents by `gangs`, sorted within each queue."""
        self._line.update(group_by_queue(self._order, self._queue_of, list(gangs)))
        self._queues = [self._entry(queue) for queue in self._line]
        heapq.heapify(self._queues)

    def _entry(self, queue: int) -> tuple[Key, int, int]:
        return (self._queue_key(queue), self._queue_born[queue], queue)

    def iterate_gangs(
        self, is_closed: Callable[[int], bool], classes: GangClasses | None = None
    ) -> Iterator[int]:
        """Yield one gang per turn, always from the first queue, and drop closed queues.

        During the turn of a gang, the caller may add the gang again with `rejoin`. Gangs whose
        class in `classes` has failed are skipped. Skipping a gang changes no sort key, so the queue
        keeps its turn.
        """
        while self._queues:
            if self._reach is KeyReach.ANY:
                self._queues = [self._entry(queue) for _, _, queue in self._queues]
                heapq.heapify(self._queues)
            entry = heapq.heappop(self._queues)
            while self._reach is KeyReach.GROWING and self._queues:
                fresh = self._entry(entry[2])
                if fresh <= self._queues[0]:
                    break
                entry = heapq.heapreplace(self._queues, fresh)
            queue = entry[2]
            line = self._line[queue]
            if is_closed(queue):
                continue
            gang = line.pop() if classes is None else line.pop_hopeful(classes)
            if gang is not None:
                yield gang
            if line:
                heapq.heappush(self._queues, self._entry(queue))

    def rejoin(self, gang: int) -> None:
        """Add a removed gang to its queue again, at the position of its current sort key."""
        self._line[self._queue_of[gang]].rejoin(gang)

    def is_last_gang(self, gang: int) -> bool:
        """Return whether no gang other than `gang` is in any queue."""
        return not self._queues and not self._line[self._queue_of[gang]]
