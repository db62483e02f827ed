"""Levels that sum the weights of started gangs or placed tasks; a weight is a dominant share.

Mathematics: models/formulation/admission.md. The dominant share of a request is max_r request[r] /
total[r] (Ghodsi et al., NSDI 2011). If the same resource is dominant for every gang, a weight is
the amount of this resource instead, because amounts are exact and easy to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.problem.arrays import ranges, sparse_table
from optsched.problem.linear import Expression
from optsched.units import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.outcome import Outcome
    from optsched.problem.arrays import F64, I64
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangShape
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
    """Return the weights of task classes: amounts of one resource or fractions of the cluster.

    The unit depends on the pending tasks of all gangs, even of gangs that cannot start. The unit
    must not depend on victims, because the values of plans with different victims are compared.
    """
    counted = [i for i, r in enumerate(problem.resources) if r != PODS]
    request, total = problem.classes.request[:, counted], problem.total[counted]
    columns = {problem.resources[i]: number for number, i in enumerate(counted)}
    requests = {r for stake in problem.gang_columns.stakes[1] for r in stake.requests}
    every = sparse_table(requests, columns)
    every = every[every.any(axis=1)]
    if not len(every):
        return Weights("tasks", np.ones(len(request), np.int64))
    share = _shares(every, total)
    leads = np.flatnonzero((share >= share.max(axis=1)[:, None]).all(axis=0)).tolist()
    if leads:
        # Choose the resource by name, because its index depends on earlier sessions. Devices take
        # precedence over memory and CPU.
        names = [problem.resources[i] for i in counted]
        column = max(leads, key=lambda i: (names[i] not in (CPU, MEMORY), names[i]))
        units = {CPU: "milli-CPU", MEMORY: "bytes of memory"}
        unit = units.get(names[column], names[column])
        return Weights(unit, np.maximum(request[:, column], 1))
    largest = _shares(request, total).max(axis=1, initial=0.0)
    parts = np.rint(np.minimum(largest, 1.0) * PPB)
    return Weights("ppb of the cluster", np.maximum(parts.astype(np.int64), 1))


def _shares(request: I64, total: I64) -> F64:
    """Return requests (K, R) as shares of the cluster; infinite if no node has the resource."""
    share: F64 = np.where(
        total > 0, request / np.maximum(total, 1), np.where(request > 0, np.inf, 0.0)
    )
    return share


ADMISSION = "admission, "
"""The name prefix of admission levels."""


def admission_levels(problem: Problem, tiers: Tiers) -> Sequence[Started]:
    """Return levels that sum the weights of the gangs that start, one level per tier.

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
    """Return levels that sum the weights of placed tasks, one per tier that has elastic gangs.

    The start of an elastic gang does not determine how many of its tasks are placed. A gang that
    this session evicts entirely does not count, even if it starts again.
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
    """Return whether this session evicted a gang entirely, so that it must start again."""
    return shape.least_before == 0 and not shape.is_started


@dataclass(frozen=True, eq=False)
class _TierLevel:
    """A level that sums weights over the gangs of one tier; `tier_of` (G,) is each gang's tier.

    A policy may have one level of this kind per tier.
    """

    name: str
    unit: str
    tier: int
    tier_of: I64
    weight: I64
    sense: Sense = Sense.MAX

    @cached_property
    def _gangs(self) -> I64:
        """The indices (m,) of the gangs in the tier."""
        return np.flatnonzero(self.tier_of == self.tier)


class Started(_TierLevel):
    """A level that sums the weights (G,) of the gangs of one tier that start."""

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        gangs = self._gangs
        starts = (outcome.problem.shape_of[gangs] >= 0) & (outcome.num_assigned[gangs] > 0)
        return int(self.weight[gangs[starts]].sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`. The result is the level's value if all gangs of the tier start."""
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
    """A level that sums the weights of the placed tasks of one tier.

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
        """See `Level`. The result is the level's value if all tasks of the tier are placed."""
        return int(self.weight[problem.task_class[self.tasks(problem)]].sum())

    def encode(self, form: Formulation) -> Expression:
        """Return Σ_f weight[f] · x[f] over the sets f of equal tasks in the tier's gangs.

        x[f] is the number of placed tasks of f.
        """
        gangs = form.gangs
        first = gangs.members[gangs.member_start[:-1]]
        counted = (self.tier_of[first] == self.tier)[gangs.gang_class_of]
        return form.placed(self.weight[gangs.class_of], counted)
