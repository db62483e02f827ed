"""Tests of topology trees as arrays, and of the domains that gangs may use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.topology import (
    HyperNode,
    SubGroupRule,
    Topology,
    TopologyMode,
    TopologyRequest,
)
from optsched.problem.compile import compile_problem
from optsched.problem.topology import CLUSTER, NOWHERE, Bound, Forest
from tests.support.small import (
    HOST,
    ZONE,
    cluster,
    gang,
    network,
    node,
    random_network,
    running,
    shape,
)

NODES = [node(f"n{i}", labels={ZONE: "ab"[i % 2]} if i < 4 else {}) for i in range(6)]
NAMES = [n.name for n in NODES]
TREE = network(["n0", "n1"], ["n2", "n3"], ["n4"], spines=[[0, 1]])


def forest_of(topology: Topology, nodes=NODES) -> Forest:
    return compile_problem(replace(cluster(nodes, []), topology=topology)).topology.forests[0]


def bound_of(request: TopologyRequest, held: tuple[str, ...] = (), topology=TREE) -> Bound:
    made = gang("g", ("w", len(held) + 1, shape(1)), least=1, topology=request)
    tasks = [running(t, name) for t, name in zip(made.tasks, held, strict=False)]
    made = replace(made, tasks=(*tasks, *made.tasks[len(held) :]))
    problem = compile_problem(replace(cluster(NODES, [made]), topology=topology))
    (bounds,) = problem.topology.bounds
    assert bounds.whole is not None
    return bounds.whole


def allowed(bound: Bound, topology=TREE) -> set[str]:
    forest = forest_of(topology)
    return {forest.names[d] for d in np.flatnonzero(bound.allowed).tolist()}


def test_domains_stand_in_preorder() -> None:
    forest = forest_of(TREE)
    assert forest.names == ("", "r2", "s0", "r0", "r1")
    assert forest.tier.tolist() == [3, 1, 2, 1, 1]
    assert forest.parent.tolist() == [-1, 0, 0, 2, 2]
    assert forest.end.tolist() == [5, 2, 5, 4, 5]
    assert [forest.names[d] for d in forest.leaf_of.tolist()] == ["r0", "r0", "r1", "r1", "r2", ""]


@pytest.mark.parametrize("seed", range(40))
def test_domains_hold_what_the_tree_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_network(rng, NAMES)
    forest = forest_of(topology)
    covered = {**topology.covered, "": frozenset(NAMES)}
    values = rng.integers(0, 9, (len(NAMES), 2))
    sums = forest.sums(values)
    for d, name in enumerate(forest.names):
        inside = forest.inside(d)
        assert {n for n, is_in in zip(NAMES, inside, strict=True) if is_in} == covered[name]
        assert sums[d].tolist() == values[inside].sum(axis=0).tolist()
    chosen = np.flatnonzero(rng.random(len(NAMES)) < 0.4)
    if len(chosen):
        wanted = {NAMES[i] for i in chosen.tolist()}
        fitting = [d for d, name in enumerate(forest.names) if wanted <= covered[name]]
        assert forest.tier[forest.holder(chosen)] == min(forest.tier[fitting])


def test_nothing_is_held_nowhere() -> None:
    forest = forest_of(TREE)
    assert forest.holder(np.array([], np.int64)) == NOWHERE
    assert forest.holder(np.array([0, 5])) == CLUSTER


def test_without_hypernodes_there_is_the_cluster_alone() -> None:
    forest = forest_of(Topology())
    assert forest.names == ("",)
    assert forest.sums(np.ones(6, np.int64)).tolist() == [6]


@pytest.mark.parametrize(
    ("request_", "domains"),
    [
        (TopologyRequest(highest_tier=1), {"r0", "r1", "r2"}),
        (TopologyRequest(highest_tier=2), {"r0", "r1", "r2", "s0"}),
        (TopologyRequest(highest_tier=3), {"r0", "r1", "r2", "s0", ""}),
        (TopologyRequest(), {"r0", "r1", "r2", "s0"}),
        (TopologyRequest(highest_tier_name="rack"), {"r0", "r1", "r2"}),
        (TopologyRequest(highest_tier_name="spine"), {"r0", "r1", "s0"}),
        (TopologyRequest(TopologyMode.SOFT, highest_tier=1), {"r0", "r1", "r2", "s0", ""}),
    ],
)
def test_what_requests_allow(request_: TopologyRequest, domains: set[str]) -> None:
    bound = bound_of(request_)
    assert bound.problem is None
    assert allowed(bound) == domains


@pytest.mark.parametrize(
    ("request_", "topology", "message"),
    [
        (
            TopologyRequest(highest_tier_name="pod"),
            TREE,
            "no HyperNode has tierName pod; known names: rack, spine",
        ),
        (
            TopologyRequest(highest_tier=0),
            TREE,
            "no HyperNode has tier 0 or below; known tiers: 1, 2",
        ),
        (
            TopologyRequest(highest_tier=1),
            Topology(),
            "it needs one HyperNode of tier 1 or below, but no HyperNode exists",
        ),
        (
            TopologyRequest(label="room"),
            TREE,
            "it needs one value of room, but no node has the label room",
        ),
    ],
)
def test_requests_that_nothing_can_meet(
    request_: TopologyRequest, topology: Topology, message: str
) -> None:
    problem = bound_of(request_, topology=topology).problem
    assert problem is not None
    assert (problem.code, problem.message) == (ReasonCode.TOPOLOGY_NOT_FOUND, message)


def test_a_wish_needs_no_hypernodes() -> None:
    assert bound_of(TopologyRequest(TopologyMode.SOFT), topology=Topology()).problem is None


def test_running_tasks_hold_a_domain() -> None:
    forest = forest_of(TREE)
    bound = bound_of(TopologyRequest(highest_tier=2), ("n0", "n2"))
    assert forest.names[bound.held] == "s0"
    assert bound.problem is None


def test_running_tasks_may_be_too_far_apart_already() -> None:
    problem = bound_of(TopologyRequest(highest_tier=1), ("n0", "n2")).problem
    assert problem is not None
    assert problem.code is ReasonCode.TOPOLOGY
    assert "n0, n2" in problem.message


def test_tasks_on_nodes_that_are_gone_hold_nothing() -> None:
    assert bound_of(TopologyRequest(highest_tier=1), ("gone",)).held == NOWHERE


def test_values_of_a_label_are_domains() -> None:
    made = gang("g", ("w", 1, shape(1)), topology=TopologyRequest(label=ZONE))
    other = gang("h", ("w", 1, shape(1)), topology=TopologyRequest(label=HOST))
    arrays = compile_problem(cluster(NODES, [made, other])).topology
    assert [f.label for f in arrays.forests] == ["", HOST, ZONE]
    zones = arrays.forests[2]
    assert zones.names == ("", "a", "b")
    assert zones.leaf_of.tolist() == [1, 2, 1, 2, 0, 0]
    assert arrays.num_cells == 6
    by_zone = next(b.whole for b in arrays.bounds if b.whole and b.whole.forest == 2)
    assert by_zone.allowed.tolist() == [False, True, True]


def test_groups_have_bounds_of_their_own() -> None:
    rule = SubGroupRule("r", keys=("part",), topology=TopologyRequest(highest_tier=1))
    made = gang("g", ("w", 2, shape(1)), labels={"part": "a"}, sub_groups=(rule,))
    problem = compile_problem(replace(cluster(NODES, [made]), topology=TREE))
    (bounds,) = problem.topology.bounds
    assert bounds.whole is None
    (part,) = bounds.parts
    assert part is not None
    assert allowed(part) == {"r0", "r1", "r2"}


def test_the_tree_is_laid_out_again_only_when_it_changes() -> None:
    snapshot = replace(cluster(NODES, []), topology=TREE)
    first = compile_problem(snapshot)
    second = compile_problem(replace(snapshot, taken_ms=5), first)
    assert second.topology.forests[0] is first.topology.forests[0]
    other = Topology((HyperNode("x", 1, nodes=("n0",)),))
    third = compile_problem(replace(snapshot, topology=other), second)
    assert third.topology.forests[0].names == ("", "x")
