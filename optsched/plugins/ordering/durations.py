"""How long gangs are expected to run, and how levels count gangs that start by a value of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reservation import gang_end_ms
from optsched.plugins.objectives.admission import Started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

KEPT_BITS = 4
"""Leading binary digits that values keep: gangs of nearly the same value stay alike."""


def lengths_ms(problem: Problem) -> I64:
    """(G,) how long each gang would run that started now; 0 where nobody says, or it is done."""
    found = np.zeros(problem.num_gangs, np.int64)
    for gang in problem.open_gangs.tolist():
        found[gang] = gang_end_ms(problem.snapshot.gangs[gang], 0) or 0
    return found


def rounded(values: I64) -> I64:
    """Values cut to their leading `KEPT_BITS` binary digits; they lose less than an eighth."""
    _, exponent = np.frexp(np.maximum(values, 1).astype(np.float64))
    cut = np.maximum(exponent.astype(np.int64) - KEPT_BITS, 0)
    kept: I64 = (values >> cut) << cut
    return kept


def starts_by_value(
    name: str, unit: str, problem: Problem, tiers: Tiers, value: I64
) -> Sequence[Started]:
    """Gangs that start, one level a tier, each counted by its value (G,)."""
    gangs = problem.open_gangs
    starting = gangs[~problem.shapes.is_started[problem.shape_of[gangs]]]
    counted = np.zeros_like(value)
    counted[starting] = value[starting]
    return [
        Started(f"{name}, {tiers.names[t]}", unit, t, tiers.of, counted)
        for t in np.unique(tiers.of[starting]).tolist()
    ]
