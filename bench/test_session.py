"""Measure the time from problem to decisions for the greedy pipeline and both encodings.

Run `make bench-session`. The clusters are synthetic. Every solution is verified against every rule.
If the test expects an optimum, the certificate must prove it.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import LevelStatus
from optsched.plugins.objectives.levels import build_levels
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import load_policy
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.session.decompile import actions_of
from optsched.session.session_input import find_tiers
from optsched.solver import portfolio
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from tests.support.synthetic_clusters import EqualGangs, GpuCluster

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from bench.conftest import Table
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem
    from optsched.solver.cpsat.process import WorkerProcess

ROUNDS = 5
TARGETS = {1: 0.2, 3: 0.5, 5: 1.0}
SIZES = ((200, 200), (20_000, 20_000), (20_000, 60_000))


@cache
def policy(name: str) -> Policy:
    return load_policy(name, lambda path: path.read_text())


@cache
def problem_of(cluster: GpuCluster | EqualGangs) -> Problem:
    return compile_problem(cluster.snapshot())


def check(problem: Problem, decisions: Decisions, name: str) -> int:
    """Verify decisions, and return the number of tasks that they place."""
    rules = policy(name).rules
    actions = actions_of(problem, decisions, find_tiers(problem, policy(name)))
    assert not verify_actions(problem.snapshot, actions, rules)
    return len(actions)


def optimise(problem: Problem, worker: WorkerProcess) -> portfolio.Solution:
    """Return the optimised decisions of a problem, from an incumbent without placements."""
    chosen = policy("max-throughput")
    tiers = find_tiers(problem, chosen)
    levels = build_levels(problem, chosen.rules, tiers, chosen.levels)
    nothing = portfolio.evaluate_greedy(problem, Decisions.nothing(problem), levels, "")
    limits = Limits(budget_ms=10_000)
    return portfolio.improve(
        problem, chosen.rules, (tiers, levels), nothing, portfolio.SolveRequest(worker, limits)
    )


@pytest.mark.parametrize("num_ratios", [1, 3, 5])
@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_configurations(
    benchmark: BenchmarkFixture,
    table: Table,
    solver: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    num_ratios: int,
) -> None:
    """Configurations prove the optimum of one level, priority times dominant resource."""
    nodes, gangs = size
    monkeypatch.setattr(portfolio, "BEST_DIRECT", 0)
    problem = problem_of(GpuCluster(nodes, gangs, num_ratios))
    solution = benchmark.pedantic(lambda: optimise(problem, solver), rounds=ROUNDS, warmup_rounds=1)
    placed = check(problem, solution.decisions, "max-throughput")
    assert solution.engine == portfolio.CONFIGURATIONS
    assert [r.status for r in solution.results] == [LevelStatus.OPTIMAL]
    assert solution.results[0].value == solution.results[0].bound
    median = statistics.median(benchmark.stats.stats.data)
    name = f"configurations, {nodes} nodes × {gangs} gangs, k = {num_ratios}"
    table.add(name, median, TARGETS[num_ratios], f"proved, {placed} of {len(problem.tasks)} placed")


@pytest.mark.parametrize("num_ratios", [1, 3])
def test_direct_beside_configurations(
    benchmark: BenchmarkFixture,
    table: Table,
    solver: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    num_ratios: int,
) -> None:
    """The direct encoding solves the same level by node on a small cluster.

    A proved value must equal the value of the configurations.
    """
    problem = problem_of(GpuCluster(200, 200, num_ratios))
    by_class = optimise(problem, solver)
    monkeypatch.setattr(portfolio, "BEST_DIRECT", 10**9)
    monkeypatch.setattr(portfolio, "MOST_DIRECT", 10**9)
    solution = benchmark.pedantic(lambda: optimise(problem, solver), rounds=1, warmup_rounds=0)
    check(problem, solution.decisions, "max-throughput")
    assert solution.engine == portfolio.DIRECT
    (ours,), (theirs,) = solution.results, by_class.results
    assert ours.value <= theirs.value
    if ours.status is LevelStatus.OPTIMAL:
        assert ours.value == theirs.value
    seconds = benchmark.stats.stats.data[0]
    note = f"{ours.status}, value {ours.value} of {theirs.value}"
    table.add(f"node by node, 200 nodes × 200 gangs, k = {num_ratios}", seconds, None, note)


@pytest.mark.parametrize("num_classes", [20, 100])
def test_greedy(benchmark: BenchmarkFixture, table: Table, num_classes: int) -> None:
    """The pipeline runs Volcano's default plugins on 10 000 nodes × 10 000 gangs × 10 pods."""
    problem = problem_of(EqualGangs(num_classes=num_classes))
    chosen = policy("volcano-default")
    tiers = find_tiers(problem, chosen)
    options = GreedyOptions(chosen.actions, tiers.of, gated=False)
    decisions = benchmark.pedantic(
        lambda: run_greedy(problem, chosen.rules, options), rounds=ROUNDS, warmup_rounds=1
    )
    placed = check(problem, decisions, "volcano-default")
    median = statistics.median(benchmark.stats.stats.data)
    target = 2.0 if num_classes <= 20 else 4.0
    name = f"greedy, 10 000 nodes × 10 000 gangs × 10 pods, {num_classes} classes"
    table.add(name, median, target, f"{placed} of {len(problem.tasks)} placed")


def test_compile(benchmark: BenchmarkFixture, table: Table) -> None:
    """A problem is compiled from a snapshot without an earlier problem."""
    snapshot = EqualGangs(num_classes=100).snapshot()
    problem = benchmark.pedantic(lambda: compile_problem(snapshot), rounds=ROUNDS, warmup_rounds=1)
    assert len(problem.tasks) == 100_000
    median = statistics.median(benchmark.stats.stats.data)
    table.add("compile, 10 000 nodes × 100 000 pods", median, 2.0, "from scratch")
    gc.collect()


def test_compile_changes(benchmark: BenchmarkFixture, table: Table) -> None:
    """A problem is compiled incrementally after one gang and one node have changed."""
    before = compile_problem(EqualGangs(num_classes=100).snapshot())
    snapshot = before.snapshot
    nodes = (replace(snapshot.nodes[0], unschedulable=True), *snapshot.nodes[1:])
    gangs = (*snapshot.gangs[:-1], replace(snapshot.gangs[-1], priority=9))
    changed = replace(snapshot, nodes=nodes, gangs=gangs)
    problem = benchmark.pedantic(
        lambda: compile_problem(changed, before), rounds=ROUNDS, warmup_rounds=1
    )
    assert (problem.idle == compile_problem(changed).idle).all()
    median = statistics.median(benchmark.stats.stats.data)
    table.add("compile, the same, one node and one gang changed", median)
