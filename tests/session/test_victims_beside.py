"""Evicting sessions where pods depend on their neighbours, compared with exhaustive search.

The victims of the search are evicted, and the gang runs in the freed capacity.
"""

from __future__ import annotations

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.policy.load import parse_policy
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.solver.preemption.sequential.test_victim_choice import (
    CARDS_GUARDED,
    CELLS_GUARDED,
    CLAIMS_GUARDED,
    RELATED_GUARDED,
    fewest,
    random_cluster,
    with_cards,
    with_cells,
    with_claims,
    with_relations,
)
from tests.support.effort import num_examples

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [enqueue, allocate, preempt, reclaim, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules:
  - name: predicates
  - name: capacity
  - {name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}
  - name: numa-aware
levels: [guarantee, admission, tasks]
solver: {engine: cpsat, budget: 400ms}
"""
POLICY = parse_policy(MODEL, "test.yaml")
WORLDS = {
    "relations": (with_relations, RELATED_GUARDED),
    "cards": (with_cards, CARDS_GUARDED),
    "cells": (with_cells, CELLS_GUARDED),
    "claims": (with_claims, CLAIMS_GUARDED),
}


@pytest.mark.parametrize("seed", range(num_examples(20)))
@pytest.mark.parametrize("world", WORLDS)
def test_room_is_made_and_taken(world: str, seed: int) -> None:
    rng = np.random.default_rng(70_000 + seed)
    make, guarded = WORLDS[world]
    snapshot = make(rng, random_cluster(rng))
    limits = Limits(budget_ms=None, num_workers=1)
    report = run_session(snapshot, POLICY, SessionContext(solver=InProcess(), limits=limits))
    assert report.trace.violations == ()
    least = fewest(snapshot, compile_problem(snapshot), guarded)
    actions = report.plan.actions
    assert sum(isinstance(a, Evict) for a in actions) == (least or 0)
    assigned = [a for a in actions if isinstance(a, Allocate | Nominate)]
    assert bool(assigned) is (least is not None)
