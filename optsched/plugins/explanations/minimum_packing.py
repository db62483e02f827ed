"""Count the pods of a gang's minimum that cannot be packed on nodes.

The items of the packing are the sets of equal pods; the bins are the nodes, grouped in classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optsched.problem.arrays import I64, Bool


MOST_CONFIGURATIONS: Final = 2_000
"""Maximum number of configurations (pods per item on one node) per node class in a search."""

MOST_PARTIAL: Final = 1_500
"""Maximum number of partial packings that an exact search keeps at a time."""

MOST_ROWS: Final = 150_000
"""Maximum number of (partial packing, configuration) pairs in one exact search."""

MOST_STEPS: Final = 2_000
"""Maximum number of steps of all exact searches in a session."""

MOST_ITEMS: Final = 12
"""Maximum number of items in an exact search."""

MOST_PACKED: Final = 256
"""Maximum number of items in a greedy packing."""


@dataclass(eq=False)
class Effort:
    """The step budget that exact searches share.

    Attributes
    ----------
    steps_left
        Number of remaining steps. One step adds one node to every partial packing.

    """

    steps_left: int


class Goal(NamedTuple):
    """The minimum number of pods that a gang must place from the items in the mask `of` (I,)."""

    of: Bool
    least: int


@dataclass(frozen=True, eq=False)
class Packing:
    """A packing problem: the pods of a minimum, and the node classes that may run them.

    Attributes
    ----------
    request, count
        (I, R) request of one pod of each item in base units, and (I,) number of pods per item.
    group
        (I,) task class of each item; nodes treat all items of a class equally.
    whole, roles
        The minimum number of pods, in total and per role. Each item has exactly one role.
    capacity, number
        (K, R) allocatable resources of one node of each class, and (K,) number of nodes of each
        class.
    is_open
        (K, I) True if nodes of a node class may run pods of an item.
    admits
        A function that returns whether rules allow the given numbers of pods per item on a node of
        a class. If the rules reject a set of pods, they must also reject every superset. `admits`
        is None if only resources matter.
    cliques
        (mask, number) pairs; all nodes together can run at most `number` pods of the items in the
        mask (I,).
    effort
        The step budget that exact searches share.

    """

    request: I64
    count: I64
    group: I64
    whole: int
    roles: tuple[Goal, ...]
    capacity: I64
    number: I64
    is_open: Bool
    admits: Callable[[int, tuple[int, ...]], bool] | None = None
    cliques: tuple[tuple[Bool, int], ...] = ()
    effort: Effort = field(default_factory=lambda: Effort(MOST_STEPS))

    def missing(self, packed: I64) -> I64:
        """Return how many pods each packing (P, I) lacks for the minimum, shape (P,)."""
        short = np.maximum(self.whole - packed.sum(axis=1), 0)
        by_role = sum(
            (np.maximum(goal.least - packed[:, goal.of].sum(axis=1), 0) for goal in self.roles),
            np.zeros(len(packed), np.int64),
        )
        lacking: I64 = np.maximum(short, by_role)
        return lacking

    def singles(self) -> I64:
        """Return how many pods (K, I) of each item fit on an otherwise empty node of each class."""
        found = np.where(self.is_open, self.count, 0)
        for i in range(len(self.count)):
            requested = np.flatnonzero(self.request[i])
            if len(requested):
                fits = (self.capacity[:, requested] // self.request[i, requested]).min(axis=1)
                found[:, i] = np.minimum(found[:, i], np.maximum(fits, 0))
        for k, i in np.argwhere(found > 0).tolist() if self.admits is not None else ():
            # If rules reject a number of pods, they also reject every larger number.
            low, high = 0, int(found[k, i])
            while low < high:
                middle = (low + high + 1) // 2
                counts = tuple(middle * (item == i) for item in range(len(self.count)))
                if self.admits is None or self.admits(k, counts):
                    low = middle
                else:
                    high = middle - 1
            found[k, i] = low
        return found

    def lower_bound(self, singles: I64) -> int:
        """Return a lower bound on the number of missing pods, given `singles` (K, I)."""
        each = np.minimum(self.number @ singles, self.count)
        total = 0
        for group in np.unique(self.group).tolist():
            members = self.group == group
            mine = singles[:, members]
            # If all pods of an item fit on a node, pods of other items of the same task class may
            # fit on the node too.
            all_of_it = mine.sum(axis=1, keepdims=True)
            most_of_group = np.where(mine < self.count[members], mine, all_of_it).min(axis=1)
            room = int(self.number @ most_of_group)
            total += min(int(each[members].sum()), room)
        for members, most in self.cliques:
            outside = int(each[~members].sum())
            total = min(total, min(int(each[members].sum()), most) + outside)
        by_item = max(
            self.whole - total,
            sum(max(0, goal.least - int(each[goal.of].sum())) for goal in self.roles),
        )
        if by_item > 0:
            return by_item
        # At least one pod is missing if every minimum requests more of a resource than the nodes
        # offer.
        is_used = (singles > 0).any(axis=1)
        there = self.number[is_used] @ np.maximum(self.capacity[is_used], 0)
        for r in np.flatnonzero(self.request.any(axis=0)).tolist():
            cost = self.request[:, r]
            if int(self.choose(cost) @ cost) > there[r]:
                return 1
        return 0

    def choose(self, cost: I64, most: I64 | None = None) -> I64:
        """Return the number of pods of each item in the minimum with the least cost, shape (I,).

        `cost` (I,) is the cost of one pod of each item, and `most` (I,) limits the pods per item.
        """
        left = (self.count if most is None else np.minimum(most, self.count)).copy()
        chosen = np.zeros_like(left)
        order = np.argsort(cost, kind="stable").tolist()
        role_items = [([i for i in order if goal.of[i]], goal.least) for goal in self.roles]
        for items, least in (*role_items, (order, None)):
            open_number = self.whole - int(chosen.sum()) if least is None else least
            for i in items:
                taken = min(int(left[i]), max(open_number, 0))
                chosen[i] += taken
                left[i] -= taken
                open_number -= taken
        return chosen

    def fits_greedily(self, singles: I64) -> bool:
        """Return whether one of four greedy packings places a whole minimum."""
        if self.admits is not None or self.cliques or len(self.count) > MOST_PACKED:
            return False
        top = np.maximum(self.capacity.max(axis=0, initial=0), 1)
        weight = np.max(self.request * 1_000_000 // top, axis=1)
        scarce = -(self.number @ (singles > 0))
        for cost in (weight, weight + 1_000_000 * scarce):
            chosen = self.choose(cost, np.minimum(self.number @ singles, self.count))
            for first in (weight, -(self.number @ (singles > 0))):
                if self._packs(chosen, np.lexsort((-weight, -first)).tolist()):
                    return True
        return False

    def _packs(self, chosen: I64, order: Sequence[int]) -> bool:
        """Return whether all chosen pods fit if placed in `order`, on the fullest nodes first."""
        copies = np.minimum(self.number, max(int(chosen.sum()), 1))
        idle = np.repeat(self.capacity, copies, axis=0)
        is_open = np.repeat(self.is_open, copies, axis=0)
        for i in order:
            left = int(chosen[i])
            if not left:
                continue
            requested = np.flatnonzero(self.request[i])
            if not len(requested):
                if not is_open[:, i].any():
                    return False
                continue
            room = (idle[:, requested] // self.request[i, requested]).min(axis=1)
            room = np.where(is_open[:, i], np.maximum(room, 0), 0)
            tight = np.argsort(room, kind="stable")
            before = np.cumsum(room[tight]) - room[tight]
            taken = np.zeros_like(room)
            taken[tight] = np.clip(left - before, 0, room[tight])
            if taken.sum() < left:
                return False
            idle -= taken[:, None] * self.request[i]
        return True

    def estimate_missing(self) -> tuple[int, bool]:
        """Return a lower bound on the number of missing pods, and whether it is exact."""
        singles = self.singles()
        bound = self.lower_bound(singles)
        if len(self.count) == 1 and not self.cliques:
            return bound, True
        return bound, not bound and self.fits_greedily(singles)

    def fewest_missing(self) -> tuple[int, bool]:
        """Return the minimum number of missing pods and True, or a lower bound and False."""
        bound, is_exact = self.estimate_missing()
        if is_exact:
            return bound, True
        found = self._search_packings(self.singles())
        return (bound, False) if found is None else (max(found, bound), True)

    def _search_packings(self, singles: I64) -> int | None:
        """Return the smallest number of missing pods over all packings; None if a limit is reached.

        The search adds nodes one by one, and keeps all maximal partial packings.
        """
        if len(self.count) > MOST_ITEMS:
            return None
        packed, rows = np.zeros((1, len(self.count)), np.int64), 0
        best = int(self.missing(packed).min())
        order = np.lexsort((np.arange(len(self.number)), -singles.sum(axis=1)))
        for k in order.tolist():
            if not singles[k].any():
                continue
            configurations = self.configurations(k, singles[k])
            if configurations is None:
                return None
            for _ in range(min(int(self.number[k]), int(self.count.sum()))):
                rows += len(packed) * len(configurations)
                if rows > MOST_ROWS or not self.effort.steps_left:
                    return None
                self.effort.steps_left -= 1
                sums = (packed[:, None] + configurations[None]).reshape(-1, len(self.count))
                found = _maximal(np.minimum(sums, self.count))
                best = int(self.missing(found).min())
                if not best:
                    return 0
                if len(found) > MOST_PARTIAL:
                    return None
                if np.array_equal(found, packed):
                    break
                packed = found
        return best

    def configurations(self, k: int, singles: I64) -> I64 | None:
        """Return the maximal sets of pods on a node of class `k`, as counts per item, shape (P, I).

        Returns None if there are more than `MOST_CONFIGURATIONS` candidates.
        """
        found: list[tuple[int, ...]] = []
        for counts in self._filled(k, singles.tolist(), (), self.capacity[k]):
            found.append(counts)
            if len(found) > MOST_CONFIGURATIONS:
                return None
        return _maximal(np.array(found, np.int64).reshape(-1, len(self.count)))

    def _filled(
        self, k: int, most: list[int], chosen: tuple[int, ...], idle: I64
    ) -> Iterator[tuple[int, ...]]:
        """Yield the numbers of pods per item that fit on a node; the last number is maximal."""
        item = len(chosen)
        if item == len(most):
            yield chosen
            return
        requested = np.flatnonzero(self.request[item])
        top = most[item]
        if len(requested):
            top = min(top, int((idle[requested] // self.request[item, requested]).min()))
        is_last, rest = item == len(most) - 1, (0,) * (len(most) - item - 1)
        for number in range(max(top, 0), -1, -1):
            counts = (*chosen, number)
            if number and self.admits is not None and not self.admits(k, (*counts, *rest)):
                continue
            yield from self._filled(k, most, counts, idle - number * self.request[item])
            if is_last:
                return


def _maximal(rows: I64) -> I64:
    """Return the vectors among `rows` (P, I) that no other vector dominates, in a fixed order."""
    unique = np.unique(rows, axis=0)
    order = np.argsort(-unique.sum(axis=1), kind="stable")
    unique = unique[order]
    kept = np.empty((0, rows.shape[1]), np.int64)
    for at in range(0, len(unique), 64):
        part = unique[at : at + 64]
        part = part[~np.any(np.all(part[:, None] <= kept[None], axis=2), axis=1)]
        inside = np.all(part[:, None] <= part[None], axis=2)
        np.fill_diagonal(inside, val=False)
        kept = np.concatenate([kept, part[~inside.any(axis=1)]])
        if len(kept) > MOST_PARTIAL:
            return np.concatenate([kept, unique[at + 64 :]])
    return kept
