"""Fill nodes that are already in use.

Mathematics: models/formulation/binpack.md. Volcano: `pkg/scheduler/plugins/binpack`, lines 206-261.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Rule
from optsched.units import CPU, MEMORY

TOP = 100.0

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.plugins.extension_points import Scorer
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem


@dataclass(frozen=True)
class Binpack(Rule):
    """score = 100 · weight · Σ_r w[r]·(used + request)[r]/allocatable[r] / Σ_r w[r].

    A node that any of these resources does not fit scores 0.

    Attributes
    ----------
    weight
        Weight of the whole score.
    resources
        Weight by resource; only these count, and only where the task asks for them.

    """

    name = "binpack"

    weight: int = 1
    resources: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """See `Rule`."""
        request = problem.classes.request[task_class]
        named = sorted(
            (r, weight)
            for name, weight in self.resources.items()
            if weight and (r := problem.index(name)) >= 0
        )
        counted = [(r, int(request[r]), weight) for r, weight in named if request[r]]
        if not counted or not self.weight:
            return None
        top = TOP * self.weight / sum(weight for _, _, weight in counted)
        scaled = [(r, asked, top * weight) for r, asked, weight in counted]

        def score(used: I64, offered: I64) -> F64:
            total = np.zeros(len(used))
            fits = np.ones(len(used), np.bool_)
            for r, asked, factor in scaled:
                busy = used[:, r] + asked
                fits &= busy <= offered[:, r]
                total += busy * factor / np.maximum(offered[:, r], 1)
            return np.where(fits, total, 0.0)

        return score

    def block_scores(
        self, problem: Problem, task_class: I64, used: I64, offered: I64
    ) -> F64 | None:
        """Return exactly what `scorer` gives, for classes and nodes (..., R) that broadcast."""
        request, weights = problem.classes.request, self.resources
        weighed = [(r, w) for r, name in enumerate(problem.resources) if (w := weights.get(name))]
        counted = np.zeros(len(request), np.int64)
        for r, weight in weighed:
            counted += weight * (request[:, r] > 0)
        top = TOP * self.weight / np.maximum(counted, 1)
        total = np.zeros(np.broadcast_shapes(task_class.shape, used.shape[:-1]))
        fits = np.ones(total.shape, np.bool_)
        for r, weight in weighed:
            asked = request[task_class, r]
            busy = used[..., r] + asked
            fits &= (busy <= offered[..., r]) | (asked == 0)
            factor = np.where(asked > 0, top[task_class] * weight, 0.0)
            total += busy * factor / np.maximum(offered[..., r], 1)
        return np.where(fits, total, 0.0)
