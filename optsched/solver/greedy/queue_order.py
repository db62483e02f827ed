"""The order in which gangs are considered: the next queue, and the next gang of the queue."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

from optsched.plugins.extension_points import KeyReach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from optsched.problem.problem import Problem
    from optsched.solver.greedy.gang_order import GangOrder, Key


class GangQueue:
    """The gangs of one queue in order of sort keys; removed gangs may be added again.

    The argument `gangs` has to be sorted. The sort key of a gang is computed when the gang is
    added.
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

    def pop_hopeful(self, is_hopeless: Callable[[int], bool]) -> int | None:
        """Remove gangs up to the first gang that is not hopeless, and return the last removed gang.

        Returns None if all gangs are hopeless.
        """
        while self._again:
            if not is_hopeless(gang := self.pop()):
                return gang
        self._head = None
        rest = self._rest
        while rest:
            if not is_hopeless(gang := rest.pop()):
                return gang
        return None

    def rejoin(self, gang: int) -> None:
        """Add a removed gang again, at the position of its present sort key."""
        heapq.heappush(self._again, self._order.entry(gang))


def group_by_queue(
    order: GangOrder, queue_of: Sequence[int], gangs: Sequence[int]
) -> dict[int, GangQueue]:
    """Return the sorted gangs of each queue, by queue index."""
    by_queue: defaultdict[int, list[int]] = defaultdict(list)
    for gang in order.sorted(gangs):
        by_queue[queue_of[gang]].append(gang)
    return {queue: GangQueue(order, mine) for queue, mine in by_queue.items()}


class QueueOrder:
    """The order of queues, with the sorted gangs of each queue.

    The sort key of a gang is computed when the gang is added. The sort key of a queue is computed
    after each turn of the queue. Computing keys at these times is sufficient if a sort key depends
    only on tasks of the same gang or queue. If keys of queues depend on tasks of other queues
    (`reach`), the keys are computed before each turn.
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
        """Replace all gangs by the given gangs, sorted by queue."""
        self._line.update(group_by_queue(self._order, self._queue_of, list(gangs)))
        self._queues = [self._entry(queue) for queue in self._line]
        heapq.heapify(self._queues)

    def _entry(self, queue: int) -> tuple[Key, int, int]:
        return (self._queue_key(queue), self._queue_born[queue], queue)

    def iterate_gangs(
        self, is_closed: Callable[[int], bool], is_hopeless: Callable[[int], bool] | None = None
    ) -> Iterator[int]:
        """Yield gangs turn by turn, and remove closed queues.

        During the turn of a gang, the caller may add the gang again with `rejoin`. Gangs for which
        `is_hopeless` returns True are skipped. Skipping a gang changes no sort key, so the queue
        keeps its turn.
        """
        while self._queues:
            queue = self._pop_queue()
            line = self._line[queue]
            if is_closed(queue):
                continue
            gang = line.pop() if is_hopeless is None else line.pop_hopeful(is_hopeless)
            if gang is not None:
                yield gang
            if line:
                heapq.heappush(self._queues, self._entry(queue))

    def _pop_queue(self) -> int:
        """Remove the next queue from the order, and return its index."""
        if self._reach is KeyReach.ANY:
            self._queues = [self._entry(queue) for _, _, queue in self._queues]
            heapq.heapify(self._queues)
        entry = heapq.heappop(self._queues)
        while self._reach is KeyReach.GROWING and self._queues:
            fresh = self._entry(entry[2])
            if fresh <= self._queues[0]:
                break
            entry = heapq.heapreplace(self._queues, fresh)
        return entry[2]

    def rejoin(self, gang: int) -> None:
        """Add a removed gang to its queue again, at the position of its present sort key."""
        self._line[self._queue_of[gang]].rejoin(gang)

    def is_last_gang(self, gang: int) -> bool:
        """Return whether all queues are empty except for `gang`."""
        return not self._queues and not self._line[self._queue_of[gang]]
