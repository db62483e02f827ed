"""MIG profiles are extended resources in placement, limits and explanations."""

from __future__ import annotations

from optsched.cluster.snapshot import Node, Queue
from optsched.cluster.task import TaskShape
from optsched.plugins.devices.fragmentation import Fragmentation
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.queue_limits import Capability
from tests.support.engines import Bench, placed_by_gang, reason
from tests.support.small import cluster, gang

SMALL, LARGE = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
RULES = RuleSet.of(Gang())


def cut(name: str, small: int, large: int):
    offered = (("cpu", 64_000), (SMALL, small), (LARGE, large), ("pods", 20))
    return Node(name, tuple(sorted(offered)))


def slices(name: str, kind: str, number: int, **fields: object):
    return gang(name, ("w", number, TaskShape((("cpu", 100), (kind, 1)))), **fields)


def test_slices_of_one_kind_do_not_stand_for_another() -> None:
    nodes = [cut("a", 2, 1), cut("b", 1, 0)]
    gangs = [slices("three-small", SMALL, 3), slices("two-large", LARGE, 2)]
    assert placed_by_gang(cluster(nodes, gangs), RULES) == {"three-small": 3, "two-large": 0}


def test_who_waits_is_told_which_slices_are_short() -> None:
    snapshot = cluster([cut("a", 2, 1)], [slices("g", LARGE, 2)])
    assert f"{LARGE}" in reason(snapshot, RULES, "g")


def test_queues_have_ceilings_of_slices() -> None:
    queue = Queue("q", capability=((SMALL, 1),), parent="root")
    gangs = [slices("one", SMALL, 1, queue="q"), slices("two", SMALL, 2, queue="q")]
    snapshot = cluster([cut("a", 4, 0)], gangs, [queue])
    rules = RuleSet.of(Gang(), Capability())
    assert placed_by_gang(snapshot, rules) == {"one": 1, "two": 0}
    assert SMALL in reason(snapshot, rules, "two")


def test_they_are_no_part_of_fragmentation() -> None:
    bench = Bench.of(
        cluster([cut("a", 2, 1)], [slices("g", SMALL, 1)]),
        RuleSet.of(Gang(), Fragmentation()),
        ["frag"],
    )
    assert bench.levels == []
