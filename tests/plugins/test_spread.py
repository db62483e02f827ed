"""Topology spread: counts per domain stay within maxSkew of the smallest count."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
)
from optsched.cluster.task import SpreadTerm, TaskStatus
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.nodes.node_filters import NodeAffinity, Taints
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.topology.spread import Spread
from tests.support.engines import Bench, binds
from tests.support.small import HOST, ZONE, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node, Snapshot

RULES = RuleSet.of(GangRule(), Priority(), NodeAffinity(), Taints(), Spread())
WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
OVER_ZONES = SpreadTerm(1, ZONE, WEB, "ns")


def zoned(name: str, zone: str, cpu: int = 8, **fields: object) -> Node:
    return node(name, cpu, labels={ZONE: zone}, **fields)


def only(zone: str) -> NodeSelector:
    return NodeSelector((NodeTerm((Requirement(ZONE, Operator.IN, (zone,)),)),))


def web(number: int, name: str = "web", least: int | None = None, **fields: object) -> Gang:
    what = shape(1, **fields)
    return gang(name, ("w", number, what), least=least, labels={"app": "web"})


def by_zone(snapshot: Snapshot) -> dict[str, int]:
    """Return the number of placed tasks by zone, which must be equal in both engines."""
    bench = Bench.of(snapshot, RULES)
    found = []
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert bench.broken(decisions) == []
        at = binds(bench.actions(decisions)).values()
        found.append(Counter(snapshot.node_by_name[n].labels.get(ZONE, "") for n in at))
    assert found[0] == found[1]
    return dict(found[0])


def test_many_tasks_are_spread_evenly() -> None:
    zones = [zoned("a", "a"), zoned("b", "b"), zoned("c", "c")]
    placed = by_zone(cluster(zones, [web(9, spread=(OVER_ZONES,))]))
    assert placed == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize(("skew", "placed"), [(1, 3), (2, 4), (3, 5)])
def test_a_full_zone_holds_the_others_back(skew: int, placed: int) -> None:
    zones = [zoned("a", "a"), zoned("b", "b", cpu=1)]
    term = replace(OVER_ZONES, max_skew=skew)
    assert by_zone(cluster(zones, [web(8, least=1, spread=(term,))])) == {"a": placed - 1, "b": 1}


def test_pods_that_run_count_and_those_that_leave_do_not() -> None:
    old = web(2, "old", least=1)
    there = tuple(running(t, "a") for t in old.tasks)
    leaving = (there[0], replace(there[1], status=TaskStatus.RELEASING))
    zones = [zoned("a", "a"), zoned("b", "b")]
    both_run = cluster(zones, [replace(old, tasks=there), web(2, spread=(OVER_ZONES,))])
    assert by_zone(both_run) == {"b": 2}
    one_leaves = cluster(zones, [replace(old, tasks=leaving), web(3, spread=(OVER_ZONES,))])
    assert by_zone(one_leaves) == {"a": 1, "b": 2}


def test_too_few_domains_count_as_empty() -> None:
    # With fewer zones than minDomains, the smallest count is 0.
    zones = [zoned("a", "a"), zoned("b", "b")]
    term = replace(OVER_ZONES, min_domains=3)
    assert by_zone(cluster(zones, [web(6, least=1, spread=(term,))])) == {"a": 1, "b": 1}
    enough = replace(OVER_ZONES, min_domains=2)
    assert by_zone(cluster(zones, [web(6, least=1, spread=(enough,))])) == {"a": 3, "b": 3}


def test_nodes_without_the_label_take_none() -> None:
    assert by_zone(cluster([node("n")], [web(1, spread=(OVER_ZONES,))])) == {}


def test_a_task_that_its_own_constraint_does_not_count() -> None:
    db = LabelSelector((Requirement("app", Operator.IN, ("db",)),))
    zones = [zoned("a", "a"), zoned("b", "b", cpu=0)]
    elsewhere = replace(OVER_ZONES, selector=db)
    assert by_zone(cluster(zones, [web(5, spread=(elsewhere,))])) == {"a": 5}


def test_other_namespaces_do_not_count() -> None:
    zones = [zoned("a", "a"), zoned("b", "b", cpu=0)]
    elsewhere = replace(OVER_ZONES, namespace="elsewhere")
    assert by_zone(cluster(zones, [web(5, spread=(elsewhere,))])) == {"a": 5}


# --- which nodes count ---------------------------------------------------------------------------


@pytest.mark.parametrize(("honour", "placed"), [(True, {"a": 4}), (False, {"a": 1})])
def test_zones_that_node_affinity_excludes(honour: bool, placed: dict[str, int]) -> None:
    # nodeAffinityPolicy Honor (the default) excludes the empty zone b from the smallest count.
    zones = [zoned("a", "a"), zoned("b", "b")]
    term = replace(OVER_ZONES, honour_affinity=honour)
    tasks = web(4, least=1, spread=(term,), node_affinity=only("a"))
    assert by_zone(cluster(zones, [tasks])) == placed


@pytest.mark.parametrize(("honour", "placed"), [(True, {"a": 4}), (False, {"a": 1})])
def test_zones_that_taints_exclude(honour: bool, placed: dict[str, int]) -> None:
    # Ignore is the default of nodeTaintsPolicy.
    spot = Taint("spot", "", TaintEffect.NO_SCHEDULE)
    zones = [zoned("a", "a"), zoned("b", "b", taints=(spot,))]
    term = replace(OVER_ZONES, honour_taints=honour)
    assert by_zone(cluster(zones, [web(4, least=1, spread=(term,))])) == placed


def test_zones_whose_nodes_are_not_ready_do_not_count() -> None:
    # Upstream counts NotReady nodes unless taints are honoured; Volcano's snapshot omits them.
    zones = [zoned("a", "a"), zoned("b", "b", ready=False)]
    assert by_zone(cluster(zones, [web(3, spread=(OVER_ZONES,))])) == {"a": 3}


def test_nodes_that_lack_the_label_of_another_constraint_do_not_count() -> None:
    # Upstream considers only nodes that have the labels of all constraints of the pod.
    by_rack = replace(OVER_ZONES, topology_key="rack", max_skew=9)
    racked = [
        node("a", 8, labels={ZONE: "a", "rack": "1"}),
        node("b", 8, labels={ZONE: "b"}),
    ]
    tasks = web(3, spread=(OVER_ZONES, by_rack))
    assert by_zone(cluster(racked, [tasks])) == {"a": 3}


def test_two_constraints_hold_at_once() -> None:
    nodes = [zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b")]
    over_hosts = replace(OVER_ZONES, topology_key=HOST)
    snapshot = cluster(nodes, [web(4, least=1, spread=(OVER_ZONES, over_hosts))])
    assert by_zone(snapshot) == {"a": 2, "b": 2}


# --- several gangs -------------------------------------------------------------------------------


def test_tasks_that_are_only_counted_come_last() -> None:
    # If the plain task in b counted first, a could hold two tasks; the verifier counts it last.
    zones = [zoned("a", "a"), zoned("b", "b", cpu=1)]
    plain = replace(web(1, "plain", node_affinity=only("b")), priority=5)
    spread = web(2, "spread", spread=(OVER_ZONES,))
    assert by_zone(cluster(zones, [plain, spread])) == {"b": 1}


def test_later_tasks_do_not_break_the_constraint_of_earlier_ones() -> None:
    # Tasks restricted to zone a have one domain and no skew; the first gang has two domains.
    zones = [zoned("a", "a"), zoned("b", "b", cpu=1)]
    both = replace(
        gang("both", ("w", 1, shape(2, spread=(OVER_ZONES,))), labels={"app": "web"}), priority=5
    )
    bound = web(2, "bound", spread=(OVER_ZONES,), node_affinity=only("a"))
    assert by_zone(cluster(zones, [both, bound])) == {"a": 1}


def test_soft_constraints_are_not_rules() -> None:
    soft = replace(OVER_ZONES, required=False)
    zones = [zoned("a", "a"), zoned("b", "b", cpu=0)]
    assert by_zone(cluster(zones, [web(4, spread=(soft,))])) == {"a": 4}
