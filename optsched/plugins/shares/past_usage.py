"""Recent usage of queues for fairness over time. Mathematics: models/formulation/over_time.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.amounts import Usage

if TYPE_CHECKING:
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import F64
    from optsched.problem.problem import Problem


def decayed_usage(problem: Problem, half_life_ms: int) -> F64:
    """Return (Q, R) the decayed average usage of each queue; zeros for a half-life of 0.

    A queue without a usage record is assumed to have always held its current amounts.
    """
    queues, resources = problem.queues, problem.resources
    past = np.zeros((len(queues.names), len(resources)))
    if not half_life_ms:
        return past
    now_ms = problem.snapshot.taken_ms
    for q, name in enumerate(queues.names):
        usage = problem.snapshot.usage.get(name, Usage(at_ms=now_ms))
        held = dict(zip(resources, queues.allocated[q].tolist(), strict=True))
        mean = usage.advanced(held, now_ms, half_life_ms).average(half_life_ms)
        past[q] = [mean.get(r, 0.0) for r in resources]
    return past


def half_life_of(rules: RuleSet) -> int:
    """Return the longest half-life of past usage of any rule, in ms; 0 without a half-life."""
    found = (getattr(active.rule, "half_life_ms", 0) for active in rules.active)
    return max(found, default=0)
