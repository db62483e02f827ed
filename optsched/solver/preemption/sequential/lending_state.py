"""Whether queues still lend what is evicted, kept up to date from one victim to the next."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.solver.preemption.sequential.eviction_problem import Groups, Lending


class LendingSums(NamedTuple):
    """What has been evicted.

    Attributes
    ----------
    victims
        (L,) victims of each lending's own groups.
    gone
        (O,) what was evicted below the queue, of the option's resource.
    last
        (O,) victims that hold at least the option's size.

    """

    victims: I64
    gone: I64
    last: I64

    def copy(self) -> LendingSums:
        """Return sums that can be changed."""
        return LendingSums(self.victims.copy(), self.gone.copy(), self.last.copy())


class _Share(NamedTuple):
    """What one victim of a group adds: to lendings, and to their options."""

    lendings: I64
    victims: I64
    options: I64
    gone: I64
    last: I64


class LendingState:
    """The lendings of an eviction problem, axis L, and their options one after the other, axis O.

    A lending holds once one option does: the lender still held more than is due before its last
    victim. Victims of other queues touch other rows, so that a check costs no pass over groups.
    """

    def __init__(self, groups: Groups, lendings: Sequence[Lending]) -> None:
        self._groups, self._lendings = groups, lendings
        numbers = [len(lending.options) for lending in lendings]
        options = list(chain.from_iterable(lending.options for lending in lendings))
        self._resource = np.array([r for r, _, _, _ in options], np.int64)
        self._size = np.array([size for _, size, _, _ in options], np.int64)
        self._most = np.array([most for _, _, _, most in options], np.int64)
        self._lending_of = np.repeat(np.arange(len(lendings)), numbers)
        below = [each.options[0][2] if each.options else each.groups for each in lendings]
        self._below = _Pairs.of(below)
        self._own = _Pairs.of([each.groups for each in lendings])
        self._sums = LendingSums(
            *(np.zeros(n, np.int64) for n in (len(lendings), len(options), len(options)))
        )
        self._shares: dict[int, _Share] = {}

    def copy_sums(self) -> LendingSums:
        """Return the sums, so that they can be put back."""
        return self._sums.copy()

    def put_back(self, sums: LendingSums) -> None:
        """Forget all victims since the sums were copied."""
        self._sums = sums

    def add(self, groups: I64, counts: I64) -> None:
        """Count (m,) victims of (m,) groups as evicted."""
        self._sums = self._with(groups, counts)

    def allows(self, groups: I64, counts: I64) -> bool:
        """Whether every queue lends (m,) victims more of (m,) groups."""
        if not self._lendings:
            return True
        sums = self._with(groups, counts)
        holds = (sums.gone <= self._most) & (sums.last > 0)
        is_lent = sums.victims == 0
        is_lent[self._lending_of[holds]] = True
        return bool(is_lent.all())

    def _with(self, groups: I64, counts: I64) -> LendingSums:
        sums = self._sums.copy()
        for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
            share = self._share_of(group)
            sums.victims[share.lendings] += share.victims * count
            sums.gone[share.options] += share.gone * count
            sums.last[share.options] += share.last * count
        return sums

    def _share_of(self, group: int) -> _Share:
        if group not in self._shares:
            self._shares[group] = self._make_share(group)
        return self._shares[group]

    def _make_share(self, group: int) -> _Share:
        own, below = (np.zeros(len(self._lendings), np.bool_) for _ in range(2))
        own[self._own.numbers_of(group)] = True
        below[self._below.numbers_of(group)] = True
        options = np.flatnonzero(below[self._lending_of])
        gone = self._groups.request[group][self._resource[options]]
        is_last = own[self._lending_of[options]] & (gone >= self._size[options])
        lendings = np.flatnonzero(own)
        return _Share(lendings, np.ones_like(lendings), options, gone, is_last.astype(np.int64))


class _Pairs(NamedTuple):
    """Groups (m,) in order, and the number (m,) of a lending that each of them belongs to."""

    groups: I64
    numbers: I64

    @classmethod
    def of(cls, members: Sequence[I64]) -> _Pairs:
        groups = np.concatenate([np.zeros(0, np.int64), *members])
        numbers = np.repeat(np.arange(len(members)), [len(each) for each in members])
        order = np.argsort(groups, kind="stable")
        return cls(groups[order], numbers[order])

    def numbers_of(self, group: int) -> I64:
        """Return the lendings of a group."""
        first, last = np.searchsorted(self.groups, (group, group + 1))
        return self.numbers[first:last]
