"""What queues deserve by weight, for the engines: exact, in whole base units.

Mathematics: the page `proportion` of the formulation, under "Shares". The verifier fills the same
shares with code of its own, `shares_by_name`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.problem.arrays import UNLIMITED, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.queues import QueueArrays

TOP = -1
"""Stands for the cluster, which divides its resources among the highest queues."""


@dataclass(frozen=True, eq=False)
class WeightedShares:
    """What queues deserve.

    Attributes
    ----------
    whole, own
        (Q, R) base units: of a queue with all queues below it, and of its own gangs.

    """

    whole: I64
    own: I64


def weighted_shares(problem: Problem) -> WeightedShares:
    """Return what queues deserve by weight; computed once for a problem."""
    return problem.derived(_weighted_shares)


def supply_of(problem: Problem) -> I64:
    """Return (R,) base units of ready nodes that pods outside every gang do not hold.

    An overcommitted node supplies nothing of its scarce resource.
    """
    supply: I64 = np.maximum(problem.allocatable - problem.foreign, 0)[problem.ready].sum(axis=0)
    return supply


def _weighted_shares(problem: Problem) -> WeightedShares:
    return _share_by(_Terms(problem.queues, supply_of(problem)))


class _Terms:
    """What shares depend on, compared by value: the problems of a session mostly agree in it."""

    def __init__(self, queues: QueueArrays, supply: I64) -> None:
        self.queues, self.supply = queues, supply
        parts = (
            queues.parent_of,
            queues.weight,
            queues.capability,
            queues.guarantee,
            queues.claimed,
            queues.requested,
            queues.oldest_ms,
            queues.has_gangs,
            supply,
        )
        self._values = (queues.names, *(part.tobytes() for part in parts))
        self._hash = hash(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Terms) and self._values == other._values

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=4)
def _share_by(terms: _Terms) -> WeightedShares:
    queues, supply = terms.queues, terms.supply
    tree = _Tree(queues)
    shares = _uncontested(queues, tree)
    for r in np.flatnonzero(_is_contested(queues, tree, supply)).tolist():
        column = _Column(queues, tree, r, int(supply[r]))
        shares.whole[:, r], shares.own[:, r] = column.whole, column.own
    shares.whole[~tree.has_gangs] = 0
    shares.own[~queues.has_gangs] = 0
    frozen(shares.whole, shares.own)
    return shares


class _Tree:
    """The tree of queues; the root queue has a part of its own among the highest queues.

    Attributes
    ----------
    above
        (Q,) the queue above each; TOP for the highest ones and for the root queue.
    families
        Queues above others, from the top down, each with the queues right below it.
    upwards
        Queues with others below them, the lowest first.
    has_gangs
        (Q,) whether any gang of a queue, or of a queue below it, holds or requests anything.

    """

    def __init__(self, queues: QueueArrays) -> None:
        names = queues.names
        root = names.index(ROOT_QUEUE) if ROOT_QUEUE in names else TOP
        parent_of = np.where(queues.parent_of == root, TOP, queues.parent_of)
        self.above: list[int] = parent_of.tolist()
        self.root = root
        self.families: dict[int, list[int]] = {TOP: []}
        for q, parent in enumerate(self.above):
            if q != root:
                self.families.setdefault(parent, []).append(q)
        depth = queues.subtree.sum(axis=0)
        inner = sorted(set(self.families) - {TOP}, key=lambda q: (int(depth[q]), q))
        self.upwards = inner[::-1]
        self.families = {q: self.families[q] for q in (TOP, *inner)}
        self.has_gangs: Bool = queues.has_gangs.copy()
        for q in self.upwards:
            self.has_gangs[q] |= self.has_gangs[self.families[q]].any()


def _is_contested(queues: QueueArrays, tree: _Tree, supply: I64) -> Bool:
    """(R,) whether some queue may deserve less than it requests; False is certain."""
    most = np.maximum(queues.requested, queues.guarantee).astype(np.float64).sum(axis=0)
    inner = [*tree.upwards, *([tree.root] if tree.root >= 0 else [])]
    is_limited = (queues.capability[inner] < UNLIMITED).any(axis=0)
    contested: Bool = is_limited | (most * (1 + 1e-9) > supply)
    return contested


def _uncontested(queues: QueueArrays, tree: _Tree) -> WeightedShares:
    """Shares where there is enough of everything: requests, and guarantees."""
    own = queues.requested.copy()
    whole = np.minimum(np.maximum(own, queues.guarantee), queues.capability)
    for q in tree.upwards:
        below = whole[tree.families[q]].sum(axis=0)
        whole[q] = np.maximum(own[q] + below, queues.guarantee[q])
    leaf = np.ones(len(own), np.bool_)
    leaf[tree.upwards] = False
    if tree.root >= 0:
        whole[tree.root] = own[tree.root]
        leaf[tree.root] = False
    own[leaf] = whole[leaf]
    return WeightedShares(whole, own)


class _Column:
    """Shares of one resource.

    Attributes
    ----------
    whole, own
        (Q,) see `WeightedShares`.

    """

    def __init__(self, queues: QueueArrays, tree: _Tree, r: int, supply: int) -> None:
        self._weight: list[int] = np.maximum(queues.weight, 1).tolist()
        self._asked: list[int] = queues.requested[:, r].tolist()
        self._own_claim: list[int] = queues.claimed[:, r].tolist()
        self._own_oldest: list[int] = queues.oldest_ms.tolist()
        ceiling: list[int] = queues.capability[:, r].tolist()
        floor: list[int] = queues.guarantee[:, r].tolist()
        self._floor = list(map(min, floor, ceiling))
        self._most = list(map(min, map(max, self._asked, floor), ceiling))
        self._claim = self._own_claim.copy()
        self._oldest = self._own_oldest.copy()
        for q in tree.upwards:
            below = tree.families[q]
            self._floor[q] = min(max(floor[q], sum(self._floor[c] for c in below)), ceiling[q])
            most = self._asked[q] + sum(self._most[c] for c in below)
            self._most[q] = min(max(most, floor[q]), ceiling[q])
            self._claim[q] += sum(self._claim[c] for c in below)
            self._oldest[q] = min(self._oldest[q], *(self._oldest[c] for c in below))
        self.whole, self.own = [0] * len(floor), [0] * len(floor)
        for owner, members in tree.families.items():
            at_top = owner == TOP
            total = supply if at_top else self.whole[owner]
            if at_top and tree.root >= 0:
                total = min(total, ceiling[tree.root])
            self._share_out(total, tree.root if at_top else owner, members)
        if tree.root >= 0:
            self.whole[tree.root] = self.own[tree.root]

    def _share_out(self, total: int, owner: int, members: Sequence[int]) -> None:
        """Fill the queues of a family, and the own gangs of the queue above them."""
        if owner >= 0:
            self.own[owner] = 0
        takers = [q for q in members if self._most[q]]
        shares = [(self._weight[q], self._floor[q], self._most[q]) for q in takers]
        if owner >= 0 and self._asked[owner]:
            takers.append(owner)
            shares.append((self._weight[owner], 0, self._asked[owner]))

        def precedence(number: int, part: int) -> tuple[bool, int, int]:
            q = takers[number]
            is_own = q == owner
            claim = self._own_claim[q] if is_own else self._claim[q]
            oldest = self._own_oldest[q] if is_own else self._oldest[q]
            return claim <= part, oldest, q

        for q, amount in zip(takers, fill(total, shares, precedence), strict=True):
            self.own[q] = amount
            if q != owner:
                self.whole[q] = amount


def fill(
    total: int,
    takers: Sequence[tuple[int, int, int]],
    precedence: Callable[[int, int], tuple[bool, int, int]],
) -> list[int]:
    """Return shares of a total in proportion to weight, each within its bounds, in whole units.

    Parameters
    ----------
    total
        What is shared out.
    takers
        Weight, floor and ceiling of each; 0 < weight and 0 ≤ floor ≤ ceiling.
    precedence
        Of a taker by its number and its share rounded down: the smaller gets a unit first among
        equal remainders. No two are equal.

    """
    most = [ceiling for _, _, ceiling in takers]
    if sum(most) <= total:
        return most
    floors = [floor for _, floor, _ in takers]
    if sum(floors) >= total:
        takers = [(weight, 0, floor) for weight, floor, _ in takers]
        if sum(floors) == total:
            return floors
    rest, weights = _level(total, takers)
    shares, remainders = [], []
    for number, (weight, floor, ceiling) in enumerate(takers):
        scaled = rest * weight
        if scaled <= floor * weights:
            shares.append(floor)
        elif scaled >= ceiling * weights:
            shares.append(ceiling)
        else:
            part, remainder = divmod(scaled, weights)
            shares.append(part)
            if remainder:
                remainders.append((-remainder, *precedence(number, part), number))
    remainders.sort()
    for *_, number in remainders[: total - sum(shares)]:
        shares[number] += 1
    return shares


def _level(total: int, takers: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """The level λ = rest / weights at which shares λ·weight within their bounds sum to a total.

    Amounts between floors and ceilings together. The sum is linear in λ between events: a share
    leaves its floor, or reaches its ceiling. Their levels are compared on a grid that distinguishes
    all fractions with denominators up to the largest weight.
    """
    grid = max(weight for weight, _, _ in takers) ** 2
    events = []
    for weight, floor, ceiling in takers:
        events.append((floor * grid // weight, floor, weight, weight, -floor))
        events.append((ceiling * grid // weight, ceiling, weight, -weight, ceiling))
    events.sort()
    fixed, slope = sum(floor for _, floor, _ in takers), 0
    for _, amount, weight, steeper, more in events:
        if slope and fixed * weight + slope * amount >= total * weight:
            break
        slope += steeper
        fixed += more
    return total - fixed, slope
