"""The greedy faces of all rules of a policy, sorted by what they answer."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.plugins.extension_points import Greedy, KeyReach
from optsched.plugins.faces import Face
from optsched.problem.arrays import UNLIMITED
from optsched.problem.later import once_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from optsched.plugins.extension_points import LiveScorer
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

_SWITCH = {
    "queue_key": Face.QUEUE_ORDER,
    "gang_key": Face.JOB_ORDER,
    "is_overused": Face.OVERUSED,
    "room": Face.ALLOCATABLE,
    "may_start": Face.JOB_READY,
    "holds": Face.JOB_READY,
    "enqueue_vote": Face.JOB_ENQUEUED,
    "live_mask": Face.PREDICATE,
    "open_nodes": Face.PREDICATE,
    "may_reclaim": Face.PREEMPTIVE,
    "movable": Face.VICTIM,
    "live_scorer": Face.NODE_ORDER,
    "task_runs": Face.TASK_ORDER,
}


class GreedyPlugins:
    """Asks every rule that has something to say, in the policy's order, and no other."""

    def __init__(self, problem: Problem, rules: RuleSet, ledger: Ledger) -> None:
        opened = [(a, a.rule.open(problem, ledger)) for a in rules.asked]
        self._open = [(a, greedy) for a, greedy in opened if greedy is not None]
        self._queue_keys: list[Callable[[int], tuple[float, ...]]] = self._having("queue_key")
        self._gang_keys: list[Callable[[int], tuple[float, ...]]] = self._having("gang_key")
        self._firsts: list[Callable[[int], bool]] = self._having("comes_first")
        self._overused: list[Callable[[int], bool]] = self._having("is_overused")
        self._rooms: list[Callable[[int, int], int]] = self._having("room")
        self._may_start: list[Callable[[int], bool]] = self._having("may_start")
        self._holds: list[Callable[[int], bool]] = self._having("holds")
        self._masks: list[Callable[[int], Bool | None]] = self._having("live_mask")
        self._ahead = self._looking_ahead(problem, ledger)
        self._later_masks: list[Callable[[int], Bool | None]] = [
            self._ahead[mask.__self__].live_mask if mask.__self__ in self._ahead else mask
            for mask in self._having("later_mask", "live_mask")
        ]
        self._gang_masks: list[Callable[[int, int], Bool | None]] = self._having("open_nodes")
        self._later_gang_masks: list[Callable[[int, int], Bool | None]] = [
            self._ahead[mask.__self__].open_nodes if mask.__self__ in self._ahead else mask
            for mask in self._having("open_nodes")
        ]
        self._leaving: list[Callable[[int, int], None]] = self._having("leaves")
        self._scorers: list[Callable[[int, int], LiveScorer | None]] = self._having("live_scorer")
        self._live: dict[tuple[int, int], list[LiveScorer]] = {}
        self._runs: list[Callable[[int], Sequence[tuple[int, int]] | None]] = self._having(
            "task_runs"
        )
        self._placed: list[Callable[[int, int, I64, I64], None]] = self._having("placed")
        self._filled: list[Callable[[int, int, I64, I64], None]] = self._having("filled")
        self._placed += [
            ahead.placed for ahead in self._ahead.values() if _overrides(ahead, "placed")
        ]
        self._filled += [
            ahead.filled for ahead in self._ahead.values() if _overrides(ahead, "filled")
        ]
        self._promised: list[Callable[[int, I64, I64], None]] = self._having("promised")
        self._enqueued: list[Callable[[int], None]] = self._having("enqueued")
        self._votes = self._tiers("enqueue_vote", Face.JOB_ENQUEUED)
        self._victim_queue_keys: list[Callable[[int, int], tuple[float, ...]]] = self._having(
            "victim_queue_key"
        )
        self._starving = self._tiers("is_starving", Face.JOB_STARVING)
        self._preemptable = self._tiers("preemptable", Face.PREEMPTABLE)
        self._reclaimable = self._tiers("reclaimable", Face.RECLAIMABLE)
        self._gang_preemptable = self._tiers("gang_preemptable", Face.PREEMPTABLE, "preemptable")
        self._gang_reclaimable = self._tiers("gang_reclaimable", Face.RECLAIMABLE, "reclaimable")
        self.orders_by_class = all(
            greedy.orders_by_class
            for active, greedy in self._open
            if _overrides(greedy, "gang_key") and Face.JOB_ORDER in active.faces
        )
        self.reads_labels = any(greedy.reads_labels for _, greedy in self._open)
        self._movable: list[Callable[[I64], I64]] = self._having("movable")
        self._may_reclaim: list[Callable[[int, int], bool]] = self._having("may_reclaim")

    def _having(self, method: str, other: str = "") -> list[Any]:
        """The bound methods of rules that override one, or another, and have it switched on."""
        asked = other or method
        switch = _SWITCH.get(asked)
        return [
            getattr(greedy, method)
            for active, greedy in self._open
            if getattr(type(greedy), asked, None) is not getattr(Greedy, asked, None)
            and (switch is None or switch in active.faces)
        ]

    def _looking_ahead(self, problem: Problem, ledger: Ledger) -> dict[Greedy, Greedy]:
        """Faces of rules of users, opened once more as if all who leave had left.

        They stand for `later_mask` where a face has none of its own.
        """
        found: dict[Greedy, Greedy] = {}
        for active, greedy in self._open:
            looks = _overrides(greedy, "live_mask") or _overrides(greedy, "open_nodes")
            if active.origin and looks and not _overrides(greedy, "later_mask"):
                gone = once_gone(problem, ())
                ahead = None if gone is problem else active.rule.open(gone, ledger)
                if ahead is not None:
                    found[greedy] = ahead
        return found

    def _tiers(self, method: str, switch: Face, other: str = "") -> list[list[Any]]:
        """The methods of rules that have one, or another, and are switched on, tier by tier."""
        voting = [
            (active.tier, getattr(greedy, name))
            for active, greedy in self._open
            if switch in active.faces and (name := _overridden(greedy, method, other))
        ]
        return [[vote for _, vote in votes] for _, votes in groupby(voting, key=lambda v: v[0])]

    def is_starving(self, gang: int) -> bool:
        """Whether others may be evicted for a gang: the first tier with an opinion decides."""
        return bool(self._starving) and all(asks(gang) for asks in self._starving[0])

    def victim_queue_key(self, queue: int, claimer: int) -> tuple[float, ...]:
        """Order of queues that give back, as rules say; their own order, turned, comes next."""
        return tuple(part for key in self._victim_queue_keys for part in key(queue, claimer))

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        """Whether every rule lets a queue claim back room for a task."""
        return all(asks(queue, task_class) for asks in self._may_reclaim)

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Which running tasks may go for a more important gang of their queue."""
        return _first_answer(self._preemptable, gang, task_class, victims)

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Which running tasks may go for a gang of another queue."""
        return _first_answer(self._reclaimable, gang, task_class, victims)

    def preempt_reach(self, gang: int) -> Bool | None:
        """(V,) running tasks that `preemptable` may name for a gang now; None for all."""
        return _reach(self._preemptable, "preempt_reach", gang)

    def reclaim_reach(self, gang: int) -> Bool | None:
        """(V,) running tasks that `reclaimable` may name for a gang now; None for all."""
        return _reach(self._reclaimable, "reclaim_reach", gang)

    def gang_preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """The same as `preemptable` where room is made for a whole gang."""
        return _first_answer(self._gang_preemptable, gang, task_class, victims)

    def gang_reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """The same as `reclaimable` where room is made for a whole gang."""
        return _first_answer(self._gang_reclaimable, gang, task_class, victims)

    def movable(self, victims: I64) -> I64:
        """Which running tasks every rule lets be moved."""
        for asks in self._movable:
            victims = asks(victims)
        return victims

    @property
    def queue_key_reach(self) -> KeyReach:
        """How far the keys of queues look."""
        reaches = [
            greedy.queue_key_reach for a, greedy in self._open if Face.QUEUE_ORDER in a.faces
        ]
        return max(reaches, default=KeyReach.OWN)

    def queue_key(self, queue: int) -> tuple[float, ...]:
        """Order of queues, smallest first."""
        return tuple(part for key in self._queue_keys for part in key(queue))

    def gang_key(self, gang: int) -> tuple[float, ...]:
        """Order of the gangs of a queue, smallest first."""
        return tuple(part for key in self._gang_keys for part in key(gang))

    def waves(self, gangs: Iterable[int]) -> Iterator[list[int]]:
        """Gangs that are served before all others, then the others."""
        rest = list(gangs)
        first = [gang for asks in self._firsts for gang in filter(asks, rest)]
        if first:
            leads = set(first)
            first = [gang for gang in rest if gang in leads]
            rest = [gang for gang in rest if gang not in leads]
        yield from (wave for wave in (first, rest) if wave)

    def is_overused(self, queue: int) -> bool:
        """Whether any rule says that a queue gets nothing more."""
        return any(asks(queue) for asks in self._overused)

    def max_tasks(self, queue: int, task_class: int) -> int:
        """Tasks of a class that every rule still allows a queue."""
        least = int(UNLIMITED)
        for room in self._rooms:
            least = min(least, room(queue, task_class))
        return least

    def may_start(self, gang: int) -> bool:
        """Whether every rule finds it worth trying to start a gang."""
        return all(asks(gang) for asks in self._may_start)

    def all_rules_hold(self, gang: int) -> bool:
        """Whether every rule holds with what has been placed for a gang."""
        return all(asks(gang) for asks in self._holds)

    def live_mask(self, task_class: int) -> Bool | None:
        """(N,) nodes that a class may use as things stand; None when that excludes none."""
        return _intersect_masks(mask(task_class) for mask in self._masks)

    def later_mask(self, task_class: int) -> Bool | None:
        """(N,) the same once everything that is leaving has left."""
        return _intersect_masks(mask(task_class) for mask in self._later_masks)

    def open_nodes(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        """(N,) nodes open to one more task of a gang now, or once all victims have left."""
        allowed = self.later_mask(task_class) if later else self.live_mask(task_class)
        for mask in self._later_gang_masks if later else self._gang_masks:
            nodes = mask(gang, task_class)
            if nodes is not None:
                allowed = nodes if allowed is None else allowed & nodes
        return allowed

    def record_eviction(self, victim: int, sign: int) -> None:
        """Tell every rule that a running task is to leave, or stays after all."""
        for note in self._leaving:
            note(victim, sign)

    def task_runs(self, gang: int) -> Sequence[tuple[int, int]] | None:
        """The order of a gang's tasks as the first rule with an opinion says."""
        found = (runs(gang) for runs in self._runs)
        return next((runs for runs in found if runs is not None), None)

    def live_scorers(self, gang: int, entry: int) -> list[LiveScorer]:
        """What scores nodes for an entry of a gang as things stand."""
        if not self._scorers:
            return []
        if (gang, entry) not in self._live:
            found = (scorer(gang, entry) for scorer in self._scorers)
            self._live[gang, entry] = [scorer for scorer in found if scorer is not None]
        return self._live[gang, entry]

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """Tell every rule of tasks placed on nodes."""
        for note in self._placed:
            note(gang, task_class, nodes, counts)

    def record_tasks(self, gang: int, entry: int, nodes: I64, counts: I64) -> None:
        """Tell every rule of whose tasks they are."""
        for note in self._filled:
            note(gang, entry, nodes, counts)

    def record_nomination(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Tell every rule that tasks placed before are promised room only."""
        for note in self._promised:
            note(task_class, nodes, counts)

    def may_enqueue(self, gang: int) -> bool:
        """Volcano's vote: any rejection loses, the first tier with a permission wins."""
        for tier in self._votes:
            votes = [vote(gang) for vote in tier]
            if min(votes) < 0:
                return False
            if max(votes) > 0:
                return True
        return True

    def record_enqueued(self, gang: int) -> None:
        """Tell every rule that a gang has been enqueued."""
        for note in self._enqueued:
            note(gang)


def _overrides(greedy: Greedy, method: str) -> bool:
    return getattr(type(greedy), method) is not getattr(Greedy, method)


def _overridden(greedy: Greedy, *methods: str) -> str:
    """The first of some methods that a rule has of its own."""
    mine, plain = type(greedy), Greedy
    return next((m for m in methods if m and getattr(mine, m) is not getattr(plain, m)), "")


def _intersect_masks(masks: Iterable[Bool | None]) -> Bool | None:
    allowed: Bool | None = None
    for nodes in masks:
        if nodes is not None:
            allowed = nodes if allowed is None else allowed & nodes
    return allowed


def _keep_common(named: I64, found: I64) -> I64:
    """Victims of both, in the order of the first; sets beat sorting for the few of a node."""
    kept = set(found.tolist())
    return np.array([v for v in named.tolist() if v in kept], np.int64)


def _reach(tiers: list[list[Any]], method: str, gang: int) -> Bool | None:
    """(V,) what the rules of any one tier may all name; None where a tier may name everything."""
    reach: Bool | None = None
    for tier in tiers:
        found = _intersect_masks(getattr(asks.__self__, method)(gang) for asks in tier)
        if found is None:
            return None
        reach = found if reach is None else reach | found
    return reach


def _first_answer(tiers: list[list[Any]], gang: int, task_class: int, victims: I64) -> I64:
    """What all rules of a tier name, from the first tier that names any (`Preemptable`)."""
    for tier in tiers:
        named: I64 | None = None
        for asks in tier:
            found: I64 | None = asks(gang, task_class, victims)
            if found is not None:
                named = found if named is None else _keep_common(named, found)
                if not len(named):
                    break  # what one rule of a tier forbids, no other one of it allows
        if named is not None and len(named):
            return named
    return victims[:0]
