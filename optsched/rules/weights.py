"""How much a task or a gang counts: its dominant resource.

The dominant share of a request is max_r request[r] / total[r] (Ghodsi et al., NSDI 2011). Where the
same resource dominates for everybody, amounts of that resource are used instead of shares: they are
exact and people understand them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.units import PODS

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem

PPB = 1_000_000_000


@dataclass(frozen=True, eq=False)
class Weights:
    """What one task of each class counts.

    Attributes
    ----------
    unit
        A resource in base units, or parts per billion of the cluster.
    of_class
        (C,) at least 1, so that best-effort tasks count too.

    """

    unit: str
    of_class: I64


def dominant_weights(problem: Problem) -> Weights:
    """Weights of the task classes of a problem, in the coarsest exact unit."""
    counted = [i for i, r in enumerate(problem.resources) if r != PODS]
    request = problem.classes.request[:, counted]
    total = problem.total[counted]
    share = np.where(total > 0, request / np.maximum(total, 1), np.where(request > 0, np.inf, 0.0))
    largest = share.max(axis=1, initial=0.0)
    leads = (share >= largest[:, None])[request.any(axis=1)].all(axis=0)
    if leads.any():
        column = int(np.flatnonzero(leads)[-1])
        resource = problem.resources[counted[column]]
        return Weights(_unit_name(resource), np.maximum(request[:, column], 1))
    parts = np.rint(np.minimum(largest, 1.0) * PPB)
    return Weights("ppb of the cluster", np.maximum(parts.astype(np.int64), 1))


def _unit_name(resource: str) -> str:
    return {"cpu": "milli-CPU", "memory": "bytes of memory"}.get(resource, resource)
