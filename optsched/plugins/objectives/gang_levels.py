"""Levels that sum the weights of started gangs or placed tasks, and levels of queue shortfalls.

Mathematics: models/formulation/admission.md and models/formulation/shortfall.md.

The weight of a task is its dominant share max_r request[r] / total[r] (Ghodsi et al., NSDI 2011).
If the same resource is dominant for every gang, the weight is instead the request for this resource
in base units, because base units are exact and easy to read. Shortfalls are measured against
guarantees and fair shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.bounded_cache import SharedObjects
from optsched.cluster.decisions import Sense
from optsched.problem.arrays import ranges, sparse_table
from optsched.problem.linear import Expression
from optsched.units import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Gang
    from optsched.plugins.accounting import Outcome
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow, GangShape
    from optsched.problem.tiers import Tiers

PPB = 1_000_000_000


@dataclass(frozen=True, eq=False)
class Weights:
    """The weight of one task of each class in the admission levels.

    Attributes
    ----------
    unit
        The unit of the weights: the base unit of a resource, or parts per billion of the cluster.
    of_class
        (C,) weight of one task of each class; at least 1, even for best-effort tasks.

    """

    unit: str
    of_class: I64


def dominant_weights(problem: Problem) -> Weights:
    """Return the weights of task classes: requests for one resource, or dominant shares.

    The unit of the weights depends on the pending tasks of all gangs, including gangs that cannot
    start. The unit of the weights must not depend on victims, because plans with different victims
    are compared by weight.
    """
    counted = [i for i, r in enumerate(problem.resources) if r != PODS]
    request, total = problem.classes.request[:, counted], problem.total[counted]
    columns = {problem.resources[i]: number for number, i in enumerate(counted)}
    requests = {r for stake in problem.gang_columns.stakes[1] for r in stake.requests}
    every = sparse_table(requests, columns)
    every = every[every.any(axis=1)]
    if not len(every):
        return Weights("tasks", np.ones(len(request), np.int64))
    share = _divide_by_total(every, total)
    leads = np.flatnonzero((share >= share.max(axis=1)[:, None]).all(axis=0)).tolist()
    if leads:
        # If several resources are dominant for every gang, the resource is chosen by name, because
        # resource indices depend on earlier sessions. Devices take precedence over memory and CPU.
        names = [problem.resources[i] for i in counted]
        column = max(leads, key=lambda i: (names[i] not in (CPU, MEMORY), names[i]))
        units = {CPU: "milli-CPU", MEMORY: "bytes of memory"}
        unit = units.get(names[column], names[column])
        return Weights(unit, np.maximum(request[:, column], 1))
    largest = _divide_by_total(request, total).max(axis=1, initial=0.0)
    parts = np.rint(np.minimum(largest, 1.0) * PPB)
    return Weights("ppb of the cluster", np.maximum(parts.astype(np.int64), 1))


def _divide_by_total(request: I64, total: I64) -> F64:
    """Return requests (K, R) as fractions of the cluster; infinite if no node has the resource."""
    share: F64 = np.where(
        total > 0, request / np.maximum(total, 1), np.where(request > 0, np.inf, 0.0)
    )
    return share


ADMISSION = "admission, "
"""The name prefix of admission levels."""


def admission_levels(problem: Problem, tiers: Tiers) -> Sequence[Started]:
    """Return levels that sum the weights of the gangs that start, one level per priority tier.

    Gangs that already run, and gangs that this session evicts entirely, do not count.
    """
    gangs, shapes = problem.open_gangs, problem.shapes
    weights = problem.derived(dominant_weights)
    whole = np.zeros(len(shapes.shapes), np.int64)
    np.add.at(whole, shapes.shape_of_entry, shapes.count * weights.of_class[shapes.class_of])
    least = np.array([s.admitted_members for s in shapes.shapes], np.int64)
    part = whole * least // np.maximum(shapes.num_tasks, 1)
    is_restart = np.array([_is_restart(s) for s in shapes.shapes], np.bool_)
    by_shape = np.where(shapes.is_started | is_restart, 0, np.maximum(part, 1))
    weight = np.append(by_shape, 0)[problem.shape_of] * tiers.factor
    starting = gangs[weight[gangs] > 0]
    return [
        Started(f"{ADMISSION}{tiers.names[t]}", weights.unit, t, tiers.of, weight)
        for t in np.unique(tiers.of[starting]).tolist()
    ]


def task_levels(problem: Problem, tiers: Tiers) -> Sequence[Placed]:
    """Return levels that sum weights of placed tasks, for each priority tier with elastic gangs.

    An elastic gang can start with different numbers of placed tasks. A gang that this session
    evicts entirely does not count, even if it starts again.
    """
    gangs = problem.open_gangs
    shapes = problem.shapes.shapes
    rigid = np.array([s.is_rigid for s in shapes], np.bool_)
    is_restart = np.append(np.array([_is_restart(s) for s in shapes], np.bool_), False)
    gangs = gangs[~is_restart[problem.shape_of[gangs]]]
    elastic = gangs[~rigid[problem.shape_of[gangs]]]
    weights = problem.derived(dominant_weights)
    tier_of = np.where(is_restart[problem.shape_of], -1, tiers.of)
    return [
        Placed(f"tasks, {tiers.names[t]}", weights.unit, t, tier_of, weights.of_class)
        for t in np.unique(tiers.of[elastic]).tolist()
    ]


def _is_restart(shape: GangShape) -> bool:
    """Return whether this session evicted a gang that ran, so that the gang must start again."""
    return shape.least_before == 0 and not shape.is_started


@dataclass(frozen=True, eq=False)
class _TierLevel:
    """A level that sums weights over the gangs of one priority tier.

    `tier_of` (G,) is the priority tier of each gang.
    """

    name: str
    unit: str
    tier: int
    tier_of: I64
    weight: I64
    sense: Sense = Sense.MAX

    @cached_property
    def _gangs(self) -> I64:
        return np.flatnonzero(self.tier_of == self.tier)


class Started(_TierLevel):
    """A level that sums the weights (G,) of those gangs of one priority tier that start."""

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        gangs = self._gangs
        starts = (outcome.problem.shape_of[gangs] >= 0) & (outcome.num_assigned[gangs] > 0)
        return int(self.weight[gangs[starts]].sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`. Returns the level's value if all gangs of the priority tier start."""
        return int(self.weight[self._gangs[problem.shape_of[self._gangs] >= 0]].sum())

    def encode(self, form: Formulation) -> Expression:
        """Return Σ_h weight[h] · y[h] over the gang classes of the tier.

        y[h] is the number of started gangs of class h.
        """
        gangs = form.gangs
        counted = (gangs.tier_of == self.tier) & (form.start >= 0)
        first = gangs.members[gangs.member_start[:-1][counted]]
        return Expression.of(form.start[counted], self.weight[first])


class Placed(_TierLevel):
    """A level that sums the weights of the placed tasks of one priority tier.

    `weight` (C,) is the weight of one task of each class. Gangs that do not count have tier -1.
    """

    def tasks(self, problem: Problem) -> I64:
        """Return the indices of the pending tasks of the tier's gangs."""
        starts = problem.task_start[self._gangs]
        return ranges(starts, problem.task_start[self._gangs + 1] - starts)

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        tasks = self.tasks(outcome.problem)
        placed = tasks[outcome.node_of_coming[tasks] >= 0]
        return int(self.weight[outcome.problem.task_class[placed]].sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`. Returns the level's value if all tasks of the priority tier are placed."""
        return int(self.weight[problem.task_class[self.tasks(problem)]].sum())

    def encode(self, form: Formulation) -> Expression:
        """Return Σ_f weight[f] · x[f] over each set f of equal tasks in the tier's gangs.

        x[f] is the number of placed tasks of f.
        """
        gangs = form.gangs
        first = gangs.members[gangs.member_start[:-1]]
        counted = (self.tier_of[first] == self.tier)[gangs.gang_class_of]
        return form.placed(self.weight[gangs.class_of], counted)


@dataclass(frozen=True, eq=False)
class Shortfall:
    """A level that minimises the total amount by which the usage of queues falls short of targets.

    Attributes
    ----------
    member
        (K, Q) True for the queues whose usage counts toward each target.
    target
        (K, R) the targets in base units; 0 for resources without a target.
    grid
        Number of steps into which the cluster total of a resource is divided. The step size is a
        multiple of the greatest common divisor of all task requests. A shortfall is rounded up to
        whole steps.

    """

    name: str
    unit: str
    member: Bool
    target: I64
    grid: int
    sense: Sense = Sense.MIN

    def _step(self, problem: Problem) -> I64:
        unit = problem.derived(_find_units)
        step: I64 = np.maximum(-(-problem.total // (self.grid * unit)), 1) * unit
        return step

    def _missing(self, problem: Problem, held: I64) -> I64:
        """Return by how many steps (K, R) the usage `held` (Q, R) falls short of each target."""
        step = self._step(problem)
        missing: I64 = -(-np.maximum(self.target - self._sum_members(held), 0) // step)
        return missing

    @cached_property
    def _pairs(self) -> tuple[I64, I64]:
        target, queue = np.nonzero(self.member)
        return target, queue

    def _sum_members(self, held: I64) -> I64:
        target, queue = self._pairs
        used = np.zeros_like(self.target)
        np.add.at(used, target, held[queue])
        return used

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        return int(self._missing(outcome.problem, outcome.queue_allocated).sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`. In the ideal case, no target has a shortfall."""
        return 0

    def encode(self, form: Formulation) -> Expression:
        """Return Σ d[k, r], the total shortfall in steps, and add the constraints that define d.

        The constraints are step[r] · d[k, r] + Σ request · (x − evicted) ≥ target − allocated.

        d[k, r] ≥ 0 is the shortfall of resource r from target k, in steps. x is the number of
        placed tasks.
        """
        problem, gangs = form.problem, form.gangs
        held = problem.queues.allocated
        if form.victims is not None:
            held = held.copy()
            taken = form.victims.number[:, None] * form.victims.request
            np.subtract.at(held, form.victims.queue_of, taken)
        missing = self._missing(problem, held)
        lacks = self.target - self._sum_members(problem.queues.allocated)
        request = problem.classes.request[gangs.class_of]
        step = self._step(problem)
        k, r = np.nonzero(np.asarray(missing > 0))
        short = form.model.add_variables(0, missing[k, r])
        place = np.full(missing.shape, -1, np.int64)
        place[k, r] = np.arange(len(k))
        queue = gangs.queue_of[gangs.gang_class_of]
        at, f, q = _match_targets(self.member[:, queue], request, place)
        parts = [(at, form.placed_variable[f], form.placed_factor[f] * request[f, q])]
        if form.victims is not None:
            of_victims = np.pad(self.member, ((0, 0), (0, 1)))[:, form.victims.queue_of]
            at, v, q = _match_targets(of_victims, form.victims.request, place)
            parts.append((at, form.victims.variables[v], -form.victims.request[v, q]))
        parts.append((np.arange(len(k)), short, step[r]))
        row, variable, factor = (np.concatenate(part) for part in zip(*parts, strict=True))
        form.model.add_rows(row, variable, factor, lower=lacks[k, r])
        return Expression.of(short, np.ones_like(short))


def _find_units(problem: Problem) -> I64:
    """Return the greatest common divisor (R,) of the task requests for each resource."""
    unit = np.ones(len(problem.resources), np.int64)
    _, units = problem.gang_columns.codes(_find_units_of_row)
    divisor_of = _find_common_divisors(each.amounts for each in units)
    for r, name in enumerate(problem.resources):
        unit[r] = divisor_of.get(name, 1)
    return unit


class _Units:
    """The greatest common divisors of a gang's requests; instances are compared by identity."""

    def __init__(self, amounts: Amounts) -> None:
        self.amounts = amounts


_UNITS: Final[SharedObjects[_Units]] = SharedObjects(_Units)


def _find_units_of_row(row: GangRow) -> _Units:
    return row.gang.derived(_find_units_of_gang)


def _find_units_of_gang(gang: Gang) -> _Units:
    requests = {id(task.shape): task.shape.request for task in gang.tasks}
    return _UNITS.intern(tuple(_find_common_divisors(requests.values()).items()))


def _find_common_divisors(amounts: Iterable[Amounts]) -> dict[str, int]:
    """Return the greatest common divisor of the positive requests for each resource."""
    found: dict[str, int] = {}
    for name, amount in chain.from_iterable(amounts):
        if amount > 0:
            found[name] = gcd(found.get(name, 0), amount)
    return found


def _match_targets(member: Bool, request: I64, place: I64) -> tuple[I64, I64, I64]:
    """Return the requests that count toward targets, as parallel arrays.

    The arrays contain, for each request, the constraint row, the index on axis m, and the resource.
    `request` (m, R) contains the requests, and `member` (K, m) is True if a request counts toward a
    target. `place` (K, R) is the constraint row of each target and resource; -1 for no row.
    """
    is_due: Bool = np.any(place >= 0, axis=1)
    k, m = np.nonzero(member & is_due[:, None])
    pair, r = np.nonzero((request[m] > 0) & (place[k] >= 0))
    return place[k[pair], r], m[pair], r
