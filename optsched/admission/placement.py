"""Where pods may run: selectors of nodes, tolerations, affinities and spreads.

As k8s.io/kubernetes, pkg/apis/core/validation, validates them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from optsched.admission import names

if TYPE_CHECKING:
    from optsched.admission.parts import Part

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MANY: Final = ("In", "NotIn")
_NONE: Final = ("Exists", "DoesNotExist")
_ONE: Final = ("Gt", "Lt")
_MAX_WEIGHT: Final = 100
_MAX_INTEGER: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")


def check_placement(spec: Part) -> None:
    """All that a pod says about where it runs."""
    check_labels(spec, "nodeSelector")
    for toleration in spec.parts("tolerations"):
        _check_toleration(toleration)
    affinity = spec.part("affinity")
    if affinity is not None:
        _check_node_affinity(affinity)
        for name in ("podAffinity", "podAntiAffinity"):
            _check_pod_affinity(affinity, name)
    _check_spreads(spec)


def check_labels(part: Part, name: str) -> None:
    """Names and values of labels."""
    for key, value in part.mapping(name).items():
        if not names.is_qualified(key):
            part.findings.invalid(f"{part.path}.{name}", key, names.QUALIFIED_RULE)
        if not names.is_label_value(value):
            part.findings.invalid(f"{part.path}.{name}[{key}]", value, names.LABEL_VALUE_RULE)


def check_selector(part: Part, name: str) -> None:
    """A selector of labels, which may be absent."""
    selector = part.part(name)
    if selector is None:
        return
    check_labels(selector, "matchLabels")
    for expression in selector.parts("matchExpressions"):
        expression.choose("operator", *_MANY, *_NONE, is_required=True)
        _check_values(expression)
        _check_label_values(expression)


# --- tolerations ----------------------------------------------------------------------------------


def _check_toleration(toleration: Part) -> None:
    operator, value = toleration.text("operator"), toleration.text("value")
    toleration.fits("key", names.is_qualified, names.QUALIFIED_RULE)
    toleration.choose("operator", "Equal", "Exists", "Lt", "Gt")
    toleration.choose("effect", *_EFFECTS)
    if not toleration.text("key") and operator != "Exists":
        toleration.invalid("operator", "must be Exists when key is empty: write a key or Exists")
    if toleration.has("tolerationSeconds") and toleration.text("effect") != "NoExecute":
        toleration.invalid("effect", "must be NoExecute when tolerationSeconds is set")
    if operator == "Exists":
        if value:
            toleration.invalid("value", "must be empty when operator is Exists: leave it out")
    elif operator in ("Lt", "Gt"):
        if not _is_integer(value):
            toleration.invalid("value", f"operator {operator} needs a whole number such as 10")
    elif not names.is_label_value(value):
        toleration.invalid("value", names.LABEL_VALUE_RULE)


def _is_integer(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and -_MAX_INTEGER <= int(text) <= _MAX_INTEGER


# --- affinities -----------------------------------------------------------------------------------


def _check_node_affinity(affinity: Part) -> None:
    nodes = affinity.part("nodeAffinity")
    if nodes is None:
        return
    required = nodes.part(_REQUIRED)
    if required is not None:
        if not required.raw.get("nodeSelectorTerms"):
            required.required("nodeSelectorTerms", "must have at least one node selector term")
        for term in required.parts("nodeSelectorTerms"):
            _check_term(term)
            for expression in term.parts("matchExpressions"):
                _check_label_values(expression)
    for preferred in nodes.parts(_PREFERRED):
        _check_weight(preferred)
        preference = preferred.part("preference")
        if preference is not None:
            _check_term(preference)


def _check_term(term: Part) -> None:
    for expression in term.parts("matchExpressions"):
        expression.choose("operator", *_MANY, *_NONE, *_ONE, is_required=True)
        _check_values(expression)
    for field in term.parts("matchFields"):
        field.choose("operator", *_MANY, is_required=True)
        field.choose("key", "metadata.name", is_required=True)
        if len(field.list_of("values")) != 1:
            field.invalid("values", "write the name of one node")
        for position, value in enumerate(field.list_of("values")):
            if not names.is_subdomain(value):
                path = f"{field.path}.values[{position}]"
                field.findings.invalid(path, value, names.SUBDOMAIN_RULE)


def _check_values(expression: Part) -> None:
    operator, values = expression.text("operator"), expression.list_of("values")
    if operator in _MANY and not values:
        expression.required("values", f"operator {operator} needs at least one value")
    elif operator in _NONE and values:
        expression.forbidden("values", f"operator {operator} takes none: leave them out")
    elif operator in _ONE and len(values) != 1:
        expression.required("values", f"operator {operator} needs exactly one value")
    if not names.is_qualified(expression.text("key")):
        expression.invalid("key", names.QUALIFIED_RULE)


def _check_label_values(expression: Part) -> None:
    for position, value in enumerate(expression.list_of("values")):
        if not names.is_label_value(value):
            path = f"{expression.path}.values[{position}]"
            expression.findings.invalid(path, value, names.LABEL_VALUE_RULE)


def _check_weight(part: Part) -> None:
    if not 1 <= part.number("weight") <= _MAX_WEIGHT:
        part.invalid("weight", f"write 1 to {_MAX_WEIGHT}")


def _check_pod_affinity(affinity: Part, name: str) -> None:
    pods = affinity.part(name)
    if pods is None:
        return
    for term in pods.parts(_REQUIRED):
        _check_pod_term(term)
    for weighted in pods.parts(_PREFERRED):
        _check_weight(weighted)
        inner = weighted.part("podAffinityTerm")
        if inner is None:
            weighted.required("podAffinityTerm", "write which pods are meant, and its topologyKey")
        else:
            _check_pod_term(inner)


def _check_pod_term(term: Part) -> None:
    for name in ("labelSelector", "namespaceSelector"):
        check_selector(term, name)
    for position, namespace in enumerate(term.list_of("namespaces")):
        if not names.is_label(namespace):
            path = f"{term.path}.namespaces[{position}]"
            term.findings.invalid(path, namespace, names.LABEL_RULE)
    term.need("topologyKey", names.is_qualified, names.QUALIFIED_RULE)
    _check_label_keys(term, "matchLabelKeys")
    _check_label_keys(term, "mismatchLabelKeys")
    for key in sorted({*term.list_of("matchLabelKeys")} & {*term.list_of("mismatchLabelKeys")}):
        term.invalid("matchLabelKeys", f"{key} is in mismatchLabelKeys too: keep it in one of them")


def _check_label_keys(part: Part, name: str) -> None:
    keys = part.list_of(name)
    selector = part.part("labelSelector")
    if not keys:
        return
    if selector is None:
        part.forbidden(name, "must not be specified when labelSelector is not set")
        return
    for position, key in enumerate(keys):
        if not names.is_qualified(key):
            part.findings.invalid(f"{part.path}.{name}[{position}]", key, names.QUALIFIED_RULE)


# --- spreads --------------------------------------------------------------------------------------


def _check_spreads(spec: Part) -> None:
    seen: set[tuple[str, str]] = set()
    for spread in spec.parts("topologySpreadConstraints"):
        if spread.number("maxSkew") < 1:
            spread.invalid("maxSkew", "must be greater than zero: write 1 or more")
        if not spread.text("topologyKey"):
            spread.required("topologyKey", "write a label of nodes such as kubernetes.io/hostname")
        spread.choose("whenUnsatisfiable", "DoNotSchedule", "ScheduleAnyway", is_required=True)
        _check_domains(spread)
        for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            spread.choose(name, "Honor", "Ignore", is_required=spread.has(name))
        check_selector(spread, "labelSelector")
        _check_label_keys(spread, "matchLabelKeys")
        pair = (spread.text("topologyKey"), spread.text("whenUnsatisfiable"))
        if pair in seen:
            spread.duplicate(
                "topologyKey", pair[0], f"one constraint with {pair[1]} is enough for each key"
            )
        seen.add(pair)


def _check_domains(spread: Part) -> None:
    spread.at_least("minDomains", 1)
    if spread.has("minDomains") and spread.text("whenUnsatisfiable") != "DoNotSchedule":
        spread.invalid("minDomains", "can only be set if whenUnsatisfiable is DoNotSchedule")
