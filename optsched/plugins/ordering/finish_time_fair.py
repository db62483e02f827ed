"""Gangs first that would end the latest against what their part of the cluster gave them alone.

Mathematics: models/formulation/finish_time_fair.md. Mahajan et al., "Themis", NSDI 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.ordering.durations import lengths_ms, rounded, starts_by_value
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.ledger import Ledger
    from optsched.plugins.objectives.admission import Started
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

WHOLE: Final = 1000
"""Ratios are counted in thousandths."""

_MOST: Final = 10**9


class FinishTimeFair(Rule):
    """Gangs in order of their finish-time ratio, the largest first; without estimate it is one."""

    name = "finish-time-fair"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`: only where a gang says how long it runs."""
        return _Latest(problem.derived(ratios)) if problem.derived(lengths_ms).any() else None

    def distinguish_gangs(self, problem: Problem) -> I64 | None:
        """See `Rule`: gangs that count differently."""
        return rounded(problem.derived(ratios)) if problem.derived(lengths_ms).any() else None

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[Started]:
        """See `Rule`."""
        value = rounded(problem.derived(ratios))
        return starts_by_value("finish time", "thousandths", problem, tiers, value)


def ratios(problem: Problem) -> I64:
    """(G,) finish-time ratio of each gang if it started now, in thousandths; at least 1."""
    length = problem.derived(lengths_ms)
    waited = np.maximum(problem.snapshot.taken_ms - problem.created_ms, 0)
    alone = np.maximum(length * np.maximum(_slowdown(problem), 1.0), 1.0)
    ratio = np.where(length > 0, WHOLE * (waited + length) / alone, WHOLE)
    return np.clip(np.floor(ratio), 1, _MOST).astype(np.int64)


def _slowdown(problem: Problem) -> F64:
    """(G,) how many equal parts of the cluster a gang fills, one part for each that is there."""
    shapes = problem.shapes
    counted = [i for i, r in enumerate(problem.resources) if r != PODS and problem.total[i]]
    request = np.zeros((len(shapes.shapes) + 1, len(counted)), np.int64)
    asked = shapes.count[:, None] * problem.classes.request[shapes.class_of][:, counted]
    np.add.at(request, shapes.shape_of_entry, asked)
    share = (request / problem.total[counted]).max(axis=1, initial=0.0)
    contending = sum(1 for gang in problem.snapshot.gangs if gang.tasks)
    slowdown: F64 = contending * share[problem.shape_of]
    return slowdown


class _Latest(Greedy):
    def __init__(self, ratio: I64) -> None:
        self._keys = [(-float(r),) for r in ratio.tolist()]

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return self._keys[gang]
