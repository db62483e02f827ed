"""Fill nodes that are already in use.

Mathematics: models/formulation/binpack.md. Volcano: `pkg/scheduler/plugins/binpack`, lines 206-261.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optsched.rules.base import Rule
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem


@dataclass(frozen=True)
class Binpack(Rule):
    """score = 100 · weight · Σ_r w[r]·(used + request)[r]/allocatable[r] / Σ_r w[r].

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

    def node_score(self, problem: Problem, request: I64, used: I64, allocatable: I64) -> F64 | None:
        """See `Rule`; 0 where a resource that counts does not fit."""
        counted = [
            (r, self.resources[name])
            for r, name in enumerate(problem.resources)
            if request[r] and self.resources.get(name)
        ]
        score = np.zeros(len(used))
        fits = np.ones(len(used), np.bool_)
        for r, weight in counted:
            offered = allocatable[:, r]
            filled = used[:, r] + request[r]
            score += weight * filled / np.maximum(offered, 1)
            fits &= (offered > 0) & (filled <= offered)
        total = sum(weight for _, weight in counted)
        return np.where(fits, score, 0.0) * (100.0 * self.weight / max(total, 1))
