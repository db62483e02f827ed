"""Tests of CPU and memory in proportion to idle GPUs, in every extension point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.plugins.devices.proportions import KeptPerDevice, Proportions
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import RuleSet
from tests.support.engines import Bench, placed_by_gang
from tests.support.small import GPU, actions_of, cluster, every_plan, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang as GangObject
    from optsched.cluster.snapshot import Node

TWO_CPUS = Proportions((KeptPerDevice(GPU, 2000, 0),))
RULES = RuleSet.of(Gang(), TWO_CPUS)


def placed(nodes: list[Node], *gangs: GangObject) -> dict[str, int]:
    return placed_by_gang(cluster(nodes, gangs), RULES)


@pytest.mark.parametrize(("number", "fits"), [(4, 4), (5, 0)])
def test_tasks_without_devices_leave_what_goes_with_idle_ones(number: int, fits: int) -> None:
    assert placed([node("n", 8, 2)], gang("g", ("w", number, shape(1)))) == {"g": fits}


def test_tasks_with_devices_may_take_all() -> None:
    assert placed([node("n", 8, 2)], gang("g", ("w", 2, shape(4, 1)))) == {"g": 2}


def test_nodes_without_devices_are_free_for_all() -> None:
    nodes = [node("n", 4, 2), node("plain", 4)]
    assert placed(nodes, gang("g", ("w", 4, shape(1)))) == {"g": 4}


def test_where_there_is_too_little_already_nothing_comes() -> None:
    small = [node("n", 3, 2)]
    assert placed(small, gang("g", ("w", 1, shape(0)))) == {"g": 0}
    assert placed(small, gang("g", ("w", 1, shape(3, 1)))) == {"g": 1}


def test_a_task_that_takes_less_than_goes_with_its_devices_leaves_room() -> None:
    both = [gang("a", ("w", 1, shape(1, 2))), gang("b", ("w", 1, shape(7)), created_ms=1)]
    assert placed([node("n", 8, 2)], *both) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "nodes",
    [[node("n", 3, 1)], [node("n", 3, 2)], [node("m", 4, 2), node("n", 2)]],
    ids=["slack", "too little", "two nodes"],
)
def test_the_model_node_by_node_allows_what_the_verifier_allows(nodes: list[Node]) -> None:
    gangs = [gang("c", ("w", 2, shape(1)), least=0), gang("d", ("w", 1, shape(1, 1)), least=0)]
    bench = Bench.of(cluster(nodes, gangs), RULES)
    seen = set()
    for plan in every_plan(bench.problem):
        binds = {a.task: a.node for a in actions_of(bench.problem, plan)}
        good = bench.broken(plan) == []
        assert bench.direct_allows(binds) is good
        seen.add(good)
    assert seen == {True, False}
    assert bench.tied_by() == ("proportions",)


def test_arguments_become_the_rule() -> None:
    build = PLUGINS["resource-strategy-fit"].build
    _, rule = build(
        {
            "proportional.enable": True,
            "proportional.resources": f"{GPU}, npu",
            f"proportional.resourceProportion.{GPU}.cpu": 8,
            f"proportional.resourceProportion.{GPU}.memory": 0.5,
        }
    )
    kept = (KeptPerDevice(GPU, 8000, 500_000_000), KeptPerDevice("npu", 1000, 1_000_000_000))
    assert rule == Proportions(kept)
