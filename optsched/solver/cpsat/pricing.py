"""Find the best configuration of every node class by dynamic programming over capacities.

The value of a configuration is the sum of the integer prices of its tasks. Let free[s] be the best
value for a node with capacity s. Then free[s] = max(0, max_c price[c] + free[s − request[c]]),
which is an unbounded knapsack problem in several dimensions. One table over all sums of requests
gives the values for all node classes (Gilmore and Gomory, 1961, with a grid instead of a tree).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.arrays import I64, Bool

MOST_CELLS = 3_000_000
"""Maximum total number of cells of all tables; pricing with larger tables is too slow."""

MOST_BITS = 1 << 22
"""Maximum node capacity of a resource, in units of the greatest common divisor of its requests."""


TOO_MANY_CAPACITIES = "not solved: too many distinct idle capacities"
"""The reason that a solve reports if configurations cannot be priced."""


class TooManyCapacities(Exception):
    """Raised if a pricing table would have too many distinct sums of requests."""


def useful_capacity(capacity: I64, request: I64) -> I64:
    """Return the capacity (K, R) that tasks can use, given the capacity of other resources.

    If every task class requests resource q, the capacity of q limits the usable amount of every
    resource r. The limit is the capacity of q times the largest ratio request[r] / request[q].
    """
    useful = capacity.copy()
    for q in np.flatnonzero((request > 0).all(axis=0)).tolist() if len(request) else ():
        for r in range(useful.shape[1]):
            if r != q:
                worst = int(np.argmax(request[:, r] / request[:, q]))
                most = useful[:, q] * request[worst, r] // request[worst, q]
                useful[:, r] = np.minimum(useful[:, r], most)
    return useful


def check_size(capacity: I64, request: I64, allowed: Bool) -> None:
    """Raise `TooManyCapacities` if the requests have too many distinct sums for `Pricer`.

    No tables are built. `Pricer` may still raise the error later, if its tables are too large.
    """
    for mine, classes in _tables(allowed):
        if (len(classes) + 1) * len(classes) <= MOST_CELLS:
            continue
        most = capacity[mine].max(axis=0, initial=0)
        for r in _find_binding_resources(capacity[mine], request[classes]):
            requested = request[classes, r]
            distinct = np.unique(requested[(requested > 0) & (requested <= most[r])])
            if (len(distinct) + 1) * len(classes) > MOST_CELLS:
                raise TooManyCapacities


@dataclass(frozen=True, eq=False)
class _Axis:
    """All possible sums of requests for one resource, up to the largest capacity of a node.

    Attributes
    ----------
    levels
        (L,) the sums of requests in ascending order, starting with 0.
    down
        (C, L) index of the largest level that fits after placing a task of the class; -1 if the
        task does not fit.
    at
        (K,) index of the largest level within each node class's capacity.

    """

    levels: I64
    down: I64
    at: I64


def _make_axis(request: I64, capacity: I64) -> _Axis:
    # Each distinct request is one of the sums, so this check rejects some oversized tables early.
    most = int(capacity.max(initial=0))
    distinct = np.unique(request[(request > 0) & (request <= most)])
    if (len(distinct) + 1) * len(request) > MOST_CELLS:
        raise TooManyCapacities
    # All sums of positive requests up to `most`, in ascending order.
    positive = request[request > 0]
    step = int(np.gcd.reduce(positive))
    top = most // step
    if top > MOST_BITS:
        raise TooManyCapacities
    mask = (1 << (top + 1)) - 1
    bits = 1
    for value in np.unique(positive // step).tolist():
        shift = value
        while shift <= top:
            bits |= (bits << shift) & mask
            shift *= 2
    raw = np.frombuffer(bits.to_bytes((top + 8) // 8, "little"), np.uint8)
    found = np.flatnonzero(np.unpackbits(raw, bitorder="little")[: top + 1])
    levels = found.astype(np.int64) * step
    if len(levels) * len(request) > MOST_CELLS:
        raise TooManyCapacities
    left = levels[None, :] - request[:, None]
    down = np.searchsorted(levels, left, side="right") - 1
    return _Axis(levels, down, np.searchsorted(levels, capacity, side="right") - 1)


def _find_binding_resources(capacity: I64, request: I64) -> list[int]:
    """Return the requested resources that limit configurations, without redundant resources."""
    kept: list[int] = np.flatnonzero(request.any(axis=0)).tolist()
    by_all: list[bool] = np.all(request > 0, axis=0).tolist()
    for r in sorted(kept, key=lambda r: -int(np.unique(request[:, r]).size)):
        for q in [q for q in kept if q != r and by_all[q]]:
            # Tasks that fit into the capacity of resource q use at most `most` of resource r.
            worst = int(np.argmax(request[:, r] / request[:, q]))
            most = capacity[:, q] * request[worst, r] // request[worst, q]
            if (most <= capacity[:, r]).all():
                kept.remove(r)
                break
    return kept


@dataclass(frozen=True, eq=False)
class _Table:
    """The best value for each capacity, and the class of the first task of a best configuration.

    The task class is -1 if the next lower capacity on the first axis has the same best value.
    """

    worth: I64
    first: I64


class _Group:
    """Node classes that share a table of best values, because they allow the same task classes."""

    def __init__(self, node_classes: I64, classes: I64, capacity: I64, request: I64) -> None:
        self.node_classes = node_classes
        self.classes = classes
        kept = _find_binding_resources(capacity, request)
        # The table is filled along the axis of a resource that every task requests. Such a resource
        # always exists: `pods`, or the resource that makes `pods` redundant.
        kept.sort(
            key=lambda r: (not (request[:, r] > 0).all(), int(np.unique(capacity[:, r]).size))
        )
        self._axes = [_make_axis(request[:, r], capacity[:, r]) for r in kept]
        self.at = tuple(a.at for a in self._axes)

    @property
    def num_cells(self) -> int:
        """The number of table cells times the number of task classes."""
        return int(np.prod([len(a.levels) for a in self._axes])) * len(self.classes)

    def solve(self, prices: I64) -> _Table:
        """Fill the table for the given prices, one index of the first axis at a time."""
        pivot, *others = self._axes
        # With an additional axis of length 1, `worth[i]` is an array even if there is only one
        # axis.
        shape = [*(len(a.levels) for a in self._axes), 1]
        worth = np.zeros(shape, np.int64)
        first = np.full(shape, -1, np.int64)
        # For each task class, store the indices on the other axes at which a task fits, and the
        # indices that remain after the task is placed.
        moves = []
        for c, task_class in enumerate(self.classes.tolist()):
            if prices[task_class] > 0:
                starts = [int(np.searchsorted(a.down[c], 0)) for a in others]
                left = [a.down[c][start:] for a, start in zip(others, starts, strict=True)]
                region = tuple(slice(start, None) for start in starts)
                source = np.ix_(*left, np.zeros(1, np.int64))
                moves.append((c, int(prices[task_class]), region, source))
        for i in range(1, shape[0]):
            worth[i] = worth[i - 1]
            for c, price, region, source in moves:
                below = int(pivot.down[c, i])
                if below < 0:
                    continue
                reached = worth[below][source] + price
                better = reached > worth[i][region]
                worth[i][region][better] = reached[better]
                first[i][region][better] = c
        return _Table(worth, first)

    def read(self, table: _Table, node_class: int, num_classes: int) -> I64:
        tasks = np.zeros(num_classes, np.int64)
        at = [int(a.at[node_class]) for a in self._axes]
        while at[0] > 0:
            c = int(table.first[(*at, 0)])
            if c < 0:
                at[0] -= 1
                continue
            tasks[self.classes[c]] += 1
            at = [int(a.down[c, i]) for a, i in zip(self._axes, at, strict=True)]
        return tasks

    def near(
        self, table: _Table, prices: I64, node_class: int, least: int, most_steps: int
    ) -> list[I64] | None:
        """Return all maximal configurations of a node class with a value of at least `least`.

        A configuration is maximal if no task can be added to it. A configuration is an array of
        task counts, one for each task class of the group. Returns None if the search exceeds
        `most_steps` steps.
        """
        price = [int(prices[c]) for c in self.classes.tolist()]
        down = [a.down.tolist() for a in self._axes]
        found: list[I64] = []
        start = tuple(int(a.at[node_class]) for a in self._axes)
        stack = [(0, start, 0, (0,) * len(price))]
        steps = 0
        while stack:
            steps += 1
            if steps > most_steps:
                return None
            c, at, worth, tasks = stack.pop()
            if worth + int(table.worth[(*at, 0)]) < least:
                continue
            if c == len(price):
                # Omit configurations to which a task of some task class could be added.
                if worth >= least and not any(
                    all(axis[other][i] >= 0 for axis, i in zip(down, at, strict=True))
                    for other in range(len(self.classes))
                ):
                    found.append(np.array(tasks, np.int64))
                continue
            stack.append((c + 1, at, worth, tasks))
            below = tuple(axis[c][i] for axis, i in zip(down, at, strict=True))
            if min(below) >= 0:
                more = (*tasks[:c], tasks[c] + 1, *tasks[c + 1 :])
                stack.append((c, below, worth + price[c], more))
        return found


class Pricer:
    """Prices all node classes, with one table per set of allowed task classes."""

    def __init__(self, capacity: I64, request: I64, allowed: Bool) -> None:
        """Group the node classes by table and compute the axes of the tables.

        The arrays have the shapes of the `Configurations` attributes with the same names. Raises
        `TooManyCapacities` if the tables would have too many cells.
        """
        self._num_classes = len(request)
        self._groups: list[_Group] = []
        cells = 0
        for node_classes, classes in _tables(allowed):
            group = _Group(node_classes, classes, capacity[node_classes], request[classes])
            self._groups.append(group)
            cells += group.num_cells
            if cells > MOST_CELLS:
                raise TooManyCapacities
        self._group_of = np.full(len(capacity), -1, np.int64)
        self._place_of = np.zeros(len(capacity), np.int64)
        for number, group in enumerate(self._groups):
            self._group_of[group.node_classes] = number
            self._place_of[group.node_classes] = np.arange(len(group.node_classes))

    def price(self, prices: I64) -> Priced:
        """Return the best configuration of each node class for the given task prices (C,)."""
        tables = [g.solve(prices) for g in self._groups]
        worth = np.zeros(len(self._group_of), np.int64)
        for group, table in zip(self._groups, tables, strict=True):
            worth[group.node_classes] = table.worth[(*group.at, 0)]
        return Priced(worth, prices, self, tables)

    def read(self, tables: list[_Table], node_class: int) -> I64:
        """Return the best configuration (C,) of a node class."""
        number = int(self._group_of[node_class])
        if number < 0:
            return np.zeros(self._num_classes, np.int64)
        place = int(self._place_of[node_class])
        return self._groups[number].read(tables[number], place, self._num_classes)

    def near(
        self, priced: Priced, node_class: int, least: int, most_steps: int
    ) -> list[I64] | None:
        """Return the maximal configurations (C,) of a node class with a value of at least `least`.

        No task can be added to a maximal configuration. Returns None if the search exceeds
        `most_steps` steps.
        """
        number = int(self._group_of[node_class])
        if number < 0:
            return []
        group, place = self._groups[number], int(self._place_of[node_class])
        found = group.near(priced.tables[number], priced.prices, place, least, most_steps)
        if found is None:
            return None
        expanded = np.zeros((len(found), self._num_classes), np.int64)
        for row, tasks in zip(expanded, found, strict=True):
            row[group.classes] = tasks
        return list(expanded)


@dataclass(frozen=True, eq=False)
class Priced:
    """The result of pricing the configurations of all node classes.

    Attributes
    ----------
    worth
        (K,) value of the best configuration of each node class.
    prices
        (C,) price of one task of each class.

    """

    worth: I64
    prices: I64
    pricer: Pricer
    tables: list[_Table]

    def configuration(self, node_class: int) -> I64:
        """Return the tasks (C,) of a best configuration for a node class."""
        return self.pricer.read(self.tables, node_class)


def _tables(allowed: Bool) -> Iterator[tuple[I64, I64]]:
    """Yield the node classes of each table, and the task classes that these node classes allow."""
    by_mask: dict[bytes, list[int]] = {}
    for k, mask in enumerate(np.packbits(allowed, axis=1)):
        by_mask.setdefault(mask.tobytes(), []).append(k)
    for members in by_mask.values():
        classes = np.flatnonzero(allowed[members[0]])
        if len(classes):
            yield np.array(members, np.int64), classes
