"""The order in which actions consider gangs: queues take turns, and a turn serves one gang.

Rules order the gangs of a queue; creation time and name break ties. A gang class is a set of gangs
that the greedy pipeline distinguishes only by age and name. The results of the greedy pipeline for
one gang hold for its gang class until a task of the class is placed or evicted. If a gang failed to
start and no placement has changed since, the pipeline skips the other gangs of its class.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

import numpy as np

from optsched.api.wellknown import RUNNING_ESTIMATE, USER
from optsched.cluster.bounded_cache import SharedObjects
from optsched.plugins.custom.extender import Extender
from optsched.plugins.extension_points import KeyReach
from optsched.problem.arrays import first_positions
from optsched.problem.columns import group_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow
    from optsched.solver.greedy.placement import PlacementState
    from optsched.solver.greedy.plugins import GreedyPlugins

Value = TypeVar("Value")

ALONE: Final = -1
"""The class number of a gang that shares no results with other gangs."""

_OF_ONE_GANG: Final = frozenset({RUNNING_ESTIMATE, USER})
"""Gang annotations that no rule reads to decide which gangs start or which tasks are evicted."""


class _Traits(NamedTuple):
    """The properties of a gang that rules read in addition to the gang shape."""

    namespace: str
    queue: str
    priority: int
    min_member: int
    min_role: tuple[tuple[str, int], ...]
    is_loose: bool
    annotations: tuple[tuple[str, str], ...]


class _Identity:
    """The traits of a gang, compared by identity, which is faster than comparing values."""

    def __init__(self, traits: _Traits) -> None:
        self.traits = traits


IDENTITIES: Final[SharedObjects[_Identity]] = SharedObjects(_Identity)


def number_classes(problem: Problem) -> list[int]:
    """Return the class number (G,) of each gang.

    The class number is `ALONE` for gangs that hold resources or have ready pods, and for gangs that
    the session cannot place.
    """
    columns, shape_of = problem.gang_columns, problem.shape_of
    is_shared = (shape_of >= 0) & (problem.num_ready == 0) & ~columns.flags(_has_claims)
    identity, _ = columns.codes(_identity_of_row, is_shared)
    class_of = np.full(problem.num_gangs, ALONE, np.int64)
    pairs = identity * len(problem.shapes.shapes) + shape_of
    class_of[is_shared], _ = group_values(pairs[is_shared])
    return class_of.tolist()


def _has_claims(row: GangRow) -> bool:
    return bool(row.claimed)


def _identity_of_row(row: GangRow) -> _Identity:
    return row.gang.derived(_identity_of)


def _identity_of(gang: Gang) -> _Identity:
    annotations = (item for item in gang.annotations.items() if item[0] not in _OF_ONE_GANG)
    traits = _Traits(
        namespace=gang.namespace,
        queue=gang.queue,
        priority=gang.priority,
        min_member=gang.min_member,
        min_role=gang.min_role,
        is_loose=gang.is_loose,
        annotations=tuple(sorted(annotations)),
    )
    return IDENTITIES.intern(traits)


class GangClasses:
    """The gang classes of a session, and the gang classes in which a gang failed to start.

    Attributes
    ----------
    class_of
        (G,) class number of each gang at the start of the session; `ALONE` for all gangs if a
        custom plugin or an extender is active.
    few
        Number of gang classes up to which each class is tried and no bounds are computed.

    """

    few: ClassVar[int] = 32

    def __init__(self, placing: PlacementState, rules: RuleSet) -> None:
        problem = placing.problem
        # A custom plugin or an extender may read any field of a gang, so every gang is `ALONE`.
        self.is_known = not any(a.origin or a.rule.name == Extender.name for a in rules.active)
        self.class_of = (
            problem.derived(number_classes) if self.is_known else [ALONE] * problem.num_gangs
        )
        self._numbers = np.array(self.class_of, np.int64)
        self._num_classes = int(self._numbers.max(initial=ALONE)) + 1
        self._placing = placing
        self._touched = placing.ledger.touched
        self._failed: set[int] = set()
        self._failed_at = placing.changes
        self._fails_together = not placing.plugins.reads_labels

    def class_now(self, gang: int) -> int:
        """Return a gang's class number, or `ALONE` if this session placed or evicted its tasks."""
        return ALONE if gang in self._touched else self.class_of[gang]

    def note_failure(self, gang: int) -> None:
        """Record that a gang failed to start and that no node was nominated for it."""
        number = self.class_now(gang)
        if number != ALONE and self._fails_together:
            self._failed_classes().add(number)

    def has_failed(self, gang: int) -> bool:
        """Return whether a gang of the same gang class failed to start at current placements."""
        return self.class_now(gang) in self._failed_classes()

    def pop_hopeful(self, gangs: list[int]) -> int | None:
        """Pop gangs from a list up to the first one whose gang class may start; return this gang.

        Returns None if no such gang exists.
        """
        failed, class_of, touched = self._failed_classes(), self.class_of, self._touched
        while gangs:
            gang = gangs.pop()
            if class_of[gang] not in failed or gang in touched:
                return gang
        return None

    def _failed_classes(self) -> set[int]:
        """Return the gang classes in which a gang failed to start at current placements."""
        if self._failed_at != self._placing.changes:
            self._failed_at = self._placing.changes
            self._failed.clear()
        return self._failed

    def evaluate(self, gangs: I64, function: Callable[[int], Value]) -> tuple[list[Value], I64]:
        """Call `function` for one gang of each gang class among `gangs` (m,).

        Returns one result per gang class, and the index (m,) of each gang's result.
        """
        numbers = self._numbers
        if self._touched:
            numbers = numbers.copy()
            numbers[list(self._touched)] = ALONE
        numbers = numbers[gangs]
        alone = np.flatnonzero(numbers == ALONE)
        # Every gang with the class number `ALONE` gets a different number.
        numbers[alone] = self._num_classes + np.arange(len(alone))
        value_of, first = group_values(numbers)
        return [function(gang) for gang in gangs[first].tolist()], value_of

    def one_per_class(self, gangs: I64) -> I64:
        """Return one of `gangs` (m,) per gang class, except gangs with class number `ALONE`.

        The result is empty if there are few gang classes, because trying each class is then faster
        than computing bounds.
        """
        found = self._first_of_classes(gangs)
        return found if len(found) > self.few else found[:0]

    def representatives(self, gangs: I64) -> list[int] | None:
        """Return one of `gangs` (m,) per class, or None if some gang has class number `ALONE`."""
        is_touched = bool(self._touched) and not self._touched.isdisjoint(gangs.tolist())
        if is_touched or (self._numbers[gangs] == ALONE).any():
            return None
        found: list[int] = self._first_of_classes(gangs).tolist()
        return found

    def _first_of_classes(self, gangs: I64) -> I64:
        """Return the first of `gangs` (m,) in each gang class, sorted by class number."""
        first = first_positions(self._numbers[gangs] - ALONE, self._num_classes - ALONE)[1:]
        found: I64 = gangs[first[first < len(gangs)]]
        return found


Key = tuple[float, ...]


class GangOrder:
    """The sort keys of gangs; gangs of one gang class without placements share a key."""

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
        """Return the key by which a gang was last sorted, or an unsorted gang's current key."""
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
    """The gangs of one queue, sorted by sort key; a removed gang can be added again.

    `gangs` must be sorted. The sort key of a gang is computed when the gang is added.
    """

    def __init__(self, order: GangOrder, gangs: Sequence[int]) -> None:
        self._order = order
        self._rest = list(gangs[::-1])  # The list is reversed: the next gang is last.
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
        """Remove gangs up to the first one whose gang class may start, and return this gang.

        Returns None if a gang of every gang class has failed to start.
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
    """The queues ordered by sort key, each with its sorted gangs.

    The sort key of a gang is computed when the gang is added. The sort key of a queue is computed
    after each turn of the queue. The sort keys stay up to date if each key depends only on tasks of
    its own gang or queue. If the sort keys of queues depend on tasks of other queues (`reach`), the
    sort keys that may have changed are computed again before each turn.
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
        """Replace all queued gangs with `gangs`, sorted within each queue."""
        self._line.update(group_by_queue(self._order, self._queue_of, list(gangs)))
        self._queues = [self._entry(queue) for queue in self._line]
        heapq.heapify(self._queues)

    def _entry(self, queue: int) -> tuple[Key, int, int]:
        return (self._queue_key(queue), self._queue_born[queue], queue)

    def iterate_gangs(
        self, is_closed: Callable[[int], bool], classes: GangClasses | None = None
    ) -> Iterator[int]:
        """Yield one gang per turn from the queue with the smallest sort key; skip closed queues.

        Before the next turn, the caller may add the gang again with `rejoin`. A gang is skipped if
        a gang of its class has failed to start (`classes`). Skipping a gang changes no sort key, so
        the queue keeps its turn.
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
