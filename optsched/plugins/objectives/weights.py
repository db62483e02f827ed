"""How much a task or a gang counts: its dominant resource.

The dominant share of a request is max_r request[r] / total[r] (Ghodsi et al., NSDI 2011). Where the
same resource dominates for everybody, amounts of that resource are used instead of shares: they are
exact and people understand them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.units import CPU, MEMORY, PODS

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
    asks = request.any(axis=1)
    if not asks.any():
        return Weights("tasks", np.ones(len(request), np.int64))
    leads = np.flatnonzero((share >= largest[:, None])[asks].all(axis=0)).tolist()
    if leads:
        # By name: where a resource stands on its axis depends on earlier sessions.
        column = max(leads, key=lambda i: _prominence(problem.resources[counted[i]]))
        resource = problem.resources[counted[column]]
        return Weights(_unit_name(resource), np.maximum(request[:, column], 1))
    parts = np.rint(np.minimum(largest, 1.0) * PPB)
    return Weights("ppb of the cluster", np.maximum(parts.astype(np.int64), 1))


def _prominence(resource: str) -> tuple[bool, str]:
    """Devices say more about a task than memory and CPU."""
    return resource not in (CPU, MEMORY), resource


def _unit_name(resource: str) -> str:
    return {"cpu": "milli-CPU", "memory": "bytes of memory"}.get(resource, resource)
