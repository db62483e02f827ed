"""Tests of jointly chosen victims, compared with every plan of tiny clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Sense
from optsched.policy.load import load_policy
from optsched.solver.preemption.joint import entitlement
from tests.support.evictions import (
    MODELS_OF_SEEDS,
    every_plan,
    full_cluster,
    levels_of,
    plan_jointly,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.decisions import LevelResult

LEFT_OUT = ("node score", "tasks, ", "fair share", "victims")
"""Levels that are not compared: what queues are due may fall with what leaves."""

RECLAIMS = 2
"""A cluster in which the joint plan reclaims."""


@pytest.mark.parametrize("given", MODELS_OF_SEEDS)
def test_the_joint_plan_is_one_of_all_plans(given: tuple[int, str]) -> None:
    """Seed 9 has a better plan, which the bounds of certificates allow for (`test_every_plan`).

    Queue q1 returns its gang of priority 2 and starts one of priority 0 in its place. The new gang
    counts as held, so that q1 may return more. The joint model does not count the gain of a lender;
    otherwise queues could exchange capacity in a cycle.
    """
    seed, model = given
    best, found = compare(model, seed)
    assert found is None or found == best or (seed == 9 and found < best)


def test_such_clusters_have_joint_plans() -> None:
    assert compare("volcano-default", 3)[1] is not None


@pytest.mark.parametrize("model", ["volcano-default", "capacity-hierarchical"])
def test_a_model_of_too_many_pairs_is_not_written(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows grow with the pairs of reclaimers and lenders; a live session must end in time."""
    policy = load_policy(model, Path.read_text)
    reclaiming = replace(policy, actions=("allocate", "reclaim"))
    snapshot = full_cluster(np.random.default_rng(RECLAIMS))
    assert plan_jointly(snapshot, reclaiming) is not None
    monkeypatch.setattr(entitlement, "MOST_EXACT_PAIRS", 0)
    assert plan_jointly(snapshot, reclaiming) is None


def compare(model: str, seed: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the ranks of the best plan and of the joint plan, or None if that evicts no task."""
    snapshot = full_cluster(np.random.default_rng(seed))
    policy = load_policy(model, Path.read_text)
    ranks = [
        rank_of(levels_of(snapshot, policy, actions)) for actions in every_plan(snapshot, policy)
    ]
    names = max(ranks, key=len).keys()
    best = max(tuple(rank.get(name, 0) for name in names) for rank in ranks)
    actions = plan_jointly(snapshot, policy)
    if actions is None:
        return best, None
    rank = rank_of(levels_of(snapshot, policy, actions))
    return best, tuple(rank.get(name, 0) for name in names)


def rank_of(levels: Mapping[str, LevelResult]) -> dict[str, int]:
    """Return the values of levels over gangs and victims, where larger is better."""
    return {
        level.name: level.value if level.sense is Sense.MAX else -level.value
        for level in levels.values()
        if not level.name.startswith(LEFT_OUT)
    }
