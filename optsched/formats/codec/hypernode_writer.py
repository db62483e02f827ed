"""HyperNodes, and what gangs ask of the network, as the API writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.formats.codec.selector_writer import label_selector_fields

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.topology import HyperNode, SubGroupRule, Topology, TopologyRequest

Manifest = dict[str, Any]


def topology_spec(gang: Gang) -> Manifest:
    """The fields of a PodGroup's `spec` about networks and smaller groups."""
    policies = [_policy(rule) for rule in gang.sub_groups]
    return {**_request(gang.topology), **({"subGroupPolicy": policies} if policies else {})}


def hypernode_spec(hypernode: HyperNode, topology: Topology) -> Manifest:
    """The `spec` of a HyperNode, with all its members by name."""
    below = topology.members.get(hypernode.name, ())
    members = [*(("HyperNode", name) for name in below), *(("Node", n) for n in hypernode.nodes)]
    return {
        "tier": hypernode.tier,
        **({"tierName": hypernode.tier_name} if hypernode.tier_name else {}),
        "members": [
            {"type": kind, "selector": {"exactMatch": {"name": name}}} for kind, name in members
        ],
    }


def _request(request: TopologyRequest | None) -> Manifest:
    if request is None:
        return {}
    tier, tier_name = request.highest_tier, request.highest_tier_name
    limit = {} if tier is None else {"highestTierAllowed": tier}
    named = {"highestTierName": tier_name} if tier_name else {}
    return {"networkTopology": {"mode": request.mode.value, **limit, **named}}


def _policy(rule: SubGroupRule) -> Manifest:
    selector = rule.selector
    return {
        "name": rule.name,
        "subGroupSize": rule.size,
        "minSubGroups": rule.min_groups,
        "matchLabelKeys": list(rule.keys),
        **({} if selector is None else {"labelSelector": label_selector_fields(selector)}),
        **_request(rule.topology),
    }
