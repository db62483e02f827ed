"""The aggregated model of a session: how many gangs of each class start, and with which tasks.

This is the part of the formulation that never sees a node. Rules add their rows to it; an engine
joins it to nodes through the supply rows, one a task class, either node by node or by
configurations of node classes.

Alike gangs (shape, queue and tier) are one gang class h with a multiplicity. Variables:

- y[h] ∈ [0, m[h]]: gangs of the class that start;
- x[f] ∈ [0, m[h]·count[f]]: tasks of entry f = (h, role, task class) that are placed. Where a gang
  starts whole or not at all, x[f] is count[f]·y[h] and has no variable of its own.

A solution in these totals can always be dealt out to single gangs: give the tasks of the entries in
turn to the admitted gangs, so that two gangs never differ by more than one task in any run of
entries; every minimum over a run then holds for each gang because it holds on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.problem.arrays import frozen, ranges, row_groups
from optsched.problem.domain_choices import Choices
from optsched.problem.linear import Expression, LinearModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.gang_nodes import GangNodes
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


@dataclass(frozen=True, eq=False)
class GangClasses:
    """Axis H of gang classes and axis F of their entries.

    Attributes
    ----------
    shape_of, queue_of, tier_of, multiplicity
        (H,) gang shape, queue, tier (0 is the most important) and number of gangs.
    start
        (H+1,) entries of a class.
    members, member_start
        Gangs of each class, oldest first: class h has members[member_start[h]:member_start[h+1]].
    class_of, per_gang
        (F,) task class of an entry and its tasks in one gang.
    entry_of
        (F,) the entry on axis E of the problem.
    gang_class_of
        (F,) the gang class of an entry.

    """

    shape_of: I64
    queue_of: I64
    tier_of: I64
    multiplicity: I64
    start: I64
    members: I64
    member_start: I64
    class_of: I64
    per_gang: I64
    entry_of: I64
    gang_class_of: I64

    def __post_init__(self) -> None:
        frozen(*vars(self).values())


def gang_classes(
    problem: Problem, tiers: Tiers, apart: Bool | None = None, kinds: Sequence[I64] = ()
) -> GangClasses:
    """Group the gangs that can be decided on.

    Parameters
    ----------
    problem
        The problem.
    tiers
        Gangs of different tiers or marks are not alike.
    apart
        (G,) gangs that stay classes of their own; None when none has to.
    kinds
        (G,) each; gangs that differ in any are not alike.

    """
    gangs = problem.open_gangs
    keys = (tiers.of[gangs], problem.queue_of[gangs], problem.shape_of[gangs])
    alone = np.zeros(len(gangs), np.int64)
    if apart is not None:
        alone = np.where(apart[gangs], gangs + 1, 0)
    apart_by = (kind[gangs] for kind in kinds)
    group, first = row_groups((*keys, tiers.mark[gangs], alone, *apart_by))
    names = np.arange(len(gangs))  # gangs are in key order, so the index ends the order
    oldest = np.lexsort((names, problem.created_ms[gangs], group))
    multiplicity = np.bincount(group, minlength=len(first)).astype(np.int64)
    shape_of = keys[2][first]
    lengths = np.diff(problem.shapes.start)[shape_of]
    entry_of = ranges(problem.shapes.start[shape_of], lengths)
    return GangClasses(
        shape_of=shape_of,
        queue_of=keys[1][first],
        tier_of=keys[0][first],
        multiplicity=multiplicity,
        start=_offsets(lengths),
        members=gangs[oldest],
        member_start=_offsets(multiplicity),
        class_of=problem.shapes.class_of[entry_of],
        per_gang=problem.shapes.count[entry_of],
        entry_of=entry_of,
        gang_class_of=np.repeat(np.arange(len(first), dtype=np.int64), lengths),
    )


def _offsets(lengths: I64) -> I64:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


class Victims(NamedTuple):
    """Axis K of running tasks of one kind that may be evicted.

    Attributes
    ----------
    variables
        (K,) variable that counts the evicted tasks.
    number
        (K,) the most it can be.
    queue_of
        (K,) queue that holds them.
    request
        (K, R) what one of them holds.

    """

    variables: I64
    number: I64
    queue_of: I64
    request: I64


class Formulation:
    """The aggregated model under construction.

    Attributes
    ----------
    problem, gangs
        What it is about.
    model
        Variables and rows so far.
    start
        (H,) variable y of each gang class, -1 for gangs that already run.
    placed_variable, placed_factor
        (F,) the tasks placed of an entry are factor · variable.
    supply
        (C,) row of each task class: Σ placed − Σ supplied ≤ 0. An engine adds what nodes supply.
    choices
        Where in the network gangs go, as far as rules have something to say about it.
    gang_nodes
        Tasks of single gangs on single nodes; None where no rule looks at them.
    victims
        Running tasks whose eviction lowers what queues hold; None where nothing is evicted.

    """

    def __init__(self, problem: Problem, gangs: GangClasses) -> None:
        self.problem = problem
        self.gangs = gangs
        self.model = LinearModel()
        started = problem.shapes.is_started[gangs.shape_of]
        self.start = np.full(len(started), -1, np.int64)
        self.start[~started] = self.model.add_variables(0, gangs.multiplicity[~started])
        rigid = ~started & _is_rigid(problem)[gangs.shape_of]
        flexible = ~rigid[gangs.gang_class_of]
        most = gangs.per_gang * gangs.multiplicity[gangs.gang_class_of]
        self.placed_variable = self.start[gangs.gang_class_of].copy()
        self.placed_variable[flexible] = self.model.add_variables(0, most[flexible])
        self.placed_factor = np.where(flexible, 1, gangs.per_gang)
        self.is_flexible: Bool = flexible
        self.choices = Choices(self)
        self.victims: Victims | None = None
        self.gang_nodes: GangNodes | None = None
        num_classes = len(problem.classes.shapes)
        self.supply = self.model.add_rows(
            gangs.class_of,
            self.placed_variable,
            self.placed_factor,
            upper=np.zeros(num_classes, np.int64),
        )

    def placed(self, weight: I64, entries: Bool | None = None) -> Expression:
        """Σ weight · tasks placed, over all entries or over some of them (masks over F)."""
        chosen = slice(None) if entries is None else entries
        return Expression.of(self.placed_variable[chosen], (self.placed_factor * weight)[chosen])

    def add_usage_rows(self, member: Bool, limit: I64) -> None:
        """Keep what queues take of resources below limits.

        Parameters
        ----------
        member
            (K, Q) the queues that a limit counts together.
        limit
            (K, R) base units that may still be placed under them; UNLIMITED where there is none.
            A limit binds only tasks that ask for the resource, and never below zero.

        """
        request = self.problem.classes.request[self.gangs.class_of]
        counted = member[:, self.gangs.queue_of[self.gangs.gang_class_of]]
        if self.victims is None:
            self._add_plain_usage(counted, request, limit)
            return
        for row, resource in zip(*np.nonzero(limit < _ENOUGH), strict=True):
            entries = counted[row] & (request[:, resource] > 0)
            if not entries.any():
                continue
            use = self.placed(request[:, resource], entries)
            evicted = self.evicted(resource, member[row])
            if len(evicted.variables):
                self._add_released_row(use, evicted, int(limit[row, resource]))
                continue
            self.model.add_rows(
                0, use.variables, use.coefficients, upper=max(int(limit[row, resource]), 0)
            )

    def _add_plain_usage(self, counted: Bool, request: I64, limit: I64) -> None:
        """Add Σ request·x ≤ limit for each limit; (K, F) entries count, which request (F, R)."""
        is_limited = limit < _ENOUGH
        binds: Bool = np.any(is_limited, axis=1)
        k, f = np.nonzero(counted & binds[:, None])
        pair, resource = np.nonzero((request[f] > 0) & is_limited[k])
        row, entry = k[pair], f[pair]
        if not len(row):
            return
        number = row * limit.shape[1] + resource
        used, at = np.unique(number, return_inverse=True)
        self.model.add_rows(
            at,
            self.placed_variable[entry],
            self.placed_factor[entry] * request[entry, resource],
            upper=np.maximum(limit.ravel()[used], 0),
        )

    def evicted(self, resource: int, member: Bool) -> Expression:
        """Σ request · evicted of a resource, over the victims of some queues (Q,)."""
        if self.victims is None:
            return Expression.of([], [])
        chosen = np.append(member, False)[self.victims.queue_of]
        request = self.victims.request[chosen, resource]
        return Expression.of(self.victims.variables[chosen], request)

    def _add_released_row(self, use: Expression, evicted: Expression, limit: int) -> None:
        """Add use ≤ limit + evicted; below a negative sum nothing may be placed."""
        comes = list(zip(use.variables.tolist(), use.coefficients.tolist(), strict=True))
        goes = list(zip(evicted.variables.tolist(), evicted.coefficients.tolist(), strict=True))
        most = int(self.model.bounds[1][use.variables].max())
        self.model.add_room(comes, goes, limit, most)


_ENOUGH = 2**61


def _is_rigid(problem: Problem) -> Bool:
    return np.array([s.is_rigid for s in problem.shapes.shapes], np.bool_)
