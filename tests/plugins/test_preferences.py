"""Tests of preferred affinities: scores calculated by hand, and changes during placement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.task import PodTerm, SpreadTerm, TaskStatus
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.scores.nodeorder import NodeOrder
from optsched.problem.compile import compile_problem
from tests.support.engines import Bench, binds
from tests.support.small import HOST, ZONE, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node
    from optsched.cluster.task import TaskShape

NODES = [
    node("a1", labels={ZONE: "a"}),
    node("a2", labels={ZONE: "a"}),
    node("b1", labels={ZONE: "b"}),
    node("x1"),
]
QUIET = {"least_requested": 0, "balanced_resource": 0}


def selecting(app: str) -> LabelSelector:
    return LabelSelector((Requirement("app", Operator.IN, (app,)),))


def near(app: str, weight: int = 1, key: str = ZONE) -> TaskShape:
    """Return a shape that prefers nodes near pods, or avoids them with a negative weight."""
    return shape(preferred_pods=((weight, PodTerm(selecting(app), ("ns",), None, key)),))


def spread(app: str, key: str = ZONE, **fields: object) -> TaskShape:
    fields = {"max_skew": 1, "required": False, **fields}
    term = SpreadTerm(topology_key=key, selector=selecting(app), namespace="ns", **fields)
    return shape(spread=(term,))


def resident(app: str, where: str, what: TaskShape | None = None, **fields: object) -> Gang:
    made = gang(f"{app}-{where}", ("w", 1, what or shape()), labels={"app": app})
    return replace(made, tasks=(replace(running(made.tasks[0], where), **fields),))


def scores(asks: Gang, *standing: Gang, nodes: list[Node] = NODES, **weights: int) -> list[float]:
    """Return the score of each node for the first task of a gang."""
    problem = compile_problem(cluster(nodes, [*standing, asks]))
    score = NodeOrder(**QUIET, **weights).class_score(problem, int(problem.task_class[0]))
    return [] if score is None else score.tolist()


# --- preferred affinity --------------------------------------------------------------------------


def test_pods_that_are_wanted_count_by_domain() -> None:
    asks = gang("g", ("w", 1, near("db")))
    assert scores(asks, resident("db", "a1"), pod_affinity=3) == [300.0, 300.0, 0.0, 0.0]
    assert scores(asks, resident("db", "x1")) == [0.0] * 4  # node x1 is in no zone


def test_more_of_them_are_better_and_the_best_node_has_a_hundred() -> None:
    asks = gang("g", ("w", 1, near("db", 5)))
    three = [resident("db", "a1"), resident("db", "a2"), resident("db", "b1")]
    assert scores(asks, *three, pod_affinity=1) == [100.0, 100.0, 50.0, 0.0]


def test_pods_that_are_not_wanted_count_against_a_node() -> None:
    asks = gang("g", ("w", 1, near("noisy", -7)))
    assert scores(asks, resident("noisy", "b1"), pod_affinity=1) == [100.0, 100.0, 0.0, 100.0]


def test_what_standing_pods_want_of_the_task_counts_too() -> None:
    asks = gang("g", ("w", 1, shape()), labels={"app": "web"})
    away = resident("db", "a1", near("web", -1, HOST))
    assert scores(asks, away, pod_affinity=1) == [0.0, 100.0, 100.0, 100.0]


@pytest.mark.parametrize("weights", [{"pod_affinity": 0}, {"pod_affinity": 2}])
def test_without_wishes_or_weight_nothing_is_scored(weights: dict[str, int]) -> None:
    asks = gang("g", ("w", 1, near("db")))
    nobody = [resident("other", "a1")]
    assert set(scores(asks, *nobody, **weights)) == {0.0}
    assert scores(gang("g", ("w", 1, shape())), *nobody, **weights) == []


# --- soft spread ---------------------------------------------------------------------------------
# Upstream: pods of the domain · ln(domains + 2) + maxSkew − 1, turned round.


def test_the_emptiest_domain_has_a_hundred() -> None:
    asks = gang("g", ("w", 1, spread("web")), labels={"app": "web"})
    zones = [node(name, labels={ZONE: name}) for name in "abc"]
    two_one = [resident("web", "a"), resident("web", "b")]
    more = replace(resident("web", "a"), key="ns/more")
    # 2·ln 5 = 3.2 → 3, 1·ln 5 = 1.6 → 2, and 0: the score is 100·(3 + 0 − s)/3
    assert scores(asks, *two_one, more, nodes=zones, topology_spread=1) == [0.0, 33.0, 100.0]


def test_nodes_without_the_label_have_nothing() -> None:
    asks = gang("g", ("w", 1, spread("web")), labels={"app": "web"})
    assert scores(asks, resident("web", "a1"), topology_spread=1) == [0.0, 0.0, 100.0, 0.0]
    assert scores(asks, topology_spread=1) == [100.0, 100.0, 100.0, 0.0]


def test_pods_that_leave_and_pods_of_others_do_not_count() -> None:
    asks = gang("g", ("w", 1, spread("web")), labels={"app": "web"})
    leaving = resident("web", "a1", status=TaskStatus.RELEASING)
    assert scores(asks, leaving, resident("db", "b1"), topology_spread=1)[:3] == [100.0] * 3


# --- as they are placed --------------------------------------------------------------------------


def placed(*gangs: Gang, nodes: list[Node] = NODES) -> dict[str, str]:
    bench = Bench.of(cluster(nodes, gangs), RuleSet.of(NodeOrder(**QUIET)))
    return binds(bench.actions(bench.greedy()))


def test_a_gang_whose_pods_avoid_one_another_is_spread() -> None:
    made = gang("g", ("w", 3, near("g", -1, HOST)), labels={"app": "g"})
    assert sorted(placed(made).values()) == ["a1", "a2", "b1"]


def test_a_gang_whose_pods_seek_one_another_stays_together() -> None:
    small = [node(f"n{i}", 2) for i in range(4)]
    made = gang("g", ("w", 4, near("g", 1, HOST)), labels={"app": "g"})
    assert sorted(placed(made, nodes=small).values()) == ["n0", "n0", "n1", "n1"]


def test_a_gang_with_a_soft_spread_is_even_over_zones() -> None:
    made = gang("g", ("w", 4, spread("g")), labels={"app": "g"})
    zones = [node(name, labels={ZONE: name}) for name in "ab"]
    assert sorted(placed(made, nodes=zones).values()) == ["a", "a", "b", "b"]


def test_a_gang_that_is_taken_back_leaves_no_trace() -> None:
    many = gang("a", ("v", 3, shape(4)), ("w", 3, shape(4)), labels={"app": "a"})
    asks = gang("b", ("w", 1, near("a", -1, HOST)), created_ms=1)
    assert placed(many, asks) == {"ns/b-w-0": "a1"}
