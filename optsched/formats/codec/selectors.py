"""Reader and writer of label selectors, node selectors and tolerations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    TaintEffect,
    Toleration,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.api.fields import Fields

_LISTS = frozenset({Operator.IN, Operator.NOT_IN})
_NUMBERS = frozenset({Operator.GT, Operator.LT})
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def label_selector(fields: Fields | None) -> LabelSelector | None:
    """Parse a `meta/v1.LabelSelector`; a missing selector becomes None, which selects nothing."""
    if fields is None:
        return None
    labels = sorted(fields.texts_by_name("matchLabels").items())
    exact = (Requirement(key, Operator.IN, (value,)) for key, value in labels)
    return LabelSelector((*exact, *_requirements(fields, "matchExpressions")))


def with_label_keys(
    selector: LabelSelector | None,
    keys: Sequence[str],
    operator: Operator,
    labels: Mapping[str, str],
) -> LabelSelector | None:
    """Return a selector that also compares the given label keys with the pod's own label values.

    The field `matchLabelKeys` adds requirements with the operator In, `mismatchLabelKeys` with
    NotIn. The function ignores label keys that the pod does not have. A missing selector remains
    missing. Requirements that the API server has already merged are not added again. Upstream:
    pkg/registry/core/pod/strategy.go and the PodTopologySpread plugin.
    """
    if selector is None:
        return None
    merged = [Requirement(key, operator, (labels[key],)) for key in keys if key in labels]
    fresh = (r for r in merged if r not in selector.requirements)
    return LabelSelector((*selector.requirements, *fresh))


def node_selector(fields: Fields) -> NodeSelector:
    """Parse a `core/v1.NodeSelector`."""
    return NodeSelector(tuple(node_term(each) for each in fields.records("nodeSelectorTerms")))


def node_term(fields: Fields) -> NodeTerm:
    """Parse a `core/v1.NodeSelectorTerm`; its `matchFields` can match only the node name."""
    return NodeTerm(
        labels=tuple(_requirements(fields, "matchExpressions")),
        names=tuple(_requirements(fields, "matchFields")),
    )


def toleration(fields: Fields) -> Toleration:
    """Parse a toleration of a pod (`core/v1.Toleration`) or of a request in a ResourceClaim."""
    exists, effect = fields.text("operator") == "Exists", fields.text("effect")
    value = "" if exists else fields.text("value")
    return Toleration(fields.text("key"), exists, value, TaintEffect(effect) if effect else None)


def topology_selector(terms: Iterable[Fields]) -> NodeSelector | None:
    """Parse the `allowedTopologies` of a StorageClass; return None if every node is allowed."""
    allowed = tuple(
        NodeTerm(
            tuple(
                Requirement(each.text("key"), Operator.IN, each.texts("values"))
                for each in term.records("matchLabelExpressions")
            )
        )
        for term in terms
    )
    return NodeSelector(allowed) if allowed else None


def _requirements(fields: Fields, name: str) -> list[Requirement]:
    found: list[Requirement] = []
    for each in fields.records(name):
        key, word, values = each.text("key"), each.text("operator"), each.texts("values")
        if not key or not word:
            continue
        operator = Operator(word)
        problem = f"has no effect with {operator}: remove it" if values else ""
        if operator in _LISTS:
            problem = "" if values else f"is empty: {operator} needs at least one value"
        elif operator in _NUMBERS:
            is_number = len(values) == 1 and _INTEGER.fullmatch(values[0])
            message = f"is not valid with {operator}: write one whole number in quotes"
            problem = "" if is_number else message
        if problem:
            each.reject("values", list(values), problem)
        else:
            found.append(Requirement(key, operator, values))
    return found


# --- writing --------------------------------------------------------------------------------------


def label_selector_fields(selector: LabelSelector) -> dict[str, Any]:
    """Format a selector as a `meta/v1.LabelSelector` with `matchExpressions` only."""
    return {"matchExpressions": [_condition(each) for each in selector.requirements]}


def node_selector_fields(selector: NodeSelector) -> dict[str, Any]:
    """Format a node selector as `core/v1.NodeSelector`."""
    return {"nodeSelectorTerms": [node_term_fields(term) for term in selector.terms]}


def node_term_fields(term: NodeTerm) -> dict[str, Any]:
    """Format a node term as `core/v1.NodeSelectorTerm`."""
    return {
        "matchExpressions": [_condition(each) for each in term.labels],
        "matchFields": [_condition(each) for each in term.names],
    }


def toleration_fields(toleration: Toleration) -> dict[str, Any]:
    """Format a toleration of a pod (`core/v1.Toleration`) or of a request in a ResourceClaim."""
    effect = {"effect": toleration.effect.value} if toleration.effect else {}
    if toleration.exists:
        return {"key": toleration.key, "operator": "Exists", **effect}
    return {"key": toleration.key, "operator": "Equal", "value": toleration.value, **effect}


def topology_fields(selector: NodeSelector) -> list[dict[str, Any]]:
    """Format a node selector as `allowedTopologies` of a StorageClass.

    Raises
    ------
    ValueError
        The selector uses an operator other than In, which `allowedTopologies` cannot express.

    """
    for each in (r for term in selector.terms for r in (*term.labels, *term.names)):
        if each.operator is not Operator.IN:
            raise ValueError(f"{each}: a storage class can only list allowed values of labels")
    return [
        {
            "matchLabelExpressions": [
                {"key": each.key, "values": list(each.values)}
                for each in (*term.labels, *term.names)
            ]
        }
        for term in selector.terms
    ]


def _condition(requirement: Requirement) -> dict[str, Any]:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator.value, **values}
