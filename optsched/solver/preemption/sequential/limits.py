"""Limits that queues and disruption budgets impose on evictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.plugins.shares.capability import Capability, find_ceilings
from optsched.plugins.shares.guarantee import Guarantee
from optsched.problem.arrays import UNLIMITED
from optsched.solver.preemption.sequential.eviction_problem import (
    GuaranteeReserve,
    Lending,
    LendingOption,
    Limit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionState,
        Groups,
        Whole,
    )
    from optsched.solver.preemption.sequential.running import SessionFacts


class Limits:
    """A compiler that turns queue limits and disruption budgets into constraints on evictions."""

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._problem = facts.problem

    def ceilings(self, gang: int, state: EvictionState) -> list[tuple[int, int, int]]:
        """Return the amounts that a gang's queue and its ancestors may gain.

        Each result is (queue, resource, amount). The amounts come from the rules on queues, and
        from the entitlements of queues that reclaimed capacity by earlier evictions.
        """
        problem = self._problem
        queue = int(problem.queue_of[gang])
        ceiling = find_ceilings(problem)
        lines = np.flatnonzero(self._facts.above[queue]).tolist()
        requested: Bool = np.logical_or.reduce(self._facts.request_of(gang))
        found = [
            (a, r, int(ceiling[a, r]) - self._facts.sum_held(a, r, state.used))
            for a in (lines if self._binds(Capability.name) else ())
            for r in np.flatnonzero(ceiling[a] < UNLIMITED).tolist()
        ]
        found += [
            (a, r, most - self._facts.sum_held(a, r, state.used))
            for (a, r), most in sorted(state.entitled.items())
            if self._facts.above[queue][a]
        ]
        shares = self._facts.rules.find_rule("proportion")
        if shares is not None and shares.binds and self._facts.due is not None:
            due = self._facts.due[queue]
            found += [
                (queue, r, int(due[r]) - self._facts.sum_held(queue, r, state.used))
                for r in np.flatnonzero(due > 0).tolist()
            ]
        return [(a, r, most) for a, r, most in found if requested[r]]

    def _binds(self, rule: str) -> bool:
        """Return whether the policy enforces the rule with the given name."""
        found = self._facts.rules.find_rule(rule)
        return found is not None and found.binds

    def gain_limits(
        self, groups: Groups, rows: Sequence[tuple[int, int, int]], *, is_claim: bool = False
    ) -> list[Limit]:
        """Return limits on the amounts that a gang adds to queues and their descendants.

        If `is_claim` is True, a limit on a queue is active only if a task outside the queue and its
        descendants is reclaimed.
        """
        subtree = self._problem.queues.subtree
        found = []
        for a, r, most in rows:
            is_below = subtree[a][groups.queue]
            below = np.flatnonzero(is_below)
            claimed = np.flatnonzero(groups.reclaimed & ~is_below) if is_claim else None
            found.append(Limit(below, -groups.request[below, r], most, r, claimed))
        return found

    def floors(self, gang: int, groups: Groups, state: EvictionState) -> list[Limit]:
        """Return limits that protect the guarantees of lending queues and their ancestors."""
        queues = self._problem.queues
        mine = self._facts.above[int(self._problem.queue_of[gang])]
        lenders = np.unique(groups.queue[groups.reclaimed])
        found = []
        apart = self._facts.above[lenders].any(axis=0) & ~mine
        for a in np.flatnonzero(apart).tolist():
            below = np.flatnonzero(queues.subtree[a][groups.queue])
            for r in np.flatnonzero(queues.guarantee[a]).tolist():
                most = self._facts.sum_held(a, r, state.firm) - int(queues.guarantee[a, r])
                found.append(Limit(below, groups.request[below, r], max(most, 0)))
        return found

    def reserves(self, gang: int, state: EvictionState, request: I64) -> Iterator[GuaranteeReserve]:
        """Yield the queues' guarantees and used amounts for guaranteed resources in `request`."""
        problem, queues = self._problem, self._problem.queues
        asked = queues.guarantee.any(axis=0) & request.any(axis=0)
        for r in np.flatnonzero(asked).tolist() if self._binds(Guarantee.name) else ():
            pool = int(problem.total[r] - problem.foreign[problem.ready, r].sum())
            floor, used = queues.guarantee[:, r], state.used[:, r]
            yield GuaranteeReserve(
                r, floor, used, queues.parent_of, pool, int(problem.queue_of[gang])
            )

    def budgets(self, groups: Groups, state: EvictionState) -> list[Limit]:
        """Return limits on the number of further evictions that disruption budgets allow."""
        found = []
        for b, budget in enumerate(self._problem.snapshot.budgets):
            covered = self._facts.cover[b, groups.tasks]
            mine = np.unique(groups.of_task[covered])
            if len(mine):
                most = max(budget.allowed - int(state.spent[b]), 0)
                found.append(Limit(mine, np.ones(len(mine), np.int64), most))
        return found

    def lendings(
        self,
        gang: int,
        groups: Groups,
        wholes: Sequence[Whole],
        state: EvictionState,
        request: I64,
    ) -> list[Lending]:
        """Return limits on the amounts that each lending queue gives back to a gang."""
        if self._facts.due is None or self._facts.kept is None:
            return []
        queues = self._problem.queues
        mine = self._facts.above[int(self._problem.queue_of[gang])]
        asked = request.any(axis=0)
        held = queues.summed_up(state.firm)
        units = list(list_units(groups, wholes))
        below: dict[int, I64] = {}
        found = []
        for lender in np.unique(groups.queue[groups.reclaimed]).tolist():
            theirs = np.flatnonzero(groups.reclaimed & (groups.queue == lender))
            for a in np.flatnonzero(self._facts.above[lender] & ~mine).tolist():
                if a not in below:
                    below[a] = np.flatnonzero(queues.subtree[a][groups.queue])
                due = self._facts.due[a] > 0
                if not self._facts.returns_by_use:
                    kept = theirs[groups.request[theirs][:, due & asked].any(axis=1)]
                    # The model has not decided which tasks start, so count only resources that all
                    # tasks request.
                    parts = [(due & (request > 0).all(axis=0), kept)] if len(kept) else []
                else:
                    parts = _group_by_used_resources(groups, theirs, due)
                for named, kept in parts:
                    resources = np.flatnonzero(named)
                    surplus = held[a, resources] - self._facts.kept[a, resources]
                    options = _list_options(groups, kept, units, (resources, surplus), below[a])
                    keeps = zip(
                        resources.tolist(), self._facts.kept[a, resources].tolist(), strict=True
                    )
                    found.append(Lending(a, tuple(keeps), kept, options))
        return found


class Unit(NamedTuple):
    """The last tasks of a gang or subgroup, which are evicted together because of the minimum.

    Attributes
    ----------
    members, held
        The victim groups of the gang or subgroup, and their total number of tasks. If the unit is
        evicted, all tasks of the gang or subgroup are evicted.
    size
        (R,) an upper bound on the amounts that the tasks of the unit hold.

    """

    members: I64
    held: int
    size: I64


def list_units(groups: Groups, wholes: Sequence[Whole]) -> Iterator[Unit]:
    """Yield the units of gangs and subgroups whose last tasks must be evicted together."""
    by_gang = np.argsort(groups.gang, kind="stable")
    start = np.searchsorted(groups.gang[by_gang], np.arange(len(wholes) + 1)).tolist()
    for j, gang in enumerate(wholes):
        mine = by_gang[start[j] : start[j + 1]]
        if gang.may_end and gang.core > 1:
            yield _make_unit(groups, mine, gang.core)
        for p, part in enumerate(gang.parts):
            if part.may_end and part.core > 1:
                yield _make_unit(groups, mine[groups.part[mine] == p], part.core)


def _make_unit(groups: Groups, mine: I64, core: int) -> Unit:
    amounts = np.sort(np.repeat(groups.request[mine], groups.count[mine], axis=0), axis=0)
    return Unit(mine, len(amounts), amounts[-core:].sum(axis=0))


def _list_options(
    groups: Groups, kept: I64, units: Iterable[Unit], lent: tuple[I64, I64], below: I64
) -> tuple[LendingOption, ...]:
    """Return the options of a lending constraint; `lent` holds resources and the excess of each.

    An option is a resource and the tasks that may be the lender's last victims.
    """
    together = [unit for unit in units if np.isin(unit.members, kept).any()]
    found = []
    for r, surplus in zip(*map(np.ndarray.tolist, lent), strict=True):
        sizes = sorted(set(groups.request[kept, r].tolist()) - {0})
        for size in sizes:
            last = kept[groups.request[kept, r] >= size]
            found.append(LendingOption(r, size, below, surplus - 1 + size, last))
        for members, held, amounts in together:
            size = int(amounts[r])
            found.append(LendingOption(r, size, below, surplus - 1 + size, members, held))
    return tuple(option for option in found if option.size > 0)


def _group_by_used_resources(groups: Groups, some: I64, due: Bool) -> list[tuple[Bool, I64]]:
    """Return the victim groups, arranged by the set of `due` resources that their tasks use.

    Victim groups that use none of the `due` resources are omitted.
    """
    members: dict[tuple[bool, ...], list[int]] = {}
    uses = (groups.request[some] > 0) & due
    for group, kind in zip(some.tolist(), map(tuple, uses.tolist()), strict=True):
        members.setdefault(kind, []).append(group)
    return [
        (np.array(kind, np.bool_), np.array(members[kind], np.int64))
        for kind in sorted(members)
        if any(kind)
    ]
