"""Levels over gangs: who starts, and how many tasks are placed where that is a choice.

Mathematics: models/formulation/admission.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.plugins.objectives.weights import Weights, dominant_weights
from optsched.problem.linear import Expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.outcome import Outcome
    from optsched.problem.arrays import I64
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

ADMISSION = "admission, "
"""How the names of the levels of gangs that start begin."""


def admission_levels(problem: Problem, tiers: Tiers) -> Sequence[Started]:
    """Gangs that start, one level a tier."""
    gangs = problem.open_gangs
    weights = problem.derived(dominant_weights)
    by_shape = _start_weights(problem, weights)
    weight = np.append(by_shape, 0)[problem.shape_of] * tiers.factor
    starting = gangs[weight[gangs] > 0]
    return [
        Started(f"{ADMISSION}{tiers.names[t]}", weights.unit, t, tiers.of, weight)
        for t in np.unique(tiers.of[starting]).tolist()
    ]


def task_levels(problem: Problem, tiers: Tiers) -> Sequence[Placed]:
    """Tasks that are placed, one level a tier, where their number is a choice of its own."""
    gangs = problem.open_gangs
    rigid = np.array([s.is_rigid for s in problem.shapes.shapes], np.bool_)
    elastic = gangs[~rigid[problem.shape_of[gangs]]]
    weights = problem.derived(dominant_weights)
    return [
        Placed(f"tasks, {tiers.names[t]}", weights.unit, t, tiers.of, weights.of_class)
        for t in np.unique(tiers.of[elastic]).tolist()
    ]


def _start_weights(problem: Problem, weights: Weights) -> I64:
    """(S,) weight of starting a gang of each shape; 0 for those that already run.

    A gang that leaves as a whole in this session gains nothing by starting again.
    """
    shapes = problem.shapes
    whole = np.zeros(len(shapes.shapes), np.int64)
    np.add.at(whole, shapes.shape_of_entry, shapes.count * weights.of_class[shapes.class_of])
    least = np.array([s.counted_least for s in shapes.shapes], np.int64)
    part = whole * least // np.maximum(shapes.num_tasks, 1)
    is_restart = np.array([s.least_before == 0 for s in shapes.shapes], np.bool_)
    return np.where(shapes.is_started | is_restart, 0, np.maximum(part, 1))


@dataclass(frozen=True, eq=False)
class Started:
    """Gangs of one tier that start, each counted by the dominant resource of its minimum.

    `weight` and `tier_of` are (G,).
    """

    name: str
    unit: str
    tier: int
    tier_of: I64
    weight: I64
    sense: Sense = Sense.MAX

    def _by_gang(self, problem: Problem) -> I64:
        """(G,) what each gang adds by starting."""
        counted = (self.tier_of == self.tier) & (problem.shape_of >= 0)
        return np.where(counted, self.weight, 0)

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        return int(self._by_gang(outcome.problem)[outcome.num_seated > 0].sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`: all of them start."""
        return int(self._by_gang(problem).sum())

    def encode(self, form: Formulation) -> Expression:
        """Σ_h weight[h]·y[h]."""
        gangs = form.gangs
        counted = (gangs.tier_of == self.tier) & (form.start >= 0)
        first = gangs.members[gangs.member_start[:-1][counted]]
        return Expression.of(form.start[counted], self.weight[first])


@dataclass(frozen=True, eq=False)
class Placed:
    """Tasks of one tier that are placed, each counted by its dominant resource.

    `weight` is (C,), `tier_of` (G,).
    """

    name: str
    unit: str
    tier: int
    tier_of: I64
    weight: I64
    sense: Sense = Sense.MAX

    def _by_task(self, problem: Problem) -> I64:
        """(T,) what each task adds by being placed."""
        counted = self.tier_of[problem.gang_of] == self.tier
        return np.where(counted, self.weight[problem.task_class], 0)

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        return int(self._by_task(outcome.problem)[outcome.seated].sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`: all of them are placed."""
        return int(self._by_task(problem).sum())

    def encode(self, form: Formulation) -> Expression:
        """Σ_f weight[f]·x[f]."""
        gangs = form.gangs
        counted = gangs.tier_of[gangs.gang_class_of] == self.tier
        return form.placed(self.weight[gangs.class_of], counted)
