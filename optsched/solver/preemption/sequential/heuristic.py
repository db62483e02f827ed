"""A bid answered at once: node by node, the cheapest victims that make room for one more task.

Its answer is what there is when no solver is at hand or time is up, and what a solver starts from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optsched.solver.preemption.sequential.eviction_problem import claims

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionProblem,
        GuaranteeReserve,
        Lending,
    )

_FEW_NODES = 16
"""Nodes beside two for each task that are looked at first where tasks look at each other."""

_LATER = 1e-6
"""Tells nodes apart that are as good otherwise."""


@dataclass(frozen=True, eq=False)
class HeuristicSolution:
    """Who goes and who comes.

    Attributes
    ----------
    evicted
        (K,) victims of each group.
    placed
        (E, N) tasks of each entry on each node.
    left
        (J,) gangs of victims that leave as a whole.

    """

    evicted: I64
    placed: I64
    left: Bool

    def num_ended(self, bid: EvictionProblem) -> int:
        """Gangs that lose all their tasks."""
        return int(self.evicted[bid.groups.gang < 0].sum() + self.left.sum())


def solve_heuristically(bid: EvictionProblem) -> HeuristicSolution | None:
    """Victims and nodes for a bid, found greedily; None where that does not reach its minimum."""
    for with_wholes in (False, True):
        heuristic = _Heuristic(bid, with_wholes=with_wholes)
        if heuristic.run():
            return heuristic.solution()
    return None


def restrict_to_promising_nodes(bid: EvictionProblem) -> EvictionProblem | None:
    """The bid on the nodes that lack the least, of all domains; None where few are open.

    There may be a better answer on other nodes, or one at all.
    """
    groups = bid.groups
    later = bid.room.copy()
    np.add.at(later, groups.node, groups.count[:, None] * groups.request)
    lacking = np.full(len(later), np.inf)
    for allowed, request in zip(bid.allowed, bid.request, strict=True):
        share = (np.maximum(request - bid.room, 0) / np.maximum(request, 1)).max(axis=1)
        fits = allowed & (later >= request).all(axis=1)
        lacking = np.minimum(lacking, np.where(fits, share + bid.second * _LATER, np.inf))
    nodes = np.flatnonzero(np.isfinite(lacking))
    most = _FEW_NODES + 2 * int(bid.most.sum())
    if len(nodes) <= most:
        return None
    # One after the other of each domain, so that nodes near others and apart are among them.
    order = nodes[np.argsort(lacking[nodes], kind="stable")]
    domain = np.zeros(len(order), np.int64) if bid.others is None else bid.others.domain_of[order]
    at = np.lexsort((np.arange(len(order)), domain))
    rank = np.empty(len(order), np.int64)
    rank[at] = np.arange(len(order)) - np.searchsorted(domain[at], domain[at], side="left")
    chosen = np.zeros(len(later), np.bool_)
    chosen[order[np.argsort(rank, kind="stable")[:most]]] = True
    return replace(bid, allowed=bid.allowed & chosen)


class _Heuristic:
    def __init__(self, bid: EvictionProblem, *, with_wholes: bool) -> None:
        self._compile = bid
        self._with_wholes = with_wholes
        groups = bid.groups
        self._idle = bid.room.copy()
        self._evicted = np.zeros(len(groups), np.int64)
        self._placed = np.zeros(bid.allowed.shape, np.int64)
        self._left = np.zeros(len(bid.wholes), np.bool_)
        self._gain = np.zeros(bid.room.shape[1], np.int64)
        cheap = (groups.lost, groups.priority, groups.queue_priority, groups.returned_last)
        keys = (*cheap, groups.gang < 0, groups.node)
        order = np.lexsort(keys)
        starts = np.searchsorted(groups.node[order], np.arange(len(self._idle) + 1))
        self._here = [order[a:b] for a, b in pairwise(starts.tolist())]

    def solution(self) -> HeuristicSolution:
        return HeuristicSolution(self._evicted, self._placed, self._left)

    def run(self) -> bool:
        """Place the minimum, then as much more as victims may be evicted for; False without it."""
        bid = self._compile
        weight = bid.request / np.maximum(bid.room.sum(axis=0) + 1, 1)
        # Where not all tasks come, the smallest do, for which fewer have to leave.
        sign = -1 if bid.most_in_all >= int(bid.most.sum()) else 1
        short_role, left = dict(bid.need_role), bid.most_in_all
        for entry in np.argsort(sign * weight.max(axis=1), kind="stable").tolist():
            role = int(bid.role[entry])
            kept = sum(max(n, 0) for other, n in short_role.items() if other != role)
            got = self._place(entry, min(int(bid.most[entry]), max(left - kept, 0)))
            left -= got
            if role in short_role:
                short_role[role] -= got
        if not self._placed.any() or not all(
            self._keeps_reserve(reserve) for reserve in bid.reserves
        ):
            return False
        return int(self._placed.sum()) >= bid.need and all(n <= 0 for n in short_role.values())

    def _keeps_reserve(self, reserve: GuaranteeReserve) -> bool:
        """Whether what queues claim still fits."""
        groups, r = self._compile.groups, reserve.resource
        used = reserve.used.copy()
        np.subtract.at(used, groups.queue, self._evicted * groups.request[:, r])
        top = reserve.parent_of < 0
        before = int(claims(reserve, used)[top].sum())
        used[reserve.queue] += self._gain[r]
        return int(claims(reserve, used)[top].sum()) <= max(reserve.pool, before)

    def _place(self, entry: int, number: int) -> int:
        """Place tasks of an entry where that costs the fewest victims; returns how many."""
        done, banned = 0, ~self._compile.allowed[entry]
        while done < number:
            cost = np.where(banned, np.inf, self._cost(entry))
            node = int(cost.argmin()) if len(cost) else -1
            if node < 0 or not np.isfinite(cost[node]):
                break
            if self._admit(entry, node):
                done += 1
            else:
                banned[node] = True
        return done

    def _cost(self, entry: int) -> F64:
        """(N,) about how many victims one more task takes on each node."""
        request = self._compile.request[entry]
        missing = np.maximum(request - self._idle, 0)
        share = missing / np.maximum(request, 1)
        cost: F64 = share.max(axis=1) + self._compile.second * _LATER
        return cost

    def _admit(self, entry: int, node: int) -> bool:
        """Make room for one task on a node and put it there; False leaves all as it was."""
        request = self._compile.request[entry]
        before = (self._evicted.copy(), self._idle.copy(), self._left.copy())
        self._gain += request
        for group in self._here[node].tolist():
            while (self._idle[node] < request).any() and self._can_evict(group, request, node):
                self._evict(group)
        if (self._idle[node] < request).any() or not self._keeps_limits():
            self._evicted, self._idle, self._left = before
            self._gain -= request
            return False
        self._idle[node] -= request
        self._placed[entry, node] += 1
        return True

    # --- one victim ------------------------------------------------------------------------------

    def _can_evict(self, group: int, request: I64, node: int) -> bool:
        groups = self._compile.groups
        if self._evicted[group] >= groups.count[group]:
            return False
        missing = self._idle[node] < request
        if not groups.request[group][missing].any():
            return False
        if groups.gang[group] < 0 or self._has_surplus(group):
            return self._is_allowed(np.array([group]), np.ones(1, np.int64))
        return self._with_wholes and self._can_evict_gang(int(groups.gang[group]))

    def _has_surplus(self, group: int) -> bool:
        groups, j = self._compile.groups, int(self._compile.groups.gang[group])
        whole = self._compile.wholes[j]
        mine = groups.gang == j
        if self._evicted[mine].sum() >= whole.surplus:
            return False
        for role, _, surplus in whole.by_role:
            same = mine & (groups.role == role)
            if role == groups.role[group] and self._evicted[same].sum() >= surplus:
                return False
        part = int(groups.part[group])
        same = mine & (groups.part == part)
        return part < 0 or int(self._evicted[same].sum()) < whole.parts[part].surplus

    def _can_evict_gang(self, j: int) -> bool:
        groups = self._compile.groups
        mine = np.flatnonzero(groups.gang == j)
        rest = groups.count[mine] - self._evicted[mine]
        return self._compile.wholes[j].may_end and self._is_allowed(mine, rest)

    def _is_allowed(self, groups: I64, counts: I64) -> bool:
        """Whether queues and budgets allow some more victims."""
        bid = self._compile
        evicted = self._evicted.copy()
        evicted[groups] += counts
        if not all(_is_above_due(bid, lending, evicted) for lending in bid.lendings):
            return False
        return all(
            int(limit.weights @ evicted[limit.groups]) <= limit.most
            for limit in bid.limits
            if limit.resource < 0
        )

    def _evict(self, group: int) -> None:
        groups = self._compile.groups
        j = int(groups.gang[group])
        if j < 0 or self._has_surplus(group):
            self._evicted[group] += 1
            self._idle[groups.node[group]] += groups.request[group]
            return
        mine = np.flatnonzero(groups.gang == j)
        rest = groups.count[mine] - self._evicted[mine]
        np.add.at(self._idle, groups.node[mine], rest[:, None] * groups.request[mine])
        self._evicted[mine] = groups.count[mine]
        self._left[j] = True

    def _keeps_limits(self) -> bool:
        """Whether the gang's gain stays below ceilings, and within what is due where it claims."""
        groups = self._compile.groups
        reclaims = bool(self._evicted[groups.reclaimed].any())
        return all(
            int(limit.weights @ self._evicted[limit.groups]) + int(self._gain[limit.resource])
            <= limit.most
            for limit in self._compile.limits
            if limit.resource >= 0 and (reclaims or not limit.is_claim)
        )


def _is_above_due(bid: EvictionProblem, lending: Lending, evicted: I64) -> bool:
    """Whether the lender still held more than is due before its last victim."""
    groups = bid.groups
    if not evicted[lending.groups].any():
        return True
    for r, size, below, most in lending.options:
        gone = int(groups.request[below, r] @ evicted[below])
        last = lending.groups[groups.request[lending.groups, r] >= size]
        if gone <= most and evicted[last].any():
            return True
    return False
