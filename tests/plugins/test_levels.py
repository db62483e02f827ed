"""Tests of the levels that configurations list by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Sense
from optsched.cluster.snapshot import Queue
from optsched.plugins.accounting import Outcome
from optsched.plugins.extension_points import Switch, is_node_level
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.objectives.levels import LEVELS, NodeScore, build_levels
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.plugins.scores.packing import Binpack
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.drf import Drf
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.shares.queue_limits import Capability
from optsched.problem.compile import compile_problem
from optsched.problem.tiers import priority_tiers, weighted_tier
from tests.support.engines import Bench
from tests.support.small import CPU, cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.plugins.extension_points import AnyLevel

SNAPSHOT = cluster(
    [node("n0", 8), node("n1", 8)],
    [
        gang("high", ("w", 2, shape(1)), priority=2, queue="q"),
        gang("low", ("w", 4, shape(1)), least=1, priority=1),
        gang("also", ("w", 4, shape(2)), least=1, priority=1),
    ],
    [Queue("q", guarantee=((CPU, 1000),), deserved=((CPU, 4000),))],
)
EVERYTHING = RuleSet.of(GangRule(), Drf(), Capacity(), Capability(), Guarantee(), Binpack())


def levels(rules: RuleSet, *names: str) -> list[AnyLevel]:
    problem = compile_problem(SNAPSHOT)
    return build_levels(problem, rules, priority_tiers(problem, problem.priority, 0), names)


def named(rules: RuleSet, *names: str) -> list[str]:
    return [level.name for level in levels(rules, *names)]


def test_a_name_stands_for_one_level_a_tier_or_a_rule() -> None:
    assert named(EVERYTHING, "admission") == ["admission, priority 2", "admission, priority 1"]
    assert named(EVERYTHING, "tasks") == ["tasks, priority 1"]
    assert named(EVERYTHING, "guarantee") == ["guarantee deficit"]
    assert named(EVERYTHING, "node-score") == ["node score"]


def test_levels_come_in_the_order_of_the_list() -> None:
    assert named(EVERYTHING, "tasks", "guarantee") == ["tasks, priority 1", "guarantee deficit"]
    assert named(EVERYTHING) == []


def test_levels_of_rules_come_in_the_order_of_rules() -> None:
    least = ["contested gangs that start", "least dominant share"]
    assert named(EVERYTHING, "fair-share") == [*least, "fair share"]
    other_way = RuleSet.of(Proportion(), Drf())
    assert named(other_way, "fair-share") == ["fair share", *least]


def test_levels_of_rules_that_are_off_are_none() -> None:
    bare = RuleSet.of(GangRule())
    assert named(bare, "guarantee", "fair-share", "topology") == []
    silent = RuleSet(
        (ActiveRule(Binpack(), "binpack", 1, frozenset(Switch) - {Switch.NODE_ORDER}),)
    )
    assert named(silent, "node-score") == []


def test_a_name_that_nobody_knows_is_no_level() -> None:
    with pytest.raises(KeyError, match="fairness"):
        levels(EVERYTHING, "fairness")


@pytest.mark.parametrize("kind", LEVELS.values(), ids=LEVELS)
def test_names_and_meanings(kind: object) -> None:
    assert LEVELS[kind.name] is kind
    assert kind.meaning


# --- what every level of this cluster keeps ------------------------------------------------------

ALL = levels(EVERYTHING, *LEVELS)
every_level = pytest.mark.parametrize("level", ALL, ids=lambda level: level.name)


@every_level
def test_no_plan_is_better_than_the_ideal(level: AnyLevel) -> None:
    bench = Bench.of(SNAPSHOT, EVERYTHING, ())
    sign = 1 if level.sense is Sense.MAX else -1
    rng = np.random.default_rng(7)
    tasks = [t.key for t in bench.problem.tasks]
    for _ in range(20):
        places = dict(zip(tasks, rng.choice(["n0", "n1", ""], len(tasks)), strict=True))
        chosen = {task: str(where) for task, where in places.items() if where}
        outcome = Outcome(bench.problem, bench.decisions(chosen))
        assert sign * level.value(outcome) <= sign * level.ideal(bench.problem)


@every_level
def test_values_and_units_are_told(level: AnyLevel) -> None:
    assert level.name
    assert level.unit
    assert isinstance(level.ideal(compile_problem(SNAPSHOT)), int)


def test_a_level_over_nodes_is_told_from_one_over_gangs() -> None:
    assert [type(level) for level in ALL if is_node_level(level)] == [NodeScore]


def test_priority_weighs_where_admission_is_by_weight() -> None:
    problem = compile_problem(SNAPSHOT)
    (level,) = build_levels(
        problem, EVERYTHING, weighted_tier(problem, problem.priority), ["admission"]
    )
    # The two gangs `high` count 2 tasks of 1 CPU each, `low` counts 1 CPU, and `also` 2 CPUs.
    assert level.ideal(problem) == 2 * 2000 + 1000 + 2000
