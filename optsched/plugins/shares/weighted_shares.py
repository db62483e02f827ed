"""Deserved shares by weight for the solver and the greedy pipeline, in whole base units.

Mathematics: models/formulation/proportion.md, "Shares". The verifier computes the same shares with
separate code, `shares_by_name`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
"""The index of the cluster, which is the parent of the top-level queues."""


@dataclass(frozen=True, eq=False)
class WeightedShares:
    """Deserved shares of queues by weight.

    Attributes
    ----------
    whole, own
        (Q, R) deserved shares in base units: `whole` of each queue with its descendants, and `own`
        of the gangs directly in each queue.

    """

    whole: I64
    own: I64


def sum_supply(problem: Problem) -> I64:
    """Return the allocatable amounts (R,) of ready nodes, minus the usage of pods outside gangs.

    The result is in base units. A node on which pods outside gangs exceed the allocatable amount of
    a resource contributes 0.
    """
    supply: I64 = np.maximum(problem.allocatable - problem.foreign, 0)[problem.ready].sum(axis=0)
    return supply


def weighted_shares(problem: Problem) -> WeightedShares:
    """Return the deserved shares of queues by weight."""
    queues, supply = problem.queues, sum_supply(problem)
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
    values = (queues.names, *(part.tobytes() for part in parts))
    return _divide_supply(_Inputs(values, queues, supply))


def shares_by_weight(problem: Problem) -> I64:
    """Return the weighted share (Q, R) of the cluster for the gangs directly in each queue.

    From the root down, the share of each parent queue is divided by weight among its child queues
    whose subtrees contain gangs, and the gangs directly in the parent queue. Shares are rounded
    down. Unlike deserved shares, weighted shares do not depend on the requests of gangs.
    """
    queues, tree = problem.queues, _Tree(problem.queues)
    has_own = np.zeros(len(queues.names), np.int64)
    has_own[problem.queue_of[problem.queue_of >= 0]] = 1
    is_active = queues.summed_up(has_own[:, None])[:, 0] > 0
    weight = np.maximum(queues.weight, 1)
    own = np.zeros_like(queues.allocated)
    for parent, children in tree.families.items():
        owner = tree.root if parent == TOP else parent
        whole = sum_supply(problem) if parent == TOP else own[owner].copy()
        takers = [q for q in children if is_active[q]]
        if owner >= 0:
            own[owner] = 0
            takers += [owner] if has_own[owner] else []
        own[takers] = whole * weight[takers, None] // max(int(weight[takers].sum()), 1)
    frozen(own)
    return own


@dataclass(frozen=True)
class _Inputs:
    """Inputs of the deserved shares, compared by value; equal for most problems of a session.

    Attributes
    ----------
    values
        The queue names and the bytes of all arrays on which the shares depend.
    queues, supply
        The queues, and the capacity (R,) to divide, in base units.

    """

    values: tuple[object, ...]
    queues: QueueArrays = field(compare=False)
    supply: I64 = field(compare=False)


@lru_cache(maxsize=4)
def _divide_supply(inputs: _Inputs) -> WeightedShares:
    queues, supply = inputs.queues, inputs.supply
    tree = _Tree(queues)
    # If every resource suffices for all demand, a queue deserves the larger of its demand and its
    # guarantee.
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
    # A queue can deserve less than its demand only for contested resources. The test for contested
    # resources may also return True if every queue deserves its demand.
    most = np.maximum(queues.requested, queues.guarantee).astype(np.float64).sum(axis=0)
    inner = [*tree.upwards, *([tree.root] if tree.root >= 0 else [])]
    is_limited = (queues.capability[inner] < UNLIMITED).any(axis=0)
    is_contested = np.asarray(is_limited | (most * (1 + 1e-9) > supply))
    for r in np.flatnonzero(is_contested).tolist():
        column = _ResourceShares(queues, tree, r, int(supply[r]))
        whole[:, r], own[:, r] = column.whole, column.own
    whole[~tree.has_gangs] = 0
    own[~queues.has_gangs] = 0
    frozen(whole, own)
    return WeightedShares(whole, own)


class _Tree:
    """The queue tree; the gangs directly in the root queue are treated as a top-level queue.

    Attributes
    ----------
    above
        (Q,) the parent of each queue; `TOP` for top-level queues and the root queue.
    families
        The child queues of each parent queue. Parent queues are ordered from the top down.
    upwards
        The parent queues without `TOP`, deepest first.
    has_gangs
        (Q,) True if any gang of a queue or its descendants uses or requests a resource.

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


class _ResourceShares:
    """The deserved shares of one resource.

    Attributes
    ----------
    whole, own
        (Q,) shares of each queue, see `WeightedShares`.

    """

    def __init__(self, queues: QueueArrays, tree: _Tree, r: int, supply: int) -> None:
        self._weight: list[int] = np.maximum(queues.weight, 1).tolist()
        self._requested: list[int] = queues.requested[:, r].tolist()
        self._own_claim: list[int] = queues.claimed[:, r].tolist()
        self._own_oldest: list[int] = queues.oldest_ms.tolist()
        ceiling: list[int] = queues.capability[:, r].tolist()
        floor: list[int] = queues.guarantee[:, r].tolist()
        self._floor = list(map(min, floor, ceiling))
        self._most = list(map(min, map(max, self._requested, floor), ceiling))
        self._claim = self._own_claim.copy()
        self._oldest = self._own_oldest.copy()
        for q in tree.upwards:
            below = tree.families[q]
            self._floor[q] = min(max(floor[q], sum(self._floor[c] for c in below)), ceiling[q])
            most = self._requested[q] + sum(self._most[c] for c in below)
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
        if owner >= 0:
            self.own[owner] = 0
        takers = [q for q in members if self._most[q]]
        shares = [(self._weight[q], self._floor[q], self._most[q]) for q in takers]
        if owner >= 0 and self._requested[owner]:
            takers.append(owner)
            shares.append((self._weight[owner], 0, self._requested[owner]))

        def precedence(number: int, part: int) -> tuple[bool, int, int]:
            q = takers[number]
            is_own = q == owner
            claim = self._own_claim[q] if is_own else self._claim[q]
            oldest = self._own_oldest[q] if is_own else self._oldest[q]
            return claim <= part, oldest, q

        for q, amount in zip(takers, divide_by_weight(total, shares, precedence), strict=True):
            self.own[q] = amount
            if q != owner:
                self.whole[q] = amount


def divide_by_weight(
    total: int,
    takers: Sequence[tuple[int, int, int]],
    precedence: Callable[[int, int], tuple[bool, int, int]],
) -> list[int]:
    """Return integer shares of a total, proportional to weight, each within floor and ceiling.

    Parameters
    ----------
    total
        The amount to divide.
    takers
        (weight, floor, ceiling) of each participant, where 0 < weight and 0 ≤ floor ≤ ceiling.
    precedence
        Returns a sort key from a participant's index and its share rounded down; no two keys are
        equal. Among participants with equal remainders, those with smaller keys get a unit first.

    """
    most = [ceiling for _, _, ceiling in takers]
    if sum(most) <= total:
        return most
    floors = [floor for _, floor, _ in takers]
    if sum(floors) >= total:
        takers = [(weight, 0, floor) for weight, floor, _ in takers]
        if sum(floors) == total:
            return floors
    rest, weights = _find_level(total, takers)
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


def _find_level(total: int, takers: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Return (rest, weights) such that, for λ = rest / weights, all bounded shares sum to `total`.

    The total must be between the sum of the floors and the sum of the ceilings. The sum of the
    shares is linear in λ between events: an event is a λ at which a share rises above its floor or
    reaches its ceiling. Events are sorted on a grid that separates all fractions with denominators
    up to the largest weight.
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
