"""Domain selectors as the API writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.cluster.selectors import Operator

if TYPE_CHECKING:
    from optsched.cluster.selectors import LabelSelector, NodeSelector, NodeTerm, Requirement


def label_selector_fields(selector: LabelSelector) -> dict[str, Any]:
    """A `meta/v1.LabelSelector`, in conditions alone so that their order stays."""
    return {"matchExpressions": [_condition(each) for each in selector.requirements]}


def node_selector_fields(selector: NodeSelector) -> dict[str, Any]:
    """A `core/v1.NodeSelector`."""
    return {"nodeSelectorTerms": [node_term_fields(term) for term in selector.terms]}


def node_term_fields(term: NodeTerm) -> dict[str, Any]:
    """A `core/v1.NodeSelectorTerm`."""
    return {
        "matchExpressions": [_condition(each) for each in term.labels],
        "matchFields": [_condition(each) for each in term.names],
    }


def topology_fields(selector: NodeSelector) -> list[dict[str, Any]]:
    """A StorageClass's `allowedTopologies`; ValueError for what these cannot say."""
    return [
        {"matchLabelExpressions": [_topology(each) for each in (*term.labels, *term.names)]}
        for term in selector.terms
    ]


def _condition(requirement: Requirement) -> dict[str, Any]:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator.value, **values}


def _topology(requirement: Requirement) -> dict[str, Any]:
    if requirement.operator is not Operator.IN:
        raise ValueError(f"{requirement}: a storage class allows labels by their values alone")
    return {"key": requirement.key, "values": list(requirement.values)}
