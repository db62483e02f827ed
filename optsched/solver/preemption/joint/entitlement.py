"""Rows of the joint model that allow evictions only for entitled gangs.

The rows state the conditions of `plugins.eviction.entitled`, summed over gangs. A task is evicted
only if some admitted gang is entitled to evict it. The model does not choose which gang is the
preemptor. For each pair of a reclaimer class and a lending queue, rows limit the amounts that the
reclaimer class reclaims and the lender gives back. A reclaimer class is a set of gang classes of
one queue that request the same resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.problem.arrays import row_groups
from optsched.problem.linear import Expression
from optsched.solver.preemption.sequential.limits import list_units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.solver.preemption.candidate_victims import SessionFacts
    from optsched.solver.preemption.sequential.eviction_problem import Groups, VictimGang
    from optsched.solver.preemption.sequential.limits import Unit

MOST_PAIRS = 2_000
"""Maximum number of (reclaimer class, lending queue) pairs with rows in a bounding model.

If there are more pairs, the model does not limit the amounts that each reclaimer class reclaims.
"""

MOST_EXACT_PAIRS = 200
"""Maximum number of (reclaimer class, lending queue) pairs in an exact model."""

_LOWEST = -(2**62)
_NOTHING = Expression.of([], [])


def add_entitlement_rows(
    form: Formulation,
    facts: SessionFacts,
    groups: Groups,
    evict: I64,
    who: Sequence[Bool],
    wholes: Sequence[VictimGang],
    able: EntitledClasses | None = None,
) -> tuple[I64, list[ReclaimPair]]:
    """Add rows that allow a victim only if some admitted gang is entitled to evict it.

    Returns the variables (K,) that count the reclaimed tasks of each victim group, and the pairs of
    a reclaimer class and a lending queue. The variable of a victim group is -1 if none of its tasks
    may be reclaimed.

    Parameters
    ----------
    groups, evict
        Groups of equal candidate victims, and the eviction variable (K,) of each group.
    who
        Masks (K,) of the groups that may be preempted, exchanged and reclaimed, as in `Candidates`.
    wholes
        Victim gangs that must keep their minimum or be evicted entirely.
    able
        Gang classes for which tasks may be evicted. None means a bounding model, in which tasks may
        be evicted for all gang classes and nonlinear conditions are omitted.

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
    everybody = np.ones(len(form.gangs.shape_of), np.bool_)
    preempts = everybody if able is None else able.preempt
    _add_preempt_rows(form, groups, np.where(own, threshold, 0), (evict, reclaim, own), preempts)
    if facts.due is None or not reclaimed.any():
        return reclaim, []
    reclaims = everybody if able is None else able.reclaim
    units = list(list_units(groups, wholes, is_exact=able is not None))
    rows_of = _Reclaiming(form, facts, groups, (evict, reclaim), reclaims, units)
    return reclaim, rows_of.add_rows(is_exact=able is not None)


def has_too_many_pairs(
    form: Formulation, facts: SessionFacts, groups: Groups, reclaimed: Bool, reclaims: Bool
) -> bool:
    """Return whether an exact model has more than `MOST_EXACT_PAIRS` reclaimer-lender pairs.

    `reclaimed` (K,) is the mask of the victim groups that may be reclaimed, `reclaims` (H,) the
    mask of the gang classes that may reclaim.
    """
    if facts.due is None or not reclaimed.any():
        return False
    columns = np.where(reclaimed, 0, -1)
    rows_of = _Reclaiming(form, facts, groups, (columns, columns), reclaims)
    return int(rows_of.find_due_pairs()[2].sum()) > MOST_EXACT_PAIRS


def _add_preempt_rows(
    form: Formulation,
    groups: Groups,
    threshold: I64,
    columns: tuple[I64, I64, Bool],
    preempts: Bool,
) -> None:
    """Allow preemption only if a task of a gang with priority above `threshold` is placed.

    For each victim group, the row is `evicted` − `reclaimed` ≤ `count` · `gain`. Here, `count` is
    the number of tasks in the group, and the binary variable `gain` is 1 only if a task of such a
    gang is placed.
    """
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
        _bound_by_gain(form, gain, able & preempts)
    rows = np.arange(len(mine))
    split = np.flatnonzero(reclaim[mine] >= 0)
    model.add_rows(
        np.concatenate([rows, split, rows]),
        np.concatenate([evict[mine], reclaim[mine[split]], gains[of]]),
        np.concatenate([np.ones_like(mine), -np.ones_like(split), -groups.count[mine]]),
        upper=np.zeros(len(mine), np.int64),
    )


def _bound_by_gain(form: Formulation, gain: int, classes: Bool) -> None:
    """Add the row `gain` ≤ number of placed tasks of the gang classes in a mask (H,)."""
    use = form.placed(np.ones_like(form.placed_factor), classes[form.gangs.gang_class_of])
    form.model.add_rows(0, np.append(use.variables, gain), np.append(use.coefficients, -1), lower=0)


class EntitledClasses(NamedTuple):
    """Masks (H,) of the gang classes that may preempt, and of the gang classes that may reclaim."""

    preempt: Bool
    reclaim: Bool


class ReclaimerClass(NamedTuple):
    """Gang classes of one queue whose tasks request the same resources.

    Attributes
    ----------
    always, sometimes
        (R,) masks of the resources that all tasks of the classes request, and of the resources that
        at least one task requests.

    """

    queue: int
    classes: Bool
    always: Bool
    sometimes: Bool


class ReclaimPair(NamedTuple):
    """A reclaimer class, a lending queue, and the binary variable that lets the class reclaim."""

    variable: int
    kind: ReclaimerClass
    lender: int


class _Reclaiming:
    """Builds the rows that restrict reclaiming; these rows share variables."""

    def __init__(
        self,
        form: Formulation,
        facts: SessionFacts,
        groups: Groups,
        columns: tuple[I64, I64],
        reclaims: Bool,
        units: Sequence[Unit] = (),
    ) -> None:
        assert facts.due is not None  # noqa: S101  the caller has checked the value
        assert facts.kept is not None  # noqa: S101
        self._form, self._facts, self._groups = form, facts, groups
        self._due, self._kept = facts.due, facts.kept
        self._evict, self._reclaim = columns
        self._reclaimed = self._reclaim >= 0
        self._reclaims = reclaims
        self._units = units
        self._within: dict[tuple[int, int], int] = {}
        self._ancestors_of: dict[int, I64] = {}

    def find_due_pairs(self) -> tuple[list[ReclaimerClass], I64, Bool]:
        """Return reclaimer classes, lending queues (L,), and a mask (L, I) of entitled classes.

        A reclaimer class is entitled if its queue deserves a share of a resource that the class
        requests. A reclaimer class is also entitled if an ancestor of its queue deserves such a
        share and is no ancestor of the lending queue.
        """
        above, due = self._facts.above, self._due
        lenders = np.unique(self._groups.queue[self._reclaimed])
        if not self._reclaims.any():
            return [], lenders, np.zeros((len(lenders), 0), np.bool_)
        gangs, request = self._form.gangs, self._form.problem.classes.request
        asks = request[gangs.class_of] > 0
        all_ask = np.ones((len(gangs.shape_of), asks.shape[1]), np.bool_)
        any_asks = np.zeros_like(all_ask)
        np.logical_and.at(all_ask, gangs.gang_class_of, asks)
        np.logical_or.at(any_asks, gangs.gang_class_of, asks)
        of, of_classes = row_groups((gangs.queue_of, *all_ask.T, *any_asks.T, self._reclaims))
        kinds = [
            ReclaimerClass(int(gangs.queue_of[h]), of == i, all_ask[h], any_asks[h])
            for i, h in enumerate(of_classes.tolist())
            if self._reclaims[h]
        ]
        queue_of = np.array([kind.queue for kind in kinds], np.int64)
        sometimes = np.array([kind.sometimes for kind in kinds])
        number, ancestor = np.nonzero(above[queue_of])
        is_owed: Bool = np.any((due[ancestor] > 0) & sometimes[number], axis=1)
        number, ancestor = number[is_owed], ancestor[is_owed]
        first = np.searchsorted(number, np.arange(len(kinds)))
        apart = np.pad(~above[lenders[:, None], ancestor], ((0, 0), (0, 1)))
        is_due: Bool = np.logical_or.reduceat(apart, first, axis=1)
        is_due[:, np.bincount(number, minlength=len(kinds)) == 0] = False
        is_due &= lenders[:, None] != queue_of
        return kinds, lenders, is_due

    def add_rows(self, *, is_exact: bool) -> list[ReclaimPair]:
        """Add the rows for all lending queues and entitled reclaimer classes; return the pairs."""
        groups, model = self._groups, self._form.model
        kinds, lenders, is_due = self.find_due_pairs()
        claims = is_exact or int(is_due.sum()) <= MOST_PAIRS
        found: list[ReclaimPair] = []
        for lender, due in zip(lenders.tolist(), is_due, strict=True):
            able = [kinds[i] for i in np.flatnonzero(due).tolist()]
            mine = np.flatnonzero((self._reclaim >= 0) & (groups.queue == lender))
            pairs = model.add_variables(0, np.ones(len(able) if claims else 1, np.int64))
            if claims:
                mates = [
                    ReclaimPair(v, kind, lender)
                    for v, kind in zip(pairs.tolist(), able, strict=True)
                ]
                found += mates
                for pair in mates:
                    _bound_by_gain(self._form, pair.variable, pair.kind.classes)
                    self._add_claim_rows(pair, is_exact=is_exact)
            else:
                some = np.zeros(len(self._form.start), np.bool_)
                for kind in able:
                    some |= kind.classes
                _bound_by_gain(self._form, int(pairs[0]), some)
            rows = np.arange(len(mine))
            model.add_rows(
                np.concatenate([rows, np.repeat(rows, len(pairs))]),
                np.concatenate([self._reclaim[mine], np.tile(pairs, len(mine))]),
                np.concatenate([np.ones_like(mine), -np.repeat(groups.count[mine], len(pairs))]),
                upper=np.zeros(len(mine), np.int64),
            )
            if is_exact:
                # At most one reclaimer class reclaims from a lending queue, so that one gang can be
                # the preemptor of all victims of the queue.
                model.add_rows(0, pairs, 1, upper=1)
                for pair in found[len(found) - len(able) :]:
                    self._add_lender_rows(lender, mine, [pair.kind], pair.variable)
            elif able:
                self._add_lender_rows(lender, mine, able)
        return found

    def _ancestors(self, queue: int) -> I64:
        """Return the indices of a queue and its ancestors in ascending order."""
        if queue not in self._ancestors_of:
            self._ancestors_of[queue] = np.flatnonzero(self._facts.above[queue])
        return self._ancestors_of[queue]

    def _add_claim_rows(self, pair: ReclaimPair, *, is_exact: bool) -> None:
        """Add rows that keep a reclaiming queue within its deserved share of each resource."""
        requested = pair.kind.sometimes if is_exact else pair.kind.always
        line = self._ancestors(pair.kind.queue)
        # The usage of a common ancestor of the reclaiming and the lending queue does not grow.
        for a in line[~self._facts.above[pair.lender, line]].tolist():
            for r in np.flatnonzero(requested & (self._due[a] > 0)).tolist():
                if (a, r) not in self._within:
                    # `within` is 1 only if the queue uses at most its deserved share.
                    form, model = self._form, self._form.model
                    problem = form.problem
                    below = problem.queues.subtree[a]
                    use, evicted = self._gain(a, r), form.evicted(r, below)
                    held = int(problem.queues.allocated[below, r].sum())
                    most = int(self._due[a, r]) - held
                    largest = min(
                        int(model.bounds[1][use.variables] @ use.coefficients),
                        int(problem.idle[:, r].sum()),
                    )
                    slack = max(largest - most, 0)
                    (within,) = model.add_variables(0, 1).tolist()
                    model.add_rows(
                        0,
                        np.concatenate([use.variables, evicted.variables, [within]]),
                        np.concatenate([use.coefficients, -evicted.coefficients, [slack]]),
                        upper=most + slack,
                    )
                    self._within[a, r] = int(within)
                self._form.model.add_row([pair.variable, self._within[a, r]], [1, -1], upper=0)

    def _gain(self, queue: int, resource: int) -> Expression:
        """Return how much of a resource the placed tasks of a queue and its descendants request."""
        form, gangs = self._form, self._form.gangs
        below = form.problem.queues.subtree[queue][gangs.queue_of[gangs.gang_class_of]]
        return form.placed(form.problem.classes.request[gangs.class_of, resource], below)

    def _add_lender_rows(
        self, lender: int, mine: I64, able: Sequence[ReclaimerClass], pair: int | None = None
    ) -> None:
        """Add rows that let a lender give back its excess, but keep its guarantee.

        In an exact model, `able` has one reclaimer class, and the binary variable `pair` lets this
        class reclaim. In a bounding model, `pair` is None.
        """
        line = self._ancestors(lender)
        # Read only the lender's ancestors, because a queue has few ancestors.
        claimers = np.array([kind.queue for kind in able], np.int64)
        shared: Bool = np.any(self._facts.above[claimers[:, None], line], axis=0)
        any_asks = np.logical_or.reduce([kind.sometimes for kind in able])
        all_ask = np.logical_and.reduce([kind.always for kind in able])
        queues, groups = self._form.problem.queues, self._groups
        for a in line[~shared].tolist():
            due = self._due[a] > 0
            some, every = any_asks & due, all_ask & due
            if pair is not None:
                every = some
            kept = mine[(groups.request[mine] * every).any(axis=1)]
            counted = kept
            if pair is not None:
                below = queues.subtree[a][groups.queue]
                counted = np.flatnonzero((self._reclaim >= 0) & below)
            if self._facts.returns_by_use:
                some = due
                kept = mine[(groups.request[mine] * due).any(axis=1)]
            # A reclaim within a guarantee may evict gangs that are larger than the lender's excess.
            is_open = pair is None and any(
                self._facts.floors.owed[self._ancestors(kind.queue)].any() for kind in able
            )
            if len(kept) and not is_open:
                self._add_return_rows(a, (kept, mine, counted), np.flatnonzero(some), pair)
            for r in np.flatnonzero(queues.guarantee[a]).tolist():
                left = int(queues.allocated[queues.subtree[a], r].sum() - queues.guarantee[a, r])
                gain, leaves = self._gain(a, r), mine
                if pair is not None:
                    gain, leaves = _NOTHING, counted
                self._form.model.add_rows(
                    0,
                    np.append(self._reclaim[leaves], gain.variables),
                    np.append(groups.request[leaves, r], -gain.coefficients),
                    upper=max(left, 0),
                )

    def _add_return_rows(
        self, queue: int, victims: tuple[I64, I64, I64], named: I64, pair: int | None
    ) -> None:
        """Require that a lender has an excess until its last victim is evicted.

        The last victim is one task, or the tasks that a gang or subgroup loses together. Victims of
        preemption within the queue are ignored, because they may be evicted after the reclaimed
        tasks. `victims` holds three arrays of victim groups: protected groups, all groups of the
        lender, and the groups whose evictions reduce what the lender holds.
        """
        model, groups, queues = self._form.model, self._groups, self._form.problem.queues
        kept, mine, counted = victims
        (lends,) = model.add_variables(0, 1)
        ones = np.ones(len(kept), np.int64)
        total = int(groups.count[kept].sum())
        model.add_rows(0, np.append(self._reclaim[kept], lends), np.append(ones, -total), upper=0)
        picks: list[int] = []
        together = [
            unit
            for unit in self._units
            if np.isin(unit.members, kept).any() and (self._reclaim[unit.members] >= 0).all()
        ]
        # In a bounding model, some tasks of a gang that is evicted entirely may be preempted
        # instead of reclaimed.
        leaves = self._evict if pair is None else self._reclaim
        for r in named.tolist():
            held = int(queues.allocated[queues.subtree[queue], r].sum())
            # Exact models ignore amounts that the lender gains; otherwise, queues could reclaim
            # from each other in a cycle.
            gain = self._gain(queue, r) if pair is None else _NOTHING
            weights = groups.request[counted, r]
            largest = int(weights @ groups.count[counted])
            sizes = np.unique(groups.request[mine, r]).tolist()
            lasts = [
                (size, self._reclaim[mine[groups.request[mine, r] >= size]], 1) for size in sizes
            ]
            lasts += [(int(size[r]), leaves[members], held) for members, held, size in together]
            for size, last, need in lasts:
                if not size:
                    continue
                most = held - int(self._kept[queue, r]) - 1 + size
                slack = max(largest - most, 0)
                (pick,) = model.add_variables(0, 1).tolist()
                columns = np.concatenate([self._reclaim[counted], gain.variables, [pick]])
                factors = np.concatenate([weights, -gain.coefficients, [slack]])
                model.add_rows(0, columns, factors, upper=most + slack)
                enough = np.append(np.ones(len(last), np.int64), -need)
                model.add_rows(0, np.append(last, pick), enough, lower=0)
                picks.append(int(pick))
        if pair is None:
            model.add_rows(0, [*picks, lends], [*[1] * len(picks), -1], lower=0)
        else:
            model.add_rows(0, [*picks, lends, pair], [*[1] * len(picks), -1, -1], lower=-1)
