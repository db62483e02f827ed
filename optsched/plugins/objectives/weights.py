"""How much a task or a gang counts: its dominant resource.

The dominant share of a request is max_r request[r] / total[r] (Ghodsi et al., NSDI 2011). Where the
same resource dominates for everybody, amounts of that resource are used instead of shares: they are
exact and people understand them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import sparse_table
from optsched.units import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64
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
    """Return the weights of the task classes of a problem, in the coarsest exact unit.

    The unit follows from the pending tasks of all gangs, also of those that can not start. Plans
    with different victims make problems with different classes, and their values are compared.
    """
    counted = [i for i, r in enumerate(problem.resources) if r != PODS]
    request, total = problem.classes.request[:, counted], problem.total[counted]
    columns = {problem.resources[i]: number for number, i in enumerate(counted)}
    every = sparse_table({r: None for row in problem.rows for r in row.requests}, columns)
    every = every[every.any(axis=1)]
    if not len(every):
        return Weights("tasks", np.ones(len(request), np.int64))
    share = _shares(every, total)
    leads = np.flatnonzero((share >= share.max(axis=1)[:, None]).all(axis=0)).tolist()
    if leads:
        # By name: where a resource stands on its axis depends on earlier sessions.
        column = max(leads, key=lambda i: _prominence(problem.resources[counted[i]]))
        resource = problem.resources[counted[column]]
        return Weights(_unit_name(resource), np.maximum(request[:, column], 1))
    largest = _shares(request, total).max(axis=1, initial=0.0)
    parts = np.rint(np.minimum(largest, 1.0) * PPB)
    return Weights("ppb of the cluster", np.maximum(parts.astype(np.int64), 1))


def _shares(request: I64, total: I64) -> F64:
    """(K, R) shares of the cluster that requests take; infinite where no node offers any."""
    share: F64 = np.where(
        total > 0, request / np.maximum(total, 1), np.where(request > 0, np.inf, 0.0)
    )
    return share


def _prominence(resource: str) -> tuple[bool, str]:
    """Devices say more about a task than memory and CPU."""
    return resource not in (CPU, MEMORY), resource


def _unit_name(resource: str) -> str:
    return {"cpu": "milli-CPU", "memory": "bytes of memory"}.get(resource, resource)
