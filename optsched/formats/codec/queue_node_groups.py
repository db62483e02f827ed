"""Node groups of a queue: its affinity, and the limits in one of its annotations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import NO_GROUPS, NodeGroups
from optsched.units import parse_resource_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.queue import Queue
    from optsched.cluster.amounts import Amounts

_EXAMPLE: Final = 'write {"GROUP": {"cpu": "3", "memory": "8Gi"}}'

_Limits = tuple[tuple[str, "Amounts"], ...]


def node_groups(queue: Queue) -> NodeGroups:
    """What a queue says about groups of nodes.

    Limits without a reading are told in `problem`; they forbid every node, as in Volcano.
    """
    limits, problem = _limits(queue.meta.annotations)
    found = NodeGroups(
        required=queue.affinity.required,
        preferred=queue.affinity.preferred,
        excluded=queue.anti_affinity.required,
        last_resort=queue.anti_affinity.preferred,
        limits=limits,
        problem=problem,
    )
    return NO_GROUPS if found == NO_GROUPS else found


def _limits(annotations: Mapping[str, str]) -> tuple[_Limits, str]:
    text = annotations.get(wellknown.NODEGROUP_RESOURCE_LIMITS)
    if text is None:
        return (), ""
    name = f"annotation {wellknown.NODEGROUP_RESOURCE_LIMITS}"
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as e:
        return (), f"{name} is no JSON ({e}): {_EXAMPLE}"
    if not isinstance(tree, dict):
        return (), f"{name} is no mapping: {_EXAMPLE}"
    errors: list[str] = []
    found = [(group, _read(group, listed, errors)) for group, listed in sorted(tree.items())]
    return ((), f"{name}: {'; '.join(errors)}") if errors else (tuple(found), "")


def _read(group: str, listed: Any, errors: list[str]) -> Amounts:  # noqa: ANN401  any JSON
    found, wrong = parse_resource_list(listed, group)
    errors += map(str, wrong)
    return amounts(found)


def affinity_fields(groups: NodeGroups) -> dict[str, Any]:
    """The field `spec.affinity` of a queue; empty where it says nothing."""
    sides = {
        "nodeGroupAffinity": (groups.required, groups.preferred),
        "nodeGroupAntiAffinity": (groups.excluded, groups.last_resort),
    }
    return {name: _terms(*terms) for name, terms in sides.items() if any(terms)}


def _terms(required: tuple[str, ...], preferred: tuple[str, ...]) -> dict[str, list[str]]:
    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": list(required),
        "preferredDuringSchedulingIgnoredDuringExecution": list(preferred),
    }
    return {name: listed for name, listed in terms.items() if listed}
