"""The gang × node rule of docs/plugins.md: both engines keep it, and plans are proved optimal."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import LevelStatus
from optsched.plugins.extension_points import NodeModel
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.gangs.gang import SubGroups
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.policy.load import load_policy
from optsched.policy.policy import SolverKind
from optsched.problem.arrays import UNPLACED
from optsched.problem.formulation import Formulation, gang_classes
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from optsched.testing import RuleContract
from tests.support.effort import nightly_except
from tests.support.engines import GANG_LEVELS, Bench
from tests.support.small import (
    best_values,
    cluster,
    gang,
    node,
    random_cluster,
    shape,
    with_network,
)

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugin import Rule
    from optsched.session.session import Report

ROOT = Path(__file__).parents[2]
EXACT = Limits(budget_ms=None, deterministic=10.0, num_workers=1)
both = pytest.mark.parametrize("solver", SolverKind, ids=lambda s: s.value)


def load_rule(most: int = 1) -> Rule:
    path = ROOT / "instances" / "examples" / "plugins" / "per_node.py"
    spec = importlib.util.spec_from_file_location("per_node", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["per_node"] = module
    spec.loader.exec_module(module)
    rule: Rule = module.PerNode(most)
    return rule


class TestPerNode(RuleContract):
    rule = load_rule()


def decide(snapshot: Snapshot, most: int, solver: SolverKind) -> Report:
    policy = load_policy("volcano-default", lambda path: "")
    mine = ActiveRule(load_rule(most), "per-node", 0, origin="per_node.py:1")
    policy = replace(policy, rules=RuleSet((mine, *policy.rules.active)), solver=solver)
    return run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=EXACT))


def count(report: Report) -> Counter[tuple[str, str]]:
    """Return the number of pods by gang and node."""
    return Counter((task.rsplit("-", 2)[0], n) for task, n in report.plan.binds.items())


@both
def test_equal_pods_of_two_gangs_are_mixed_on_nodes(solver: SolverKind) -> None:
    gangs = (gang("a", ("w", 2, shape(1))), gang("b", ("w", 2, shape(1))))
    report = decide(cluster([node("n0", 2), node("n1", 2)], gangs), 1, solver)
    assert report.trace.faults == ()
    assert len(report.plan.binds) == 4
    assert set(count(report).values()) == {1}


def test_the_solver_proves_what_the_rule_leaves_out() -> None:
    gangs = (gang("a", ("w", 3, shape(1))), gang("b", ("w", 2, shape(2))))
    report = decide(cluster([node("n0", 4), node("n1", 4)], gangs), 1, SolverKind.CPSAT)
    assert {task.rsplit("-", 2)[0] for task in report.plan.binds} == {"ns/b"}
    assert report.plan.certificate.stopped == "all levels done"
    assert all(level.gap == 0 for level in report.plan.certificate.levels)


@pytest.mark.parametrize("seed", nightly_except(range(24), range(8)))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    """In half of the clusters, network topology also limits the gangs."""
    rng = np.random.default_rng(seed)
    snapshot = random_cluster(rng)
    if seed % 2:
        snapshot = with_network(rng, snapshot)
    rules = RuleSet.of(GangRule(), SubGroups(), NetworkTopology(), load_rule())
    bench = Bench.of(snapshot, rules, (*GANG_LEVELS, "topology"))
    start = bench.greedy()
    start = replace(start, nominated=np.full_like(start.nominated, UNPLACED))
    answer = bench.improved(start)
    assert bench.broken(answer.decisions) == []
    proved = [r.value for r in answer.results if r.status is LevelStatus.OPTIMAL]
    assert len(proved) == len(bench.levels)
    assert tuple(proved) == best_values(bench.problem, rules, bench.levels)


def test_gangs_of_one_class_are_refused() -> None:
    """A constraint over gangs and nodes requires that no class contains two gangs."""
    gangs = (gang("a", ("w", 2, shape(1))), gang("b", ("w", 2, shape(1))))
    bench = Bench.of(cluster([node("n0")], gangs), RuleSet.of(GangRule()))
    form = Formulation(bench.problem, gang_classes(bench.problem, bench.tiers))
    model = NodeModel.of(form, np.array([form.model.add_variables(0, np.array([4]))]))
    with pytest.raises(ValueError, match="distinguish_gangs"):
        model.split_gangs(np.ones(2, np.bool_))
