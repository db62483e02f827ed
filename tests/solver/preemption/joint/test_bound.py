"""Tests of bounds over all plans with evictions, compared with the plans of tiny clusters."""

from __future__ import annotations

from itertools import product
from operator import ge
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Sense
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.accounting import Outcome
from optsched.policy.load import load_policy
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from optsched.solver.preemption.joint import model as joint_model
from optsched.solver.preemption.joint.bound import bound_with_evictions
from tests.support.effort import nightly_except
from tests.support.engines import Bench
from tests.support.evictions import MODELS_OF_SEEDS, bounds_of, every_plan, full_cluster, levels_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.decisions import LevelResult

VICTIMS = "victims"


@pytest.mark.parametrize("given", MODELS_OF_SEEDS)
def test_no_plan_beats_the_bounds(given: tuple[int, str]) -> None:
    seed, model = given
    check_bounds(model, seed)


@pytest.mark.parametrize(
    "given",
    nightly_except(product([2, 3, 9, 11], [1, 2]), [(2, 1), (3, 1), (3, 2), (9, 2), (11, 2)]),
)
def test_no_plan_beats_the_bounds_of_merged_nodes(
    given: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, sets = given
    merge_nodes(monkeypatch, sets)
    check_bounds("volcano-default", seed)


def merge_nodes(monkeypatch: pytest.MonkeyPatch, sets: int) -> None:
    """Force the merging of nodes into the given number of sets, even for small problems."""
    monkeypatch.setattr(joint_model, "MOST_SINGLE", 0)
    monkeypatch.setattr(joint_model, "MOST_MERGED", 0)
    monkeypatch.setattr(joint_model, "MERGED_SETS", sets)


def test_merged_nodes_are_counted_in_multiples_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four nodes with 3 CPUs hold at most four pods of 2 CPUs, which is less than 12 / 2."""
    offered = (("cpu", 3000), ("pods", 10))
    nodes = tuple(Node(f"n{i}", offered) for i in range(4))
    two = TaskShape((("cpu", 2000),))
    keys = [f"ml/g{i}" for i in range(6)]
    tasks = {key: (Task(f"{key}-0", two, TaskStatus.PENDING, gang=key),) for key in keys}
    phase = GangPhase.INQUEUE
    gangs = tuple(Gang(key, min_member=1, tasks=tasks[key], phase=phase) for key in keys)
    snapshot = Snapshot(0, nodes, gangs, (Queue("default"), Queue("root")))
    merge_nodes(monkeypatch, 1)
    rules = load_policy("volcano-default", Path.read_text).rules
    bench = Bench.of(snapshot, rules, ("admission",))
    values = [level.value(Outcome(bench.problem, bench.greedy())) for level in bench.levels]
    bounds = bound_with_evictions(
        bench.problem,
        bench.rules,
        (bench.tiers, bench.levels),
        values,
        frozenset(),
        (InProcess(), Limits(None, num_workers=1), lambda: None),
    )
    assert bounds is not None
    assert list(bounds.levels) == values
    assert values[0] < bench.levels[0].ideal(bench.problem)


def check_bounds(model: str, seed: int) -> tuple[int, int]:
    """Compare bounds with all plans. Return the number of plans, and of plans with evictions."""
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
