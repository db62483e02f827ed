"""Gangs waiting in line: the best queue comes first, and in it the best gang."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from optsched.rules.base import KeyReach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from optsched.problem.problem import Problem

Key = tuple[float, ...]


class Lines:
    """One line a queue. A key is read when its owner enters the line or the queue comes back.

    That is enough where in one session only its own tasks change a queue's or a gang's key. Keys of
    queues that others' tasks change (`reach`) are read again before a turn is given.
    """

    def __init__(
        self,
        problem: Problem,
        queue_key: Callable[[int], Key],
        gang_key: Callable[[int], Key],
        reach: KeyReach = KeyReach.OWN,
    ) -> None:
        self._reach = reach
        self._queue_key = queue_key
        self._gang_key = gang_key
        self._queue_of: list[int] = problem.queue_of.tolist()
        self._queue_born: list[int] = problem.queues.created_ms.tolist()
        self._gang_born: list[int] = problem.created_ms.tolist()
        self._line: dict[int, list[tuple[Key, int, int]]] = {}
        self._queues: list[tuple[Key, int, int]] = []

    def fill(self, gangs: Iterable[int]) -> None:
        """Let gangs line up."""
        for gang in gangs:
            entry = (self._gang_key(gang), self._gang_born[gang], gang)
            self._line.setdefault(self._queue_of[gang], []).append(entry)
        for line in self._line.values():
            heapq.heapify(line)
        self._queues = [self._entry(queue) for queue in self._line]
        heapq.heapify(self._queues)

    def _entry(self, queue: int) -> tuple[Key, int, int]:
        return (self._queue_key(queue), self._queue_born[queue], queue)

    def turns(self, is_closed: Callable[[int], bool]) -> Iterator[int]:
        """Gangs in the order of their turns; closed queues leave for good.

        While a turn is taken, `rejoin` puts the gang back into its line.
        """
        while self._queues:
            queue = self._next()
            line = self._line[queue]
            if is_closed(queue):
                continue
            yield heapq.heappop(line)[2]
            if line:
                heapq.heappush(self._queues, self._entry(queue))

    def _next(self) -> int:
        """Take out the queue whose turn it is."""
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
        """Line up again."""
        entry = (self._gang_key(gang), self._gang_born[gang], gang)
        heapq.heappush(self._line[self._queue_of[gang]], entry)

    def is_last(self, gang: int) -> bool:
        """Whether nobody else is in any line."""
        return not self._queues and not self._line[self._queue_of[gang]]
