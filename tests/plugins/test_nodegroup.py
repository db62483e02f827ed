"""Tests of queues and node groups: allowed nodes, limits and scores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.snapshot import NodeGroups, Queue
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.nodes.nodegroup import GROUP, NodeGroup
from optsched.plugins.ruleset import RuleSet
from optsched.problem.compile import compile_problem
from tests.support.engines import Bench, placed_by_gang, reason
from tests.support.small import CPU, cluster, gang, node, running, shape

NODES = [
    *(node(f"n{i}", labels={GROUP: f"g{i}"}) for i in (1, 2, 3, 4)),
    node("n5"),
]
FULL = NodeGroups(("g1", "g3"), ("g3",), ("g2", "g4"), ("g4",))
UP_TO_TWO = NodeGroups(("g1", "g2"), ("g1",), limits=(("g1", ((CPU, 2000),)),))


def snapshot_of(groups: NodeGroups, *more: Queue, queue: str = "q", number: int = 1):
    made = gang("g", ("w", number, shape()), queue=queue)
    return cluster(NODES, [made], [Queue("q", node_groups=groups), *more])


def open_nodes(rule: NodeGroup, groups: NodeGroups, *more: Queue, queue: str = "q") -> list[str]:
    """Return the nodes that the mask allows a task; the verifier must agree."""
    snapshot = snapshot_of(groups, *more, queue=queue)
    bench = Bench.of(snapshot, RuleSet.of(rule))
    mask = rule.mask(bench.problem, 0)
    found = [n.name for i, n in enumerate(snapshot.nodes) if mask is None or mask[i]]
    for name in (n.name for n in snapshot.nodes):
        broken = bench.broken(bench.decisions({"ns/g-w-0": name}))
        assert (broken == []) is (name in found)
    return found


def scores(rule: NodeGroup, groups: NodeGroups) -> list[float]:
    score = rule.class_score(compile_problem(snapshot_of(groups)), 0)
    return [] if score is None else score.tolist()


# --- mask ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (FULL, ["n1", "n3", "n4"]),
        (NodeGroups(preferred=("g2",)), ["n2"]),
        (NodeGroups(("g1", "g2"), ("g1",), ("g1",), ("g2",)), ["n2"]),
        (NodeGroups(excluded=("g1",)), []),
        (NodeGroups(("g9",)), []),
        (NodeGroups(), []),
    ],
)
def test_a_group_is_open_if_it_is_named_and_not_excluded_or_the_last_resort(
    groups: NodeGroups, names: list[str]
) -> None:
    assert open_nodes(NodeGroup(), groups) == names


def test_without_strictness_queues_that_name_no_group_have_the_rest() -> None:
    assert open_nodes(NodeGroup(strict=False), NodeGroups()) == ["n5"]
    assert open_nodes(NodeGroup(strict=False), FULL) == ["n1", "n3", "n4"]


@pytest.mark.parametrize(("inherits", "names"), [(True, ["n2"]), (False, [])])
def test_a_tree_hands_groups_down_where_it_is_asked_to(inherits: bool, names: list[str]) -> None:
    child, grandchild = Queue("a", parent="q"), Queue("b", parent="a")
    rule = NodeGroup(inherits=inherits)
    assert open_nodes(rule, NodeGroups(("g2",)), child, grandchild, queue="b") == names


def test_the_nearest_ancestor_counts() -> None:
    child = Queue("a", parent="q", node_groups=NodeGroups(("g3",)))
    rule, top = NodeGroup(inherits=True), NodeGroups(("g2",))
    assert open_nodes(rule, top, child, Queue("b", parent="a"), queue="b") == ["n3"]


def test_a_tree_that_goes_round_in_circles_ends() -> None:
    round_ = [Queue("a", parent="b"), Queue("b", parent="a")]
    assert NodeGroup(inherits=True).find_groups(cluster([], [], round_), "a") == NodeGroups()


def test_two_queues_see_their_own_groups() -> None:
    gangs = [gang(q, ("w", 1, shape()), queue=q) for q in ("a", "b")]
    queues = [
        Queue("a", node_groups=NodeGroups(("g1",))),
        Queue("b", node_groups=NodeGroups(("g2",))),
    ]
    bench = Bench.of(cluster(NODES, gangs, queues), RuleSet.of(NodeGroup()))
    assert len(bench.problem.classes.shapes) == 2
    placed = {a.task: a.node for a in bench.actions(bench.greedy())}
    assert placed == {"ns/a-w-0": "n1", "ns/b-w-0": "n2"}


# --- score ---------------------------------------------------------------------------------------


def test_required_preferred_and_last_resort_have_their_scores() -> None:
    assert scores(NodeGroup(), FULL) == [100.0, 0.0, 150.0, -1.0, 0.0]
    assert scores(NodeGroup(), NodeGroups()) == []


def test_preferred_groups_may_count_in_their_order() -> None:
    ordered = NodeGroups(preferred=("g1", "g3", "g2", "g4"))
    assert scores(NodeGroup(in_order=True), ordered) == [50.0, 25.0, 37.5, 12.5, 0.0]


# --- limits --------------------------------------------------------------------------------------

RULES = RuleSet.of(Gang(), NodeGroup())


@pytest.mark.parametrize(("number", "placed"), [(6, 6), (7, 0)])
def test_what_goes_beyond_a_limit_goes_elsewhere(number: int, placed: int) -> None:
    # n1 holds two tasks by its limit, and n2 holds four by its size
    assert placed_by_gang(snapshot_of(UP_TO_TWO, number=number), RULES) == {"g": placed}


def test_what_runs_there_counts_and_what_others_run_does_not() -> None:
    mine = gang("mine", ("w", 1, shape()), queue="q")
    mine = replace(mine, tasks=(running(mine.tasks[0], "n1"),))
    other = gang("other", ("w", 1, shape()))
    other = replace(other, tasks=(running(other.tasks[0], "n1"),))
    asks = gang("g", ("w", 2, shape()), queue="q")
    only = NodeGroups(("g1",), limits=UP_TO_TWO.limits)
    queue = Queue("q", node_groups=only)
    found = placed_by_gang(cluster(NODES, [mine, other, asks], [queue]), RULES)
    assert found == {"g": 0, "mine": 0, "other": 0}
    assert placed_by_gang(cluster(NODES, [other, asks], [queue]), RULES)["g"] == 2


def test_a_resource_without_a_limit_is_free() -> None:
    only_gpu = NodeGroups(("g1",), limits=(("g1", (("nvidia.com/gpu", 0),)),))
    assert placed_by_gang(snapshot_of(only_gpu, number=4), RULES) == {"g": 4}


def test_models_node_by_node_know_limits() -> None:
    bench = Bench.of(snapshot_of(UP_TO_TWO, number=3), RULES)
    two_one = {"ns/g-w-0": "n1", "ns/g-w-1": "n1", "ns/g-w-2": "n2"}
    three = dict.fromkeys(two_one, "n1")
    assert bench.direct_allows(two_one)
    assert not bench.direct_allows(three)
    assert bench.broken(bench.decisions(three)) == ["nodegroup"]
    assert bench.tied_by() == ("nodegroup",)


def test_limits_that_can_not_be_read_forbid_everything_and_say_so() -> None:
    groups = NodeGroups(("g1",), problem="annotation x is not JSON")
    assert open_nodes(NodeGroup(), groups) == []
    assert reason(snapshot_of(groups), RULES, "g") == (
        "InvalidQueue: queue q: annotation x is not JSON"
    )


def test_a_gang_without_a_group_is_told_so() -> None:
    assert "did not belong to node groups that queue q may use" in reason(
        snapshot_of(NodeGroups(("g9",))), RULES, "g"
    )
