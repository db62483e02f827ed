"""The pods of a gang stay together in the network topology."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.api.wellknown import ALLOCATED_HYPERNODE
from optsched.cluster.topology import Topology, TopologyMode, TopologyRequest
from optsched.plugins.accounting import Outcome
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.gangs.gang import SubGroups
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.topology.network_topology import LEVEL, NetworkTopology
from tests.support.engines import Bench, binds, reason
from tests.support.small import ZONE, cluster, gang, network, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Node, Snapshot

RULES = RuleSet.of(GangRule(), SubGroups(), Priority(), NetworkTopology())
LEVELS = ("admission", "tasks", "topology")
NODES = [node(name, 4) for name in ("a1", "a2", "b1", "b2", "c1", "c2")]
TREE = network(["a1", "a2"], ["b1", "b2"], ["c1", "c2"], spines=[[0, 1]])
"""Racks r0 (a), r1 (b), r2 (c); r0 and r1 are below spine s0."""

ANY, RACK, SPINE = (TopologyRequest(highest_tier=t) for t in (None, 1, 2))
SOFT = TopologyRequest(TopologyMode.SOFT)


def asks(
    name: str, number: int, request: TopologyRequest | None, cpu: int = 4, least: int | None = None
) -> Gang:
    return replace(gang(name, ("w", number, shape(cpu)), least=least), topology=request)


def runs(made: Gang, *where: str) -> Gang:
    there = [running(t, at) for t, at in zip(made.tasks, where, strict=False)]
    return replace(made, tasks=(*there, *made.tasks[len(where) :]))


def net(*gangs: Gang, nodes: Sequence[Node] = NODES, tree: Topology = TREE) -> Snapshot:
    return replace(cluster(list(nodes), list(gangs)), topology=tree)


def placed(snapshot: Snapshot, name: str = "g") -> list[str]:
    """Return the nodes of a gang; the pipeline must match the solver on every level."""
    bench = Bench.of(snapshot, RULES, LEVELS)
    greedy = bench.greedy()
    answer = bench.improved(greedy)
    assert bench.broken(greedy) == []
    assert answer.engine.startswith("greedy")
    found = binds(bench.actions(greedy))
    return sorted(where for task, where in found.items() if task.startswith(f"ns/{name}-"))


# --- hard ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "request_", "nodes"),
    [
        (2, RACK, ["a1", "a2"]),
        (3, RACK, []),
        (3, SPINE, ["a1", "a2", "b1"]),
        (5, SPINE, []),
        (2, TopologyRequest(highest_tier_name="rack"), ["a1", "a2"]),
        (3, TopologyRequest(highest_tier_name="spine"), ["a1", "a2", "b1"]),
        (5, TopologyRequest(highest_tier=3), ["a1", "a2", "b1", "b2", "c1"]),
        (6, TopologyRequest(highest_tier_name="volcano.sh/hypercluster"), [n.name for n in NODES]),
        (4, ANY, ["a1", "a2", "b1", "b2"]),
        (5, ANY, []),
    ],
    ids=str,
)
def test_a_hard_gang_stays_within_a_tier(
    number: int, request_: TopologyRequest, nodes: list[str]
) -> None:
    assert placed(net(asks("g", number, request_))) == nodes


def test_the_lowest_tier_with_room_is_taken() -> None:
    other = runs(gang("other", ("w", 2, shape(4))), "a1", "b1")
    assert placed(net(other, asks("g", 1, SPINE), asks("h", 2, SPINE)), "h") == ["c1", "c2"]
    full = runs(gang("full", ("w", 2, shape(4))), "c1", "c2")
    assert placed(net(other, full, asks("g", 2, SPINE))) == ["a2", "b2"]


def test_the_fuller_domain_is_taken() -> None:
    other = runs(gang("other", ("w", 1, shape(2))), "b2")
    assert placed(net(other, asks("g", 2, RACK, cpu=2))) == ["b1", "b1"]


def test_the_one_it_was_in_before_is_taken() -> None:
    def before(name: str) -> Gang:
        return replace(asks("g", 2, RACK), annotations={ALLOCATED_HYPERNODE: name})

    assert placed(net(before("r2"))) == ["c1", "c2"]
    assert placed(net(before("gone"))) == ["a1", "a2"]


def test_running_tasks_hold_a_gang_where_it_is() -> None:
    assert placed(net(runs(asks("g", 4, RACK, cpu=2), "c2"))) == ["c1", "c1", "c2"]
    assert placed(net(runs(asks("g", 4, RACK, least=1), "c2"))) == ["c1"]
    assert placed(net(runs(asks("g", 4, RACK, least=3), "c2"))) == []


def test_further_tasks_go_as_near_as_there_is_room() -> None:
    other = runs(gang("other", ("w", 1, shape(4))), "a2")
    assert placed(net(other, runs(asks("g", 3, SPINE, least=1), "a1"))) == ["b1", "b2"]


def test_gangs_that_ask_nothing_are_not_held() -> None:
    assert len(placed(net(asks("g", 6, None)))) == 6


def test_nodes_in_no_hypernode_are_for_others() -> None:
    nodes = [*NODES, node("z1"), node("z2")]
    assert placed(net(asks("g", 7, ANY, least=1), nodes=nodes)) == ["a1", "a2", "b1", "b2"]
    assert len(placed(net(asks("g", 8, None), nodes=nodes))) == 8


def test_labels_of_nodes_are_domains_too() -> None:
    nodes = [node(n, labels={ZONE: n[0]} if n[0] != "c" else {}) for n in ("a1", "b1", "b2", "c1")]
    zone = TopologyRequest(label=ZONE)
    assert placed(net(asks("g", 2, zone), nodes=nodes, tree=Topology())) == ["b1", "b2"]
    assert placed(net(asks("g", 3, zone), nodes=nodes, tree=Topology())) == []


# --- soft ----------------------------------------------------------------------------------------


def test_a_soft_gang_is_kept_together_or_not() -> None:
    other = runs(gang("other", ("w", 1, shape(4))), "a1")
    assert placed(net(other, asks("g", 2, SOFT))) == ["b1", "b2"]
    assert placed(net(other, asks("g", 3, SOFT))) == ["a2", "b1", "b2"]
    assert len(placed(net(other, asks("g", 5, SOFT)))) == 5


def test_the_level_counts_tiers() -> None:
    def tiers(binding: Mapping[str, str], *gangs: Gang) -> tuple[int, int]:
        bench = Bench.of(net(*gangs), RULES, LEVELS)
        level = bench.levels[-1]
        assert level.name == LEVEL
        value = level.value(Outcome(bench.problem, bench.decisions(binding)))
        return value, level.ideal(bench.problem)

    near, far = asks("n", 2, SOFT), asks("f", 2, RACK)
    at = {"ns/n-w-0": "a1", "ns/f-w-0": "c1", "ns/f-w-1": "c2"}
    assert tiers({}, near, far) == (2, 2)
    assert tiers({**at, "ns/n-w-1": "a2"}, near, far) == (2, 2)
    assert tiers({**at, "ns/n-w-1": "b2"}, near, far) == (3, 2)
    assert tiers({**at, "ns/n-w-1": "c2"}, near, far) == (4, 2)
    assert tiers({"ns/n-w-1": "c1"}, runs(near, "a1"), far) == (4, 2)


def test_nobody_asks_no_level() -> None:
    assert [t.name for t in Bench.of(net(asks("g", 2, None)), RULES, ("topology",)).levels] == []


# --- verify --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "nodes", "broken"),
    [
        (RACK, "a1 a2", False),
        (RACK, "a1 b1", True),
        (SPINE, "a1 b1", False),
        (SPINE, "a1 c1", True),
        (SOFT, "a1 c1", False),
        (ANY, "a1 c1", True),
        (TopologyRequest(highest_tier=3), "a1 c1", False),
        (TopologyRequest(highest_tier_name="spine"), "a1 a2", False),
        (TopologyRequest(highest_tier_name="spine"), "c1 c2", True),
        (TopologyRequest(highest_tier_name="row"), "a1 a2", True),
    ],
    ids=str,
)
def test_the_verifier_walks_the_tree(
    request_: TopologyRequest, nodes: str, *, broken: bool
) -> None:
    first, second = nodes.split()
    pairs = {"ns/g-w-0": first, "ns/g-w-1": second}
    for made, plan in (
        (asks("g", 2, request_), pairs),
        (runs(asks("g", 2, request_), first), {"ns/g-w-1": second}),
    ):
        bench = Bench.of(net(made), RULES)
        assert bench.broken(bench.decisions(plan)) == ["network-topology"] * broken


# --- reasons -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (asks("g", 3, RACK), "none has room for all 3 pods: the HyperNode with the most, r0, has"),
        (asks("g", 2, TopologyRequest(highest_tier_name="row")), "row"),
        (asks("g", 1, RACK, cpu=5), "cpu"),
        (runs(asks("g", 3, RACK), "a1", "b1"), "its running pods are on a1, b1, which are not"),
    ],
    ids=["room", "name", "node", "apart"],
)
def test_gangs_are_told_why_they_wait(made: Gang, text: str) -> None:
    assert text in reason(net(made), RULES, "g")


def test_a_missing_network_is_told() -> None:
    assert "no HyperNode exists" in reason(net(asks("g", 1, RACK), tree=Topology()), RULES, "g")
    zone = TopologyRequest(label=ZONE)
    assert "no node has the label" in reason(net(asks("g", 1, zone)), RULES, "g")


# --- scores --------------------------------------------------------------------------------------


def test_others_fill_racks_in_use() -> None:
    other = runs(gang("other", ("w", 1, shape(2))), "b2")
    tree = network(["a1", "a2"], ["b1", "b2"], ["c1", "c2"])
    bench = Bench.of(net(other, asks("g", 1, None, cpu=1), tree=tree), RULES)
    (task_class,) = np.flatnonzero(bench.problem.classes.num_pending)
    score = NetworkTopology().class_score(bench.problem, int(task_class))
    assert score is not None
    assert np.argsort(-score, kind="stable")[:2].tolist() == [2, 3]
    assert NetworkTopology(packs_others=False).class_score(bench.problem, int(task_class)) is None
    assert NetworkTopology(weight=0).class_score(bench.problem, int(task_class)) is None


def test_too_many_domains_are_left_to_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.of(net(asks("g", 2, RACK), asks("h", 2, SOFT)), RULES)
    assert bench.tied_by() == ()
    monkeypatch.setattr("optsched.plugins.topology.network_topology.MOST_CHOICES", 2)
    assert bench.tied_by() == ("network-topology",)
    tied = NetworkTopology().find_tied_gangs(bench.problem)
    assert tied is not None
    assert tied.tolist() == [True, False]
