"""Ideal shares for divisible tasks in a queue tree, computed by water filling.

Mathematics: models/formulation/hdrf.md, "Ideal". Bhattacharya et al. (SoCC 2013) give one task at a
time to the leaf with the smallest share. With divisible tasks, the shares of all leaves with the
smallest share rise together. All amounts are fractions of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64, Bool

_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Tree:
    """Tree nodes (axis M); the root comes first, and each parent comes before its children.

    Attributes
    ----------
    parent_of
        (M,) the parent of each node; -1 for the root.
    weight
        (M,) the positive weight of each node.
    past
        (M, R) past usage that is added to the usage at each node.

    """

    parent_of: I64
    weight: F64
    past: F64


@dataclass(frozen=True, eq=False)
class GangClasses:
    """Gang classes (axis L): gangs of one leaf that request resources in the same proportions.

    Attributes
    ----------
    home
        (L,) the tree node (a leaf) of each gang class.
    mix
        (L, R) resources that each gang class uses per unit of dominant share.
    sizes
        For each of the L classes, the requested dominant shares of its gangs, in ascending order.
    floor
        (L,) the fraction of its request that each gang of a class gets before the filling.
    use, limit
        (K, L) usage of each limit per unit of dominant share, and (K,) the limits.

    """

    home: I64
    mix: F64
    sizes: tuple[F64, ...]
    floor: F64
    use: F64
    limit: F64


def fill_tree(tree: Tree, classes: GangClasses) -> F64:
    """Return the total dominant share (L,) of the gangs of each class after the water filling."""
    filling = _Filling(tree, classes)
    # Each step of the filling ends when a gang is satisfied, a limit is reached, the shares of two
    # nodes become equal, or the dominant resource of a node changes.
    events = 2 * sum(map(len, classes.sizes)) + len(classes.limit)
    most = 10 + 4 * events * (1 + len(tree.parent_of)) * max(1, int(classes.mix.shape[1]))
    for _ in range(most):
        if not filling.rise():
            break
    return filling.held


class _Filling:
    """Water filling from event to event: the shares of all leaves with the smallest share rise.

    A gang is satisfied if its whole request is met. An unsatisfied gang starts to get more when the
    share of its class exceeds the floor of the gang.

    Attributes
    ----------
    held
        (L,) the total dominant share that the gangs of each class hold.

    """

    def __init__(self, tree: Tree, classes: GangClasses) -> None:
        self._tree, self._classes, sizes = tree, classes, classes.sizes
        depth = np.zeros(len(tree.parent_of), np.int64)
        for node in range(1, len(depth)):
            depth[node] = depth[tree.parent_of[node]] + 1
        # For each depth below the root, from the root down, the indices of the tree nodes.
        self._groups = [np.flatnonzero(depth == d) for d in range(1, int(depth.max()) + 1)]
        self._level = np.zeros(len(tree.parent_of))
        # For each class (L,): the number of its gangs, and the index of its first gang in `_size`
        # and `_sum`.
        self._number = np.array([len(s) for s in sizes], np.int64)
        self._start = np.cumsum(self._number + 1) - self._number - 1
        padded = [np.append(s, np.inf) for s in sizes]
        self._size = np.concatenate([*padded, np.zeros(0)])
        sums = [np.concatenate([[0.0], np.cumsum(s)]) for s in sizes]
        self._sum = np.concatenate([*sums, np.zeros(0)])
        self._floor = np.maximum(classes.floor, 0.0)
        self._num_served = np.zeros(len(sizes), np.int64)
        self._num_started = np.zeros(len(sizes), np.int64)
        self._is_open = np.ones(len(sizes), np.bool_)
        self.held = np.zeros(len(sizes))
        self._update_held()

    def rise(self) -> bool:
        """Raise the smallest shares until the next event; return False if no share can rise."""
        if not self._is_open.any():
            return False
        classes, level = self._classes, self._level[self._classes.home]
        num_unserved = self._number - self._num_served
        # In the shares of tree nodes, open gang classes count without floors, and closed gang
        # classes count with the dominant shares that their gangs hold.
        even = self._sum[self._start + self._num_served] + num_unserved * level
        counted = np.where(self._is_open, even, self.held), self._is_open
        levels = _Levels(self._tree, self._groups, classes, counted)
        rate = levels.rates(np.where(self._is_open, num_unserved, 0))
        speed = np.where(self._is_open, rate[classes.home], 0.0)
        growth = classes.use @ (speed * (self._num_started - self._num_served))
        left = np.maximum(classes.limit - classes.use @ self.held, 0.0)
        binds, moves = growth > 0, speed > 0
        coming = np.minimum(*self._find_next_levels())[moves] - level[moves]
        step = min(
            float((left[binds] / growth[binds]).min(initial=np.inf)),
            float((np.maximum(coming, 0.0) / speed[moves]).min(initial=np.inf)),
            levels.time_to_next(),
        )
        if not np.isfinite(step):
            return False
        self._level += step * rate
        self._update_held()
        return True

    def _find_next_levels(self) -> tuple[F64, F64]:
        """Return, per class (L,), the shares at which it next satisfies a gang and next starts one.

        A gang starts when the share of its class exceeds the floor of the gang.
        """
        floors = self._floor * np.minimum(
            self._size[self._start + self._num_started], np.finfo(float).max
        )
        floors = np.where(self._num_started < self._number, floors, np.inf)
        return self._size[self._start + self._num_served], floors

    def _update_held(self) -> None:
        """Update `held`, and close the gang classes that are satisfied or have reached a limit."""
        classes, level = self._classes, self._level[self._classes.home]
        reached = level * (1 + _TINY) + _TINY * _TINY
        while True:
            served, started = (found <= reached for found in self._find_next_levels())
            if not served.any() and not started.any():
                break
            self._num_served += served
            self._num_started += started
        # Each gang gets at least its floor and at most its request.
        below = self._sum[self._start + self._num_served]
        total = self._sum[self._start + self._number]
        waiting = self._floor * (total - self._sum[self._start + self._num_started])
        sums = below + (self._num_started - self._num_served) * level + waiting
        self.held = np.where(self._is_open, sums, self.held)
        full = classes.use @ self.held >= classes.limit - _TINY * np.maximum(classes.limit, 1.0)
        stopped = (classes.use[full] > 0).any(axis=0)
        self._is_open &= ~stopped & (self._num_served < self._number)


class _Levels:
    """The shares of tree nodes during the filling, and the rates at which the shares rise."""

    def __init__(
        self, tree: Tree, groups: list[I64], classes: GangClasses, counted: tuple[F64, Bool]
    ) -> None:
        amounts, growing = counted
        num = len(tree.parent_of)
        self._tree, self._groups, self._classes = tree, groups, classes
        self._held = tree.past.copy()
        np.add.at(self._held, classes.home, amounts[:, None] * classes.mix)
        self._share, self._key = np.zeros(num), np.zeros(num)
        self._is_open = np.zeros(num, np.bool_)
        self._is_open[classes.home[growing]] = True
        self._least = np.full(num, np.inf)
        for nodes in reversed(groups):
            # The usage of an open node is scaled down to the smallest weighted share among its open
            # siblings and then added to the usage of the parent.
            parent, is_open = self._tree.parent_of[nodes], self._is_open[nodes]
            self._share[nodes] = self._held[nodes].max(axis=1, initial=0.0)
            key = self._key[nodes] = self._share[nodes] / self._tree.weight[nodes]
            self._is_open[parent[is_open]] = True
            np.minimum.at(self._least, parent[is_open], key[is_open])
            scaled = is_open & (key > 0)
            part = np.where(scaled, self._least[parent] / np.where(scaled, key, 1.0), 1.0)
            np.add.at(self._held, parent, part[:, None] * self._held[nodes])

    def rates(self, growing: F64) -> F64:
        """Return the rate (M,) at which the share of each tree node rises.

        `growing` (L,) is the number of growing gangs in each class.
        """
        num = len(self._key)
        self._gain = np.zeros_like(self._held)
        np.add.at(self._gain, self._classes.home, growing[:, None] * self._classes.mix)
        self._pace, self._pull = np.zeros(num), np.zeros(num)
        self._steep = np.zeros(num)
        for group in reversed(self._groups):
            # The shares of the open nodes with the smallest weighted share rise. While a node can
            # use more without a larger dominant share, because another resource is dominant, only
            # such nodes get more.
            nodes = group[self._is_open[group]]
            parent, gain = self._tree.parent_of[nodes], self._gain[nodes]
            share, key, weight = self._share[nodes], self._key[nodes], self._tree.weight[nodes]
            most = self._held[nodes] >= share[:, None] * (1 - _TINY)
            steep = self._steep[nodes] = np.where(most, gain, 0.0).max(axis=1, initial=0.0)
            fast = gain.max(axis=1, initial=0.0)
            first = key <= self._least[parent] * (1 + _TINY) + _TINY * _TINY
            free = first & (steep <= _TINY * fast)
            stands = np.zeros(len(self._key), np.bool_)
            stands[parent[free]] = True
            stays = stands[parent]
            chosen = np.where(stays, free, first)
            slope = np.maximum(np.where(stays, fast, steep), _TINY * _TINY)
            self._pace[nodes] = np.where(chosen, weight / slope, 0.0)
            waits = ~first & ~stays
            self._pull[nodes] = np.where(waits, 1.0 / np.where(waits, key, 1.0), 0.0)
            grown = self._pace[nodes, None] * gain + self._pull[nodes, None] * self._held[nodes]
            np.add.at(self._gain, parent, grown)
        self._rate = np.zeros(num)
        self._rate[0] = 1.0
        for nodes in self._groups:
            self._rate[nodes] = self._rate[self._tree.parent_of[nodes]] * self._pace[nodes]
        largest = self._rate[self._classes.home].max(initial=0.0)
        self._rate /= largest if largest > 0 else 1.0
        return self._rate

    def time_to_next(self) -> float:
        """Return the time until the next event in the tree.

        An event occurs when the share of a rising node reaches that of a waiting node, or when the
        dominant resource of a node changes.
        """
        parent = np.maximum(self._tree.parent_of, 0)
        waits = (self._pull > 0) & (self._rate[parent] > 0)
        apart = self._key[waits] - self._least[parent[waits]]
        to_equal = float((apart / self._rate[parent[waits]]).min(initial=np.inf))
        rises = np.flatnonzero(self._rate[1:] > 0) + 1
        held, share = self._held[rises], self._share[rises, None]
        faster = self._gain[rises] - self._steep[rises, None]
        speed = faster * self._rate[rises, None]
        comes = (held < share * (1 - _TINY)) & (speed > _TINY)
        to_other_resource = float(((share - held)[comes] / speed[comes]).min(initial=np.inf))
        return min(to_equal, to_other_resource)
