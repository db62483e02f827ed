"""Check incrementally whether lending queues allow more victims."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.solver.preemption.sequential.eviction_problem import Groups, Lending


class LendingSums(NamedTuple):
    """Totals over the selected victims, which are checked against the limits of lending queues.

    Attributes
    ----------
    victims
        (L,) number of victims in the groups that each lending constraint protects.
    amount
        (O,) amount of each option's resource that victims of the queue and its descendants hold.
    last
        (O,) number of victims in the groups that may contain each option's last victims.

    """

    victims: I64
    amount: I64
    last: I64


class _Share(NamedTuple):
    """What one victim of a group adds to `LendingSums`, by lending constraint and by option."""

    lendings: I64
    options: I64
    amount: I64
    last: I64


class LendingState:
    """The lending constraints (axis L) of an eviction problem and all their options (axis O).

    A lending constraint holds if one of its options holds. An option holds if the lender holds more
    of a resource than it must keep until the lender's last victim is evicted. A victim changes only
    the sums of its queue and that queue's ancestors. A check therefore need not read all victim
    groups.

    Attributes
    ----------
    sums
        The sums over the selected victims. To remove the latest victims, assign an earlier object
        to `sums`.

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
        """Add `counts` (m,) victims of the groups `groups` (m,) to the totals."""
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
    """(victim group, lending constraint or option) pairs, sorted by group."""

    groups: I64
    numbers: I64

    @classmethod
    def from_members(cls, members: Sequence[I64]) -> _Pairs:
        groups = np.concatenate([np.zeros(0, np.int64), *members])
        numbers = np.repeat(np.arange(len(members)), [len(each) for each in members])
        order = np.argsort(groups, kind="stable")
        return cls(groups[order], numbers[order])

    def numbers_of(self, group: int) -> I64:
        """Return the indices of the lending constraints or options that include a victim group."""
        first, last = np.searchsorted(self.groups, (group, group + 1))
        return self.numbers[first:last]
