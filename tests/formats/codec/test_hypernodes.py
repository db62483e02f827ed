"""HyperNodes form one tree, even if some of them are invalid."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.api.hypernode import parse_hypernode
from optsched.api.podgroup import parse_podgroup
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.topology import (
    HyperNode,
    SubGroupRule,
    Topology,
    TopologyMode,
    TopologyRequest,
)
from optsched.formats.codec.hypernodes import TopologyIndex
from optsched.formats.codec.pod_groups import gang_of_group
from optsched.formats.codec.pod_limits import Priorities
from optsched.formats.snapshots.assembly import assemble
from tests.formats.objects import group, node, thing

NODES = [f"n{i}" for i in range(1, 7)]


def exact(*names: str, kind: str = "Node") -> list[dict[str, Any]]:
    return [{"type": kind, "selector": {"exactMatch": {"name": name}}} for name in names]


def below(*names: str) -> list[dict[str, Any]]:
    return exact(*names, kind="HyperNode")


def regex(pattern: str) -> list[dict[str, Any]]:
    return [{"type": "Node", "selector": {"regexMatch": {"pattern": pattern}}}]


def labelled(**labels: str) -> list[dict[str, Any]]:
    return [{"type": "Node", "selector": {"labelMatch": {"matchLabels": labels}}}]


def hypernode(name: str, tier: object, members: list[dict[str, Any]]) -> dict[str, Any]:
    spec = {"tier": tier, "members": members}
    return thing("topology.volcano.sh/v1alpha1", "HyperNode", name, spec=spec)


def tree(*hypernodes: dict[str, Any], nodes: list[str] = NODES) -> Topology:
    return assemble([*map(node, nodes), *hypernodes]).snapshot.topology


def nodes_of(topology: Topology) -> dict[str, tuple[str, ...]]:
    return {h.name: h.nodes for h in topology.hypernodes}


def parents_of(topology: Topology) -> dict[str, str]:
    return {h.name: h.parent for h in topology.hypernodes}


def test_a_good_tree():
    found = tree(
        hypernode("a", 1, exact("n1", "n2")),
        hypernode("b", 1, regex("^n[34]$")),
        hypernode("top", 2, [*below("a", "b"), *exact("n5")]),
    )
    assert found.hypernodes == (
        HyperNode("a", 1, "", "top", ("n1", "n2")),
        HyperNode("b", 1, "", "top", ("n3", "n4")),
        HyperNode("top", 2, "", "", ("n5",)),
    )
    assert not found.problems


def test_members_by_label():
    nodes = [node("x1", {"rack": "a"}), node("x2", {"rack": "b"}), node("x3", {"rack": "a"})]
    found = assemble([*nodes, hypernode("a", 1, labelled(rack="a"))]).snapshot.topology
    assert nodes_of(found) == {"a": ("x1", "x3")}


def test_an_empty_selector_of_members_selects_nothing():
    assert nodes_of(tree(hypernode("a", 1, labelled()))) == {"a": ()}


@pytest.mark.parametrize(
    ("pattern", "selected_nodes"),
    [
        ("^n1", {"n1"}),
        ("^n", set(NODES)),
        ("1$", {"n1"}),
        ("^n1|2", {"n1", "n2"}),
        ("^n1?", set(NODES)),
        ("^(n1|n2)$", {"n1", "n2"}),
        ("^", set(NODES)),
    ],
)
def test_patterns_are_looked_for_anywhere_in_the_name(pattern: str, selected_nodes: set[str]):
    assert set(nodes_of(tree(hypernode("a", 1, regex(pattern))))["a"]) == selected_nodes


# --- what cannot be true at once ----------------------------------------------------------------


def test_a_circle_counts_for_nobody_and_spoils_nobody_else():
    found = tree(
        hypernode("a", 1, [*below("b"), *exact("n1")]),
        hypernode("b", 2, [*below("a"), *exact("n2")]),
        hypernode("c", 2, [*below("d")]),
        hypernode("d", 1, exact("n3")),
    )
    assert parents_of(found) == {"a": "", "b": "", "c": "", "d": "c"}
    assert nodes_of(found) == {"a": ("n1",), "b": ("n2",), "c": (), "d": ("n3",)}
    assert set(found.problems) == {"a", "b"}
    assert "cycle" in found.problems["a"][0]


def test_a_hypernode_is_not_its_own_member():
    found = tree(hypernode("a", 1, [*below("a"), *exact("n1")]))
    assert nodes_of(found) == {"a": ("n1",)}
    assert "cycle" in found.problems["a"][0]


def test_of_two_parents_the_first_has_it():
    found = tree(
        hypernode("leaf", 1, exact("n1")),
        hypernode("p1", 2, below("leaf")),
        hypernode("p2", 2, [*below("leaf"), *exact("n2")]),
    )
    assert parents_of(found)["leaf"] == "p1"
    assert found.covered["p2"] == {"n2"}
    assert found.problems == {
        "p2": ('spec.members[0]: "leaf" is already a member of p1',),
    }


def test_a_member_is_of_a_lower_tier():
    found = tree(hypernode("a", 2, exact("n1")), hypernode("b", 2, below("a")))
    assert parents_of(found) == {"a": "", "b": ""}
    assert "not below tier 2" in found.problems["b"][0]


@pytest.mark.parametrize("tier", [None, -1, "1"])
def test_without_a_tier_a_hypernode_says_nothing(tier: object):
    found = tree(hypernode("a", tier, exact("n1")), hypernode("b", 2, [*below("a"), *exact("n2")]))
    assert nodes_of(found) == {"b": ("n2",)}
    assert set(found.problems) == {"a", "b"}


def test_members_that_do_not_exist_are_told():
    found = tree(hypernode("a", 2, [*below("gone"), *exact("n1", "n99")]))
    assert nodes_of(found) == {"a": ("n1",)}
    assert found.problems["a"] == (
        'spec.members[0]: "gone" is not a HyperNode of this cluster',
        'spec.members[2]: "n99" is not a node of this cluster',
    )


def test_a_node_that_two_list_is_in_the_first():
    found = tree(hypernode("a", 1, exact("n1")), hypernode("b", 1, exact("n1", "n2")))
    assert nodes_of(found) == {"a": ("n1",), "b": ("n2",)}
    assert found.problems == {
        "b": ('spec.members[0]: "n1" is already a member of a, and this membership is ignored',)
    }


def test_a_node_may_be_listed_again_further_up():
    found = tree(hypernode("a", 1, exact("n1")), hypernode("b", 2, [*below("a"), *regex("^n")]))
    assert nodes_of(found) == {"a": ("n1",), "b": ("n2", "n3", "n4", "n5", "n6")}
    assert not found.problems


def test_remarks_are_reported_with_their_object():
    objects = [node("n1"), hypernode("a", 1, exact("n1", "n99"))]
    (problem,) = assemble(objects).problems
    assert str(problem) == 'HyperNode a: spec.members[1]: "n99" is not a node of this cluster'


# --- as things come and go -----------------------------------------------------------------------


def read(obj: dict[str, Any]) -> Any:
    return parse_hypernode(obj)[0]


def test_the_tree_follows_nodes_and_hypernodes():
    index = TopologyIndex()
    index.put_hypernode(read(hypernode("a", 1, [*exact("n1"), *regex("^x"), *labelled(rack="1")])))
    index.put_node("x1", {})
    assert nodes_of(index.topology()) == {"a": ("x1",)}
    index.put_node("n1", {})
    index.put_node("y", {"rack": "1"})
    assert nodes_of(index.topology()) == {"a": ("n1", "x1", "y")}
    index.put_node("y", {"rack": "2"})
    index.drop_node("x1")
    assert nodes_of(index.topology()) == {"a": ("n1",)}
    index.drop("a")
    assert index.topology() == Topology()


def test_what_does_not_matter_changes_nothing():
    index = TopologyIndex()
    index.put_node("n1", {"zone": "a"})
    index.put_hypernode(read(hypernode("a", 1, exact("n1"))))
    before = index.topology()
    index.put_node("n1", {"zone": "a"})
    index.put_node("n2", {})
    index.put_hypernode(read(hypernode("a", 1, exact("n1"))))
    index.drop_node("n3")
    assert index.topology() is before


# --- requests ------------------------------------------------------------------------------------


def test_what_a_podgroup_asks_of_the_network():
    spec = {
        "networkTopology": {"mode": "soft", "highestTierName": "spine"},
        "subGroupPolicy": [
            {
                "name": "tp",
                "subGroupSize": 8,
                "minSubGroups": 2,
                "labelSelector": {"matchLabels": {"role": "worker"}},
                "matchLabelKeys": ["volcano.sh/partition-id"],
                "networkTopology": {"highestTierAllowed": 1},
            }
        ],
    }
    podgroup, errors = parse_podgroup(
        group("g", spec, annotations={"volcano.sh/job-allocated-hypernode": "s1"})
    )
    assert podgroup is not None
    assert errors == ()
    gang, _ = gang_of_group(podgroup, (), Priorities())
    assert gang.topology == TopologyRequest(TopologyMode.SOFT, highest_tier_name="spine")
    assert gang.recorded_hypernode == "s1"
    workers = LabelSelector((Requirement("role", Operator.IN, ("worker",)),))
    assert gang.sub_groups == (
        SubGroupRule(
            name="tp",
            size=8,
            min_groups=2,
            selector=workers,
            keys=("volcano.sh/partition-id",),
            topology=TopologyRequest(highest_tier=1),
        ),
    )
