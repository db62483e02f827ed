from __future__ import annotations

import pytest

from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.topology import (
    HyperNode,
    SubGroupRule,
    Topology,
    TopologyMode,
    TopologyRequest,
    sub_group_of,
)

TREE = Topology(
    (
        HyperNode("leaf-a", 1, "rack", "spine", ("n1", "n2")),
        HyperNode("leaf-b", 1, "rack", "spine", ("n3",)),
        HyperNode("spine", 2, "", "", ("n4",)),
    )
)
WORKERS = LabelSelector((Requirement("role", Operator.IN, ("worker",)),))


def test_a_hypernode_covers_what_is_below_it():
    assert TREE.covered["leaf-a"] == {"n1", "n2"}
    assert TREE.covered["spine"] == {"n1", "n2", "n3", "n4"}
    assert TREE.members == {"": ("spine",), "spine": ("leaf-a", "leaf-b")}


def test_the_whole_cluster_is_one_tier_above_all():
    assert TREE.top_tier == 3
    assert Topology().top_tier == 1


def test_hypernodes_are_in_name_order():
    with pytest.raises(ValueError, match="'a' out of order"):
        Topology((HyperNode("b", 1), HyperNode("a", 1)))


@pytest.mark.parametrize(
    ("rule", "labels", "group"),
    [
        (SubGroupRule("r", keys=("id",)), {"id": "1"}, ("1",)),
        (SubGroupRule("r", keys=("id",)), {"id": ""}, None),
        (SubGroupRule("r", keys=("id", "role")), {"id": "1"}, None),
        (SubGroupRule("r", selector=WORKERS), {"role": "worker"}, ()),
        (SubGroupRule("r", selector=WORKERS), {"role": "ps"}, None),
        (SubGroupRule("r", selector=WORKERS, keys=("id",)), {"role": "worker"}, None),
        (SubGroupRule("r", selector=LabelSelector()), {}, ()),
        (SubGroupRule("r"), {"id": "1"}, None),
    ],
)
def test_who_is_in_a_group(
    rule: SubGroupRule, labels: dict[str, str], group: tuple[str, ...] | None
):
    assert rule.group_of(labels) == group


def test_the_first_rule_that_means_a_task_counts():
    rules = (SubGroupRule("a", selector=WORKERS), SubGroupRule("b", keys=("id",)))
    assert sub_group_of(rules, {"role": "worker", "id": "1"}) == (0, ())
    assert sub_group_of(rules, {"id": "1"}) == (1, ("1",))
    assert sub_group_of(rules, {}) is None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (TopologyRequest(highest_tier=0), "one HyperNode of tier 0 or below"),
        (TopologyRequest(highest_tier_name="rack"), "one HyperNode of tier rack or below"),
        (TopologyRequest(TopologyMode.SOFT), "one HyperNode"),
        (TopologyRequest(label="zone"), "one value of zone"),
    ],
)
def test_requests_in_words(request_: TopologyRequest, words: str):
    assert str(request_) == words
