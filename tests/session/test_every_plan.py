"""Bounds of certificates, compared with every plan of tiny clusters with running pods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from optsched.cluster.decisions import Evict, Sense
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import num_examples
from tests.support.evictions import every_plan, full_cluster, levels_of

EXACT = Limits(None, num_workers=1)
JOINTLY = 9
"""A cluster of which no search finds the best plan: a queue gives back what it gains meanwhile."""


@pytest.mark.parametrize("model", ["volcano-default", "crater"])
@pytest.mark.parametrize("seed", [*range(num_examples(12)), JOINTLY])
def test_no_plan_is_beyond_a_bound_of_the_certificate(seed: int, model: str) -> None:
    """The plans include loans and victims, and match the session's plan on higher levels."""
    snapshot = full_cluster(np.random.default_rng(seed))
    policy = load_policy(model, Path.read_text)
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=EXACT))
    assert report.trace.violations == ()
    # The verifier ignores the policy's actions, but the policy crater has no preempt.
    rivals = [
        levels_of(snapshot, policy, actions)
        for actions in every_plan(snapshot, policy)
        if all(a.action in policy.actions for a in actions if isinstance(a, Evict))
    ]
    assert rivals
    for result in report.plan.certificate.levels:
        if result.name == "node score":
            continue
        sign = 1 if result.sense is Sense.MAX else -1
        values = [sign * (r[result.name].value if result.name in r else 0) for r in rivals]
        assert result.bound is not None
        assert max(values) <= sign * result.bound, result
        rivals = [r for r, v in zip(rivals, values, strict=True) if v >= sign * result.value]
        if not rivals:
            break
