"""Solve an eviction problem greedily: place one task at a time with the cheapest victims.

The limits of lending queues are checked incrementally. The heuristic solution is the first
incumbent of the solver. Without a solver, or without time left, the heuristic solution is final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.solver.preemption.sequential.eviction_problem import claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionProblem,
        Groups,
        GuaranteeReserve,
        Lending,
    )


class LendingSums(NamedTuple):
    """Sums over the selected victims; the constraints of lending queues limit these sums.

    Attributes
    ----------
    victims
        (L,) number of victims in the groups that each lending constraint protects.
    amount
        (O,) amount of each option's resource that the victims of the lender and its descendants
        hold.
    last
        (O,) number of victims in the groups that may contain each option's last victims.

    """

    victims: I64
    amount: I64
    last: I64


class _Share(NamedTuple):
    """The amounts by which one victim of a group increases `LendingSums`."""

    lendings: I64
    options: I64
    amount: I64
    last: I64


class LendingState:
    """The lending constraints (axis L) of an eviction problem and all their options (axis O).

    A lending constraint holds if one of its options holds. An option holds if the lender has an
    excess of a resource until its last victim is evicted. A victim changes only the sums of its
    queue and the queue's ancestors, so a check need not read all victim groups.

    Attributes
    ----------
    sums
        The sums over the selected victims. To undo `add`, assign the earlier object to `sums`.

    """

    def __init__(self, groups: Groups, lendings: Sequence[Lending]) -> None:
        self._groups, self._lendings = groups, lendings
        numbers = [len(lending.options) for lending in lendings]
        options = list(chain.from_iterable(lending.options for lending in lendings))
        self._resource = np.array([option.resource for option in options], np.int64)
        self._most = np.array([option.most for option in options], np.int64)
        self._need = np.array([option.need for option in options], np.int64)
        self._lending_of = np.repeat(np.arange(len(lendings)), numbers)
        below = [each.options[0].below if each.options else each.groups for each in lendings]
        self._members = _Pairs.from_members([option.members for option in options])
        self._below = _Pairs.from_members(below)
        self._own = _Pairs.from_members([each.groups for each in lendings])
        zeros = np.zeros(len(options), np.int64)
        self.sums = LendingSums(np.zeros(len(lendings), np.int64), zeros, zeros)
        self._shares: dict[int, _Share] = {}

    def add(self, groups: I64, counts: I64) -> None:
        """Add `counts` (m,) victims of the groups `groups` (m,) to the sums."""
        self.sums = self._add_to_sums(groups, counts)

    def allows(self, groups: I64, counts: I64) -> bool:
        """Return whether the constraints allow `counts` (m,) more victims of `groups` (m,)."""
        if not self._lendings:
            return True
        sums = self._add_to_sums(groups, counts)
        holds = (sums.amount <= self._most) & (sums.last >= self._need)
        is_lent = sums.victims == 0
        is_lent[self._lending_of[holds]] = True
        return bool(is_lent.all())

    def _add_to_sums(self, groups: I64, counts: I64) -> LendingSums:
        sums = LendingSums(*(each.copy() for each in self.sums))
        for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
            if group not in self._shares:
                own, below = (np.zeros(len(self._lendings), np.bool_) for _ in range(2))
                own[self._own.numbers_of(group)] = True
                below[self._below.numbers_of(group)] = True
                options = np.flatnonzero(below[self._lending_of])
                amount = self._groups.request[group][self._resource[options]]
                is_last = np.isin(options, self._members.numbers_of(group)).astype(np.int64)
                self._shares[group] = _Share(np.flatnonzero(own), options, amount, is_last)
            share = self._shares[group]
            sums.victims[share.lendings] += count
            sums.amount[share.options] += share.amount * count
            sums.last[share.options] += share.last * count
        return sums


class _Pairs(NamedTuple):
    """Pairs of a victim group and a lending constraint or option, sorted by group."""

    groups: I64
    numbers: I64

    @classmethod
    def from_members(cls, members: Sequence[I64]) -> _Pairs:
        groups = np.concatenate([np.zeros(0, np.int64), *members])
        numbers = np.repeat(np.arange(len(members)), [len(each) for each in members])
        order = np.argsort(groups, kind="stable")
        return cls(groups[order], numbers[order])

    def numbers_of(self, group: int) -> I64:
        """Return the lending constraints or options that are paired with a victim group."""
        first, last = np.searchsorted(self.groups, (group, group + 1))
        return self.numbers[first:last]


_FEW_NODES = 16
"""Number of nodes of a restricted problem, in addition to two nodes per task."""

_LATER = 1e-6
"""Additional cost of a node outside the preferred shard; this cost only breaks ties."""


@dataclass(frozen=True, eq=False)
class HeuristicSolution:
    """The evictions and placements of a heuristic solution.

    Attributes
    ----------
    evicted
        (K,) number of victims in each group.
    placed
        (E, N) number of tasks of each entry placed on each node.
    left
        (J,) mask of the victim gangs that are evicted entirely.

    """

    evicted: I64
    placed: I64
    left: Bool

    def num_ended(self, eviction: EvictionProblem) -> int:
        """Return the number of gangs that lose all their tasks."""
        return int(self.evicted[eviction.groups.gang < 0].sum() + self.left.sum())


def solve_heuristically(eviction: EvictionProblem) -> HeuristicSolution | None:
    """Choose victims and nodes greedily; return None if the gang does not reach its minimum."""
    for with_wholes in (False, True):
        found = _Heuristic(eviction, with_wholes=with_wholes).solve()
        if found is not None:
            return found
    return None


def restrict_to_promising_nodes(eviction: EvictionProblem) -> EvictionProblem | None:
    """Restrict an eviction problem to the nodes with the smallest shortfalls for its tasks.

    The best solution may use other nodes. Returns None if the problem already allows only a few
    nodes.
    """
    groups = eviction.groups
    later = groups.release_capacity(eviction.future_idle, groups.count)
    lacking = np.full(len(later), np.inf)
    for allowed, request in zip(eviction.allowed, eviction.request, strict=True):
        share = (np.maximum(request - eviction.future_idle, 0) / np.maximum(request, 1)).max(axis=1)
        fits = allowed & (later >= request).all(axis=1)
        lacking = np.minimum(lacking, np.where(fits, share + eviction.second * _LATER, np.inf))
    nodes = np.flatnonzero(np.isfinite(lacking))
    most = _FEW_NODES + 2 * int(eviction.most.sum())
    if len(nodes) <= most:
        return None
    # Take nodes from the topology domains round-robin, so that every domain is represented.
    order = nodes[np.argsort(lacking[nodes], kind="stable")]
    domain = (
        np.zeros(len(order), np.int64)
        if eviction.constraints.others is None
        else eviction.constraints.others.domain_of[order]
    )
    at = np.lexsort((np.arange(len(order)), domain))
    rank = np.empty(len(order), np.int64)
    rank[at] = np.arange(len(order)) - np.searchsorted(domain[at], domain[at], side="left")
    chosen = np.zeros(len(later), np.bool_)
    chosen[order[np.argsort(rank, kind="stable")[:most]]] = True
    return replace(eviction, allowed=eviction.allowed & chosen)


class _Heuristic:
    def __init__(self, eviction: EvictionProblem, *, with_wholes: bool) -> None:
        self._eviction = eviction
        self._with_wholes = with_wholes
        groups = eviction.groups
        self._idle = eviction.future_idle.copy()
        self._evicted = np.zeros(len(groups), np.int64)
        self._placed = np.zeros(eviction.allowed.shape, np.int64)
        self._left = np.zeros(len(eviction.constraints.wholes), np.bool_)
        self._lent = LendingState(groups, eviction.constraints.lendings)
        self._gain = np.zeros(eviction.future_idle.shape[1], np.int64)
        cheap = (groups.lost, groups.priority, groups.queue_priority, groups.returned_last)
        keys = (*cheap, groups.gang < 0, groups.node)
        order = np.lexsort(keys)
        starts = np.searchsorted(groups.node[order], np.arange(len(self._idle) + 1))
        self._here = [order[a:b] for a, b in pairwise(starts.tolist())]

    def solve(self) -> HeuristicSolution | None:
        """Place tasks greedily; return None if the gang misses its minimum."""
        eviction = self._eviction
        weight = eviction.request / np.maximum(eviction.future_idle.sum(axis=0) + 1, 1)
        # If only some tasks can start, place the smallest tasks first, because small tasks need
        # fewer victims.
        sign = -1 if eviction.most_in_all >= int(eviction.most.sum()) else 1
        short_role, left = dict(eviction.need_role), eviction.most_in_all
        for entry in np.argsort(sign * weight.max(axis=1), kind="stable").tolist():
            role = int(eviction.role[entry])
            kept = sum(max(n, 0) for other, n in short_role.items() if other != role)
            got = self._place_entry(entry, min(int(eviction.most[entry]), max(left - kept, 0)))
            left -= got
            if role in short_role:
                short_role[role] -= got
        number = int(self._placed.sum())
        if not number or not all(map(self._keeps_reserve, eviction.constraints.reserves)):
            return None
        if number < eviction.need or any(n > 0 for n in short_role.values()):
            return None
        return HeuristicSolution(self._evicted, self._placed, self._left)

    def _keeps_reserve(self, reserve: GuaranteeReserve) -> bool:
        """Return whether queues' claims fit in the cluster or do not grow because of the gang."""
        groups, r = self._eviction.groups, reserve.resource
        used = reserve.used.copy()
        np.subtract.at(used, groups.queue, self._evicted * groups.request[:, r])
        top = reserve.parent_of < 0
        before = int(claims(reserve, used)[top].sum())
        used[reserve.queue] += self._gain[r]
        return int(claims(reserve, used)[top].sum()) <= max(reserve.pool, before)

    def _place_entry(self, entry: int, number: int) -> int:
        """Place equal tasks on nodes with the smallest shortfalls; return how many were placed."""
        eviction = self._eviction
        request = eviction.request[entry]
        groups = eviction.groups
        later = groups.release_capacity(self._idle, groups.count - self._evicted)
        done, banned = 0, ~eviction.allowed[entry] | (later < request).any(axis=1)
        while done < number:
            missing = np.maximum(request - self._idle, 0) / np.maximum(request, 1)
            cost = missing.max(axis=1) + eviction.second * _LATER
            cost = np.where(banned, np.inf, cost)
            node = int(cost.argmin()) if len(cost) else -1
            if node < 0 or not np.isfinite(cost[node]):
                break
            is_free = bool((self._idle[node] >= request).all())
            if self._admit(entry, node):
                done += 1
            elif is_free:
                # The node has enough idle capacity, so a queue limit rejected the task. The limit
                # would also reject the task on every other node with enough idle capacity.
                banned[(self._idle >= request).all(axis=1)] = True
            else:
                banned[node] = True
        return done

    def _admit(self, entry: int, node: int) -> bool:
        """Evict tasks on a node and place one task on it, or change nothing and return False."""
        request = self._eviction.request[entry]
        before = (self._evicted.copy(), self._idle.copy(), self._left.copy())
        lent = self._lent.sums
        self._gain += request
        for group in self._here[node].tolist():
            while (self._idle[node] < request).any() and self._evict(group, request, node):
                pass
        if (self._idle[node] < request).any() or any(
            int(limit.weights @ self._evicted[limit.groups]) + int(self._gain[limit.resource])
            > limit.most
            for limit in self._eviction.constraints.limits
            if limit.resource >= 0
            and (limit.claimed is None or bool(self._evicted[limit.claimed].any()))
        ):
            self._evicted, self._idle, self._left = before
            self._lent.sums = lent
            self._gain -= request
            return False
        self._idle[node] -= request
        self._placed[entry, node] += 1
        return True

    # --- one victim ------------------------------------------------------------------------------

    def _evict(self, group: int, request: I64, node: int) -> bool:
        """Evict one task of a group, or its entire gang, for a task that requests `request` (R,).

        Returns False and changes nothing if the eviction does not help or is not allowed.
        """
        groups = self._eviction.groups
        j, missing = int(groups.gang[group]), self._idle[node] < request
        if self._evicted[group] >= groups.count[group]:
            return False
        if not groups.request[group][missing].any():
            return False
        is_whole = j >= 0 and not self._has_surplus(group)
        mine, counts = np.array([group]), np.ones(1, np.int64)
        if is_whole:
            if not self._with_wholes or not self._eviction.constraints.wholes[j].may_end:
                return False
            mine = np.flatnonzero(groups.gang == j)
            counts = groups.count[mine] - self._evicted[mine]
        if not self._is_allowed(mine, counts):
            return False
        self._lent.add(mine, counts)
        self._evicted[mine] += counts
        np.add.at(self._idle, groups.node[mine], counts[:, None] * groups.request[mine])
        if is_whole:
            self._left[j] = True
        return True

    def _has_surplus(self, group: int) -> bool:
        groups, j = self._eviction.groups, int(self._eviction.groups.gang[group])
        whole = self._eviction.constraints.wholes[j]
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

    def _is_allowed(self, groups: I64, counts: I64) -> bool:
        """Return whether lenders and disruption budgets allow `counts` more victims of `groups`."""
        eviction = self._eviction
        if not self._lent.allows(groups, counts):
            return False
        evicted = self._evicted.copy()
        evicted[groups] += counts
        return all(
            int(limit.weights @ evicted[limit.groups]) <= limit.most
            for limit in eviction.constraints.limits
            if limit.resource < 0
        )
