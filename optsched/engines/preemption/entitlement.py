"""Rows of the joint model on who may be evicted for whom: `rules.entitled`, summed over gangs.

A victim needs an admitted gang that may have it evicted, without saying which one. What a queue
claims and what a lender gives back is kept for each pair of a kind of reclaimer and a lender.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.problem.arrays import row_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.engines.victims.bid import Groups
    from optsched.engines.victims.facts import Facts
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.linear import Expression

MOST_PAIRS = 2_000
"""Pairs of a kind of reclaimer and a lender beyond which what queues claim is left out."""

_LOWEST = -(2**62)


def add_entitlement_rows(
    form: Formulation, facts: Facts, groups: Groups, evict: I64, who: Sequence[Bool]
) -> None:
    """Let only victims leave that an admitted gang is entitled to.

    Parameters
    ----------
    form
        The joint model.
    facts
        What is due to queues.
    groups, evict
        Axis K of candidate victims, and (K,) their variables.
    who
        (K,) each: preempted, exchanged and reclaimed as in `Candidates`.

    """
    preempted, exchanged, reclaimed = who
    own = preempted | exchanged
    model = form.model
    reclaim = np.full(len(groups), -1, np.int64)
    alone = reclaimed & ~own
    reclaim[alone] = evict[alone]
    both = np.flatnonzero(reclaimed & own)
    reclaim[both] = model.add_variables(0, groups.count[both])
    rows, ones = np.arange(len(both)), np.ones(len(both), np.int64)
    model.add_rows(
        np.append(rows, rows),
        np.append(reclaim[both], evict[both]),
        np.append(ones, -ones),
        upper=np.zeros(len(both), np.int64),
    )
    threshold = np.where(exchanged, _LOWEST, groups.priority)
    _add_preempt_rows(form, groups, np.where(own, threshold, 0), (evict, reclaim, own))
    if facts.due is not None and reclaimed.any():
        _Reclaiming(form, facts, groups, evict, reclaim).add_rows()


def _add_preempt_rows(
    form: Formulation, groups: Groups, threshold: I64, columns: tuple[I64, I64, Bool]
) -> None:
    """Evicted less reclaimed ≤ count · (whether a gang above the threshold gains anything)."""
    evict, reclaim, own = columns
    mine = np.flatnonzero(own)
    if not len(mine):
        return
    model, gangs = form.model, form.gangs
    priority = form.problem.priority[gangs.members[gangs.member_start[:-1]]]
    of, first = row_groups((groups.queue[mine], threshold[mine]))
    gains = model.add_variables(0, np.ones(len(first), np.int64))
    for gain, k in zip(gains.tolist(), mine[first].tolist(), strict=True):
        able = (gangs.queue_of == groups.queue[k]) & (priority > threshold[k])
        _bound_by_gain(form, gain, able)
    rows = np.arange(len(mine))
    split = np.flatnonzero(reclaim[mine] >= 0)
    model.add_rows(
        np.concatenate([rows, split, rows]),
        np.concatenate([evict[mine], reclaim[mine[split]], gains[of]]),
        np.concatenate([np.ones_like(mine), -np.ones_like(split), -groups.count[mine]]),
        upper=np.zeros(len(mine), np.int64),
    )


def _bound_by_gain(form: Formulation, gain: int, classes: Bool) -> None:
    """Gain ≤ tasks placed of some gang classes (H,)."""
    use = form.placed(np.ones_like(form.placed_factor), classes[form.gangs.gang_class_of])
    form.model.add_rows(0, np.append(use.variables, gain), np.append(use.coefficients, -1), lower=0)


class _Kind(NamedTuple):
    """Gang classes (H,) of one queue that ask for the same resources.

    Attributes
    ----------
    always, sometimes
        (R,) resources that every task of theirs asks for, and that any does.

    """

    queue: int
    classes: Bool
    always: Bool
    sometimes: Bool


class _Reclaiming:
    """Writes the rows on reclaiming; what they share is made once."""

    def __init__(
        self, form: Formulation, facts: Facts, groups: Groups, evict: I64, reclaim: I64
    ) -> None:
        assert facts.due is not None  # noqa: S101  the caller asks only then
        assert facts.kept is not None  # noqa: S101
        self._form, self._facts, self._groups = form, facts, groups
        self._due, self._kept = facts.due, facts.kept
        self._evict, self._reclaim = evict, reclaim
        self._within: dict[tuple[int, int], int] = {}

    def add_rows(self) -> None:
        """Add all rows."""
        groups, model = self._groups, self._form.model
        kinds = self._kinds()
        lenders = np.unique(groups.queue[self._reclaim >= 0]).tolist()
        claims = len(kinds) * len(lenders) <= MOST_PAIRS
        for lender in lenders:
            mine = np.flatnonzero((self._reclaim >= 0) & (groups.queue == lender))
            able = [kind for kind in kinds if self._is_due(kind, lender)]
            pairs = model.add_variables(0, np.ones(len(able) if claims else 1, np.int64))
            if claims:
                for pair, kind in zip(pairs.tolist(), able, strict=True):
                    _bound_by_gain(self._form, pair, kind.classes)
                    self._add_claim_rows(pair, kind, lender)
            else:
                nobody = np.zeros(len(self._form.start), np.bool_)
                some = np.logical_or.reduce([nobody, *(kind.classes for kind in able)])
                _bound_by_gain(self._form, int(pairs[0]), some)
            rows = np.arange(len(mine))
            model.add_rows(
                np.concatenate([rows, np.repeat(rows, len(pairs))]),
                np.concatenate([self._reclaim[mine], np.tile(pairs, len(mine))]),
                np.concatenate([np.ones_like(mine), -np.repeat(groups.count[mine], len(pairs))]),
                upper=np.zeros(len(mine), np.int64),
            )
            if able:
                self._add_lender_rows(lender, mine, able)

    def _kinds(self) -> list[_Kind]:
        gangs, request = self._form.gangs, self._form.problem.classes.request
        asks = request[gangs.class_of] > 0
        always = np.ones((len(gangs.shape_of), asks.shape[1]), np.bool_)
        sometimes = np.zeros_like(always)
        np.logical_and.at(always, gangs.gang_class_of, asks)
        np.logical_or.at(sometimes, gangs.gang_class_of, asks)
        if not len(always):
            return []
        of, first = row_groups((gangs.queue_of, *always.T, *sometimes.T))
        return [
            _Kind(int(gangs.queue_of[h]), of == i, always[h], sometimes[h])
            for i, h in enumerate(first.tolist())
        ]

    def _apart(self, queue: int, other: int) -> I64:
        """A queue and its ancestors up to where the other queue is below them."""
        above = self._facts.above
        return np.flatnonzero(above[queue] & ~above[other])

    def _is_due(self, kind: _Kind, lender: int) -> bool:
        apart = self._apart(kind.queue, lender)
        is_other = kind.queue != lender
        return is_other and bool((self._due[apart][:, kind.sometimes] > 0).any())

    def _add_claim_rows(self, pair: int, kind: _Kind, lender: int) -> None:
        """The claiming side ends within its due of everything that it asks for."""
        for a in self._apart(kind.queue, lender).tolist():
            for r in np.flatnonzero(kind.always & (self._due[a] > 0)).tolist():
                if (a, r) not in self._within:
                    self._within[a, r] = self._add_within(a, r)
                self._form.model.add_row([pair, self._within[a, r]], [1, -1], upper=0)

    def _add_within(self, queue: int, resource: int) -> int:
        """Return a 0-1 variable that is 1 only where a queue ends within its due of a resource."""
        form, model = self._form, self._form.model
        problem = form.problem
        below = problem.queues.subtree[queue]
        use, gone = self._gain(queue, resource), form.evicted(resource, below)
        held = int(problem.queues.allocated[below, resource].sum())
        most = int(self._due[queue, resource]) - held
        largest = min(
            int(model.bounds[1][use.variables] @ use.coefficients),
            int(problem.idle[:, resource].sum()),
        )
        slack = max(largest - most, 0)
        (within,) = model.add_variables(0, 1).tolist()
        model.add_rows(
            0,
            np.concatenate([use.variables, gone.variables, [within]]),
            np.concatenate([use.coefficients, -gone.coefficients, [slack]]),
            upper=most + slack,
        )
        return int(within)

    def _add_lender_rows(self, lender: int, mine: I64, able: Sequence[_Kind]) -> None:
        """A lender gives back only what it holds above its due, and keeps its guarantee."""
        apart = set(self._apart(lender, able[0].queue).tolist())
        for kind in able[1:]:
            apart &= set(self._apart(lender, kind.queue).tolist())
        queues, groups = self._form.problem.queues, self._groups
        for a in sorted(apart):
            due = self._due[a] > 0
            some = np.logical_or.reduce([kind.sometimes for kind in able]) & due
            every = np.logical_and.reduce([kind.always for kind in able]) & due
            kept = mine[(groups.request[mine] * every).any(axis=1)]
            if len(kept):
                self._add_return_rows(a, kept, mine, np.flatnonzero(some))
            for r in np.flatnonzero(queues.guarantee[a]).tolist():
                left = int(queues.allocated[queues.subtree[a], r].sum() - queues.guarantee[a, r])
                gain = self._gain(a, r)
                self._form.model.add_rows(
                    0,
                    np.append(self._reclaim[mine], gain.variables),
                    np.append(groups.request[mine, r], -gain.coefficients),
                    upper=max(left, 0),
                )

    def _gain(self, queue: int, resource: int) -> Expression:
        """What is placed of a resource for a queue and those below it.

        It counts for a lender: after the next session it would have to give it back.
        """
        form, gangs = self._form, self._form.gangs
        below = form.problem.queues.subtree[queue][gangs.queue_of[gangs.gang_class_of]]
        return form.placed(form.problem.classes.request[gangs.class_of, resource], below)

    def _add_return_rows(self, queue: int, kept: I64, mine: I64, named: I64) -> None:
        """Some resource is still held above what is due before the last victim leaves."""
        model, groups, queues = self._form.model, self._groups, self._form.problem.queues
        (lends,) = model.add_variables(0, 1)
        ones = np.ones(len(kept), np.int64)
        total = int(groups.count[kept].sum())
        model.add_rows(0, np.append(self._reclaim[kept], lends), np.append(ones, -total), upper=0)
        below = np.flatnonzero(queues.subtree[queue][groups.queue])
        picks: list[int] = []
        for r in named.tolist():
            held = int(queues.allocated[queues.subtree[queue], r].sum())
            weights, gain = groups.request[below, r], self._gain(queue, r)
            largest = int(weights @ groups.count[below])
            for size in np.unique(groups.request[mine, r]).tolist():
                if not size:
                    continue
                most = held - int(self._kept[queue, r]) - 1 + size
                slack = max(largest - most, 0)
                (pick,) = model.add_variables(0, 1).tolist()
                columns = np.concatenate([self._evict[below], gain.variables, [pick]])
                factors = np.concatenate([weights, -gain.coefficients, [slack]])
                model.add_rows(0, columns, factors, upper=most + slack)
                last = mine[groups.request[mine, r] >= size]
                enough = np.append(np.ones(len(last), np.int64), -1)
                model.add_rows(0, np.append(self._reclaim[last], pick), enough, lower=0)
                picks.append(int(pick))
        model.add_rows(0, [*picks, lends], [*[1] * len(picks), -1], lower=0)
