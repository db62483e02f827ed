"""Resource groups: rules that select pods by namespace or annotation and choose their nodes.

Source: pkg/webhooks/config/admission.go and pkg/webhooks/admission/pods/mutate. The resource groups
file has the format of Volcano's `--admission-conf`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields, listing, mapping, plain, record, text, texts
from optsched.formats.files.yaml_text import TextError, read_yaml
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.units import FieldError

ANNOTATION: Final = "volcano.sh/resource-group"
_GROUPS: Final = "resourceGroups"
_NAMESPACE, _ANNOTATION = "namespace", "annotation"

_GROUP: Final = record(
    "A group of pods, and the fields that admission sets in these pods.",
    resourceGroup=text("Name of the group."),
    object=record(
        "The pods that belong to the group.",
        key=text("What `value` lists.", enum=[_NAMESPACE, _ANNOTATION]),
        value=texts("Namespaces, or annotations written as `key: value`."),
    ),
    schedulerName=text("Value of the pods' `schedulerName`."),
    labels=mapping("Node labels to add to the pods' `nodeSelector`.", {"type": "string"}),
    tolerations=listing("Tolerations to add to the pods.", plain("One toleration.")),
    affinity=text("Affinity, as JSON, of pods that have no affinity."),
)
_FILE: Final = record(
    "The file of `--admission-conf`.", resourceGroups=listing("The groups, in order.", _GROUP)
)


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A rule that selects pods by namespace or annotation, and sets fields of these pods.

    `namespaces` is empty if annotations select the pods. An empty `affinity` leaves the pods'
    affinity unchanged.
    """

    name: str
    namespaces: frozenset[str] = frozenset()
    annotations: frozenset[tuple[str, str]] = frozenset()
    scheduler_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)

    def matches_pod(self, namespace: str, annotations: Mapping[str, str]) -> bool:
        """Return whether a pod with these annotations in this namespace belongs to the group."""
        if self.namespaces:
            return namespace in self.namespaces
        return not self.annotations.isdisjoint(annotations.items())


class GroupsError(ValueError):
    """Raised for an invalid resource groups file; the message lists all errors."""


def read_resource_groups(content: str) -> tuple[ResourceGroup, ...]:
    """Parse the content of a resource groups file; raises GroupsError if it has errors."""
    found: list[ResourceGroup] = []
    problems: list[str] = []
    for each in read_yaml(content):
        if isinstance(each, TextError):
            problems.append(f"line {each.line}, column {each.column}: {each.message}")
            continue
        groups, errors = parse_resource_groups(each.value)
        found += groups
        problems += map(str, errors)
    if problems:
        raise GroupsError("; ".join(problems))
    return tuple(found)


def parse_resource_groups(
    obj: object,
) -> tuple[tuple[ResourceGroup, ...], tuple[FieldError, ...]]:
    """Return the resource groups of a decoded configuration, and its field errors."""
    errors: list[FieldError] = []
    whole = Fields(obj, _FILE, "", errors)
    if isinstance(obj, dict) and obj and _GROUPS not in obj:
        whole.reject(_GROUPS, None, f"is missing: the file has only {', '.join(map(str, obj))}")
    return tuple(_read_group(each) for each in whole.records(_GROUPS)), tuple(errors)


def _read_group(group: Fields) -> ResourceGroup:
    name, matched = group.text("resourceGroup"), group.record("object")
    values = matched.texts("value")
    is_by_namespace = matched.text("key") == _NAMESPACE
    if not is_by_namespace and not values:
        values = (f"{ANNOTATION}: {name}",)
    if is_by_namespace and not values:
        matched.reject("value", list(values), "is empty: write at least one namespace")
    written = group.raw("tolerations")
    tolerations = written if isinstance(written, list) else []
    for position, each in enumerate(tolerations):
        if not isinstance(each, dict):
            group.reject(f"tolerations[{position}]", each, "is not a toleration")
    pairs = (value.partition(":") for value in values)
    annotations = frozenset((key.strip(), text.strip()) for key, _, text in pairs)
    return ResourceGroup(
        name=name,
        namespaces=frozenset(values) if is_by_namespace else frozenset(),
        annotations=frozenset() if is_by_namespace else annotations,
        scheduler_name=group.text("schedulerName"),
        labels=group.texts_by_name("labels"),
        tolerations=tuple(each for each in tolerations if isinstance(each, dict)),
        affinity=_read_affinity(group),
    )


def _read_affinity(group: Fields) -> dict[str, Any]:
    written = group.text("affinity")
    if not written:
        return {}
    try:
        found = json.loads(written)
    except (ValueError, RecursionError) as e:
        group.reject("affinity", written, f"is not JSON: {why_unreadable(e)}")
        return {}
    if not isinstance(found, dict):
        group.reject("affinity", written, "is not an affinity: write a JSON object")
        return {}
    return found
