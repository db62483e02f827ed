from __future__ import annotations

from typing import Any

import pytest

from optsched.api.fields import LabelCondition, LabelSelector
from optsched.api.hypernode import (
    HyperNode,
    HyperNodeCondition,
    Member,
    MemberType,
    parse_hypernode,
)


def hypernode(spec: Any, status: Any = None) -> HyperNode:
    found, errors = parse_hypernode({"metadata": {"name": "s0"}, "spec": spec, "status": status})
    assert found is not None
    assert found.errors == errors
    return found


def node(**selector: Any) -> dict[str, Any]:
    return {"type": "Node", "selector": selector}


def test_every_field_of_a_full_hypernode():
    expression = {"key": "rack", "operator": "In", "values": ["a", "b"]}
    found = hypernode(
        {
            "tier": 2,
            "tierName": "spine",
            "members": [
                {"type": "HyperNode", "selector": {"exactMatch": {"name": "leaf-1"}}},
                node(exactMatch={"name": "n1"}),
                node(regexMatch={"pattern": "^gpu-[0-9]+$"}),
                node(labelMatch={"matchLabels": {"zone": "x"}, "matchExpressions": [expression]}),
            ],
        },
        {
            "nodeCount": 7,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "observedGeneration": 3,
                    "lastTransitionTime": "2026-11-21T05:38:00Z",
                    "reason": "Built",
                    "message": "all members found",
                }
            ],
        },
    )
    assert not found.errors
    assert (found.name, found.tier, found.tier_name, found.num_nodes) == ("s0", 2, "spine", 7)
    assert found.members == (
        Member(MemberType.HYPER_NODE, name="leaf-1"),
        Member(MemberType.NODE, name="n1"),
        Member(MemberType.NODE, pattern="^gpu-[0-9]+$"),
        Member(
            MemberType.NODE,
            labels=LabelSelector({"zone": "x"}, (LabelCondition("rack", "In", ("a", "b")),)),
        ),
    )
    assert found.conditions == (
        HyperNodeCondition("Ready", "True", 3, 1795239480000, "Built", "all members found"),
    )


def test_tier_zero_is_a_tier():
    assert hypernode({"tier": 0, "members": [node(exactMatch={"name": "n"})]}).tier == 0


@pytest.mark.parametrize("tier", [None, -1, "1", 1.5, True])
def test_without_a_readable_tier_there_is_none(tier: Any):
    found = hypernode({"tier": tier, "members": [node(exactMatch={"name": "n"})]})
    assert found.tier is None
    assert [error.path for error in found.errors] == ["spec.tier"]


@pytest.mark.parametrize(
    ("member", "path"),
    [
        ({}, "spec.members[0].type"),
        ({"type": "Node"}, "spec.members[0].selector"),
        (node(), "spec.members[0].selector"),
        (
            node(exactMatch={"name": "n"}, regexMatch={"pattern": "n"}),
            "spec.members[0].selector",
        ),
        ({"type": "HyperNode", "selector": {"labelMatch": {}}}, "spec.members[0].selector"),
        (
            {"type": "HyperNode", "selector": {"regexMatch": {"pattern": "s.*"}}},
            "spec.members[0].selector",
        ),
        (node(regexMatch={"pattern": "("}), "spec.members[0].selector.regexMatch.pattern"),
        (node(exactMatch={}), "spec.members[0].selector.exactMatch.name"),
    ],
)
def test_a_bad_member_is_named_and_left_out(member: Any, path: str):
    found = hypernode({"tier": 1, "members": [member, node(exactMatch={"name": "good"})]})
    assert path in [error.path for error in found.errors]
    assert found.members == (Member(MemberType.NODE, name="good"),)


@pytest.mark.parametrize("members", [None, []])
def test_a_hypernode_has_members(members: Any):
    found = hypernode({"tier": 1, "members": members})
    assert [error.path for error in found.errors] == ["spec.members"]


@pytest.mark.parametrize("obj", [None, {}, {"metadata": {}}])
def test_without_a_name_there_is_no_hypernode(obj: Any):
    found, errors = parse_hypernode(obj)
    assert found is None
    assert len(errors) == 1
