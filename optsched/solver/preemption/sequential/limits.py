"""Limits that queues and disruption budgets impose on evictions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.queue_limits import Capability, find_ceilings
from optsched.problem.arrays import UNLIMITED, row_groups
from optsched.solver.preemption.sequential.eviction_problem import (
    GuaranteeReserve,
    Lending,
    LendingOption,
    Limit,
)
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.solver.preemption.candidate_victims import SessionFacts
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionState,
        Groups,
        VictimGang,
    )


class Limits:
    """Converts queue limits and disruption budgets to constraints on evictions."""

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._problem = facts.problem

    def ceilings(self, gang: int, state: EvictionState) -> list[tuple[int, int, int]]:
        """Return the amounts by which the usage of a gang's queue and its ancestors may grow.

        Each result is a (queue, resource, amount) tuple. The amounts follow from rules on queues,
        and from the amounts that queues may hold after earlier reclaims.
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
        found = self._facts.rules.find_rule(rule)
        return found is not None and found.binds

    def gain_limits(
        self, groups: Groups, rows: Sequence[tuple[int, int, int]], *, is_claim: bool = False
    ) -> list[Limit]:
        """Return limits on the amounts that a gang adds to queues and their descendants.

        With `is_claim`, the limit of a queue is active only if a task outside the queue and its
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
        """Yield the queues' guarantees and usage for each guaranteed resource in `request`."""
        problem, queues = self._problem, self._problem.queues
        requested = queues.guarantee.any(axis=0) & request.any(axis=0)
        for r in np.flatnonzero(requested).tolist() if self._binds(Guarantee.name) else ():
            pool = int(problem.total[r] - problem.foreign[problem.ready, r].sum())
            floor, used = queues.guarantee[:, r], state.used[:, r]
            yield GuaranteeReserve(
                r, floor, used, queues.parent_of, pool, int(problem.queue_of[gang])
            )

    def budgets(
        self, groups: Groups, state: EvictionState, overriding: Bool | None = None
    ) -> list[Limit]:
        """Return the limits that disruption budgets set on further evictions.

        Tasks in the mask `overriding` (V,) do not count for disruption budgets that guarantees may
        override.
        """
        found = []
        for b, budget in enumerate(self._problem.snapshot.budgets):
            covered = self._facts.cover[b, groups.tasks]
            if overriding is not None and budget.yields_to_guarantees:
                covered = covered & ~overriding[groups.tasks]
            mine = np.unique(groups.of_task[covered])
            if len(mine):
                most = max(budget.allowed - int(state.spent[b]), 0)
                found.append(Limit(mine, np.ones(len(mine), np.int64), most))
        return found

    def lendings(
        self,
        gang: int,
        groups: Groups,
        wholes: Sequence[VictimGang],
        state: EvictionState,
        *,
        grows: bool,
    ) -> list[Lending]:
        """Return limits on the amounts that lending queues give back to a gang."""
        if self._facts.due is None or self._facts.kept is None:
            return []
        queues = self._problem.queues
        mine = self._facts.above[int(self._problem.queue_of[gang])]
        requested: Bool = np.logical_or.reduce(self._facts.request_of(gang) > 0)
        # `sure` (R,) masks the resources that the gang requests no matter which of its tasks start.
        sure = self._facts.surely_requested(gang, grows=grows)
        held = queues.summed_up(state.firm)
        units = Units(list_units(groups, wholes), len(groups))
        below: dict[int, I64] = {}
        found = []
        for lender in np.unique(groups.queue[groups.reclaimed]).tolist():
            theirs = np.flatnonzero(groups.reclaimed & (groups.queue == lender))
            for a in np.flatnonzero(self._facts.above[lender] & ~mine).tolist():
                if a not in below:
                    below[a] = np.flatnonzero(queues.subtree[a][groups.queue])
                due = self._facts.due[a] > 0
                if not self._facts.returns_by_use:
                    kept = theirs[groups.request[theirs][:, due & requested].any(axis=1)]
                    named = due & sure
                    parts = [(named, named, kept)] if len(kept) else []
                else:
                    parts = [
                        (named, due, kept)
                        for named, kept in _group_by_used_resources(groups, theirs, due, units)
                    ]
                surplus = held[a] - self._facts.kept[a]
                for named, together, kept in parts:
                    options = _list_options(
                        groups, kept, units, (named, together, surplus), below[a]
                    )
                    keeps = tuple(
                        (r, int(self._facts.kept[a, r])) for r in np.flatnonzero(named).tolist()
                    )
                    found.append(Lending(a, keeps, kept, options))
            if self._facts.returns_by_use:
                found += self._tie_unrelated_tasks(lender, theirs, groups, units, sure)
        return found

    def _tie_unrelated_tasks(
        self, lender: int, theirs: I64, groups: Groups, units: Units, requested: Bool
    ) -> Iterator[Lending]:
        """Yield constraints on the victims that use no requested resource.

        Such a victim is evicted only together with a task that uses a requested resource.
        """
        shared = requested.copy()
        shared[self._problem.index(PODS)] = False
        unrelated = theirs[~(groups.request[theirs][:, shared] > 0).any(axis=1)]
        below = np.flatnonzero(groups.queue == lender)
        for kept in units.arrange(unrelated, shared):
            options = []
            for u in units.of_group[int(kept[0])]:
                members, held, size = units.units[u]
                for r in np.flatnonzero(shared & (size > 0))[:1].tolist():
                    most = int(groups.request[below, r] @ groups.count[below])
                    options.append(LendingOption(r, int(size[r]), below, most, members, held))
            yield Lending(lender, (), kept, tuple(options))


class Unit(NamedTuple):
    """The tasks that a gang or subgroup can lose only together, after its surplus tasks.

    Attributes
    ----------
    members, held
        The victim groups of the gang or subgroup, and their total number of tasks. If the unit is
        evicted, all tasks of these groups are evicted.
    size
        (R,) an upper bound on the amounts that the unit's tasks hold. For each resource, the bound
        counts every task that does not use the resource as a task of the unit.

    """

    members: I64
    held: int
    size: I64


class Units:
    """The units of an eviction problem, and the indices of the units that contain each group."""

    def __init__(self, units: Iterable[Unit], num_groups: int) -> None:
        self.units = list(units)
        self.of_group: list[list[int]] = [[] for _ in range(num_groups)]
        for u, unit in enumerate(self.units):
            for k in unit.members.tolist():
                self.of_group[k].append(u)

    def arrange(self, some: I64, resources: Bool) -> Iterator[I64]:
        """Yield the victim groups `some` in sets; the groups of a set are in the same units.

        Units that use none of `resources` are ignored.
        """
        found: dict[tuple[int, ...], list[int]] = {}
        for k in some.tolist():
            useful = (u for u in self.of_group[k] if self.units[u].size[resources].any())
            found.setdefault(tuple(useful), []).append(k)
        for members in found.values():
            yield np.array(members, np.int64)


def list_units(
    groups: Groups, wholes: Sequence[VictimGang], *, is_exact: bool = True
) -> Iterator[Unit]:
    """Yield the units of victim gangs and of the subgroups of victim gangs.

    If `is_exact` is False, the sizes are upper bounds even for gangs that lost tasks to other
    preemptors.
    """
    by_gang = np.argsort(groups.gang, kind="stable")
    start = np.searchsorted(groups.gang[by_gang], np.arange(len(wholes) + 1)).tolist()
    for j, gang in enumerate(wholes):
        mine = by_gang[start[j] : start[j + 1]]
        if gang.may_end and gang.core > 1:
            yield _make_unit(groups, mine, gang.core, is_exact=is_exact)
        for p, part in enumerate(gang.parts):
            if part.may_end and part.core > 1:
                members = mine[groups.part[mine] == p]
                yield _make_unit(groups, members, part.core, is_exact=is_exact)


def _make_unit(groups: Groups, mine: I64, core: int, *, is_exact: bool) -> Unit:
    request = np.repeat(groups.request[mine], groups.count[mine], axis=0)
    number = np.full(request.shape[1], core)
    if is_exact:
        number = np.maximum(core - (request == 0).sum(axis=0), 0)
    is_among_largest = np.arange(len(request))[::-1, None] < number
    size = np.where(is_among_largest, np.sort(request, axis=0), 0).sum(axis=0)
    return Unit(mine, len(request), size)


def _list_options(
    groups: Groups, kept: I64, units: Units, lent: tuple[Bool, Bool, I64], below: I64
) -> tuple[LendingOption, ...]:
    """Return the options of a lending constraint that protects the victim groups `kept`.

    An option is a resource and the tasks that may be the lender's last victims. `lent` holds two
    masks (R,) of resources, and the lender's excess (R,) of each resource. The second mask is for
    units that contain all of `kept`, the first mask for other units and for single tasks.
    """
    named, together, surplus = lent
    found = []
    for r in np.flatnonzero(named).tolist():
        for size in sorted(set(groups.request[kept, r].tolist())):
            last = kept[groups.request[kept, r] >= size]
            found.append(LendingOption(r, size, below, int(surplus[r]) - 1 + size, last))
    numbers = Counter(u for k in kept.tolist() for u in units.of_group[k])
    for u, number in sorted(numbers.items()):
        members, held, amounts = units.units[u]
        for r in np.flatnonzero(together if number == len(kept) else named).tolist():
            size = int(amounts[r])
            most = int(surplus[r]) - 1 + size
            found.append(LendingOption(r, size, below, most, members, held))
    return tuple(option for option in found if option.size > 0)


def _group_by_used_resources(
    groups: Groups, some: I64, due: Bool, units: Units
) -> Iterator[tuple[Bool, I64]]:
    """Yield masks (R,) of `due` resources, each with the victim groups that use these resources.

    Groups with equal masks are yielded separately if they are in different units that use further
    `due` resources. Groups that use no `due` resource are omitted.
    """
    if not len(some):
        return
    uses = (groups.request[some] > 0) & due
    of, first = row_groups(list(uses.T))
    for i, kind in enumerate(uses[first]):
        if kind.any():
            for kept in units.arrange(some[of == i], due & ~kind):
                yield kind, kept
