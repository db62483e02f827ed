"""Bounds over all plans with evictions, against every such plan of tiny clusters."""

from __future__ import annotations

from operator import ge
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Sense
from optsched.policy.load import load_policy
from tests.support.evictions import bounds_of, every_plan, full_cluster, levels_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.decisions import LevelResult

VICTIMS = "victims"


@pytest.mark.parametrize("model", ["volcano-default", "crater", "capacity-hierarchical"])
@pytest.mark.parametrize("seed", [2, 3, 9, 11])
def test_no_plan_beats_the_bounds(model: str, seed: int) -> None:
    check_bounds(model, seed)


def check_bounds(model: str, seed: int) -> tuple[int, int]:
    """Compare with every plan; returns how many plans there are, and how many of them evict."""
    snapshot = full_cluster(np.random.default_rng(seed))
    policy = load_policy(model, Path.read_text)
    plans = [levels_of(snapshot, policy, actions) for actions in every_plan(snapshot, policy)]
    names = [level.name for level in bounds_of(snapshot, policy)[0]][:-1]
    signs = [1 if plans[0][name].sense is Sense.MAX else -1 for name in names]
    ranks = [tuple(s * _value(p, n) for s, n in zip(signs, names, strict=True)) for p in plans]
    for at in {ranks.index(max(ranks)), 0}:
        mine = ranks[at]
        _, bounds = bounds_of(snapshot, policy, {n: _value(plans[at], n) for n in plans[at]})
        assert bounds is not None
        for i, sign in enumerate(signs):
            rivals = [r[i] for r in ranks if all(map(ge, r[:i], mine[:i]))]
            bound = bounds.levels[i]
            assert bound is None or max(rivals) <= sign * bound
        equals = (p for p, r in zip(plans, ranks, strict=True) if all(map(ge, r, mine)))
        assert bounds.victims is not None
        assert bounds.victims <= min(_value(plan, VICTIMS) for plan in equals)
    return len(plans), sum(_value(plan, VICTIMS) > 0 for plan in plans)


def test_such_clusters_have_plans_that_evict() -> None:
    assert check_bounds("volcano-default", 3)[1] > 0


def _value(plan: Mapping[str, LevelResult], name: str) -> int:
    if name == VICTIMS and name not in plan:
        return 0
    value = plan[name].value
    assert value is not None
    return value
