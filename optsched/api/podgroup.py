"""Volcano and Kubernetes PodGroups: pods that start together.

Names, defaults and limits are from Volcano's scheduling/v1beta1/types.go and its podgroup
webhooks (pkg/webhooks/admission/podgroups).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds, wellknown
from optsched.api.crds import schema_of
from optsched.api.fields import (
    Fields,
    integer,
    listing,
    name,
    read_selector,
    record,
    text,
    whole_object,
)
from optsched.api.meta import ApiObject, parse_meta
from optsched.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.fields import LabelSelector
    from optsched.units import FieldError


class PodGroupPhase(StrEnum):
    """The phase of a PodGroup."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


class TopologyMode(StrEnum):
    """Whether the limit on the topology tier is required (hard) or preferred (soft)."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class NetworkTopology:
    """The highest topology tier that a gang's pods may span.

    If neither `highest_tier` nor `highest_tier_name` is set, there is no limit.
    """

    mode: TopologyMode = TopologyMode.HARD
    highest_tier: int | None = None
    highest_tier_name: str = ""


@dataclass(frozen=True, slots=True)
class SubGroupPolicy:
    """A policy that divides the pods of a PodGroup into subgroups.

    `selector` is None if the policy has no selector. Volcano distinguishes a missing selector from
    an empty selector.
    """

    name: str
    size: int = 1
    min_sub_groups: int = 0
    selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    topology: NetworkTopology | None = None


@dataclass(frozen=True, slots=True)
class PodGroupCondition:
    """A status condition of a PodGroup; `transition_ms` is in ms since 1970, or None."""

    type: str
    status: str
    transition_id: str = ""
    transition_ms: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodGroupStatus:
    """The stored status of a PodGroup."""

    phase: PodGroupPhase = PodGroupPhase.PENDING
    conditions: tuple[PodGroupCondition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class PodGroup(ApiObject):
    """Pods that start together or not at all.

    `min_resources` is in base units, keyed by resource. A PodGroup with errors is not scheduled.
    """

    min_member: int = 0
    min_task_member: Mapping[str, int] = field(default_factory=dict)
    queue: str = wellknown.DEFAULT_QUEUE
    priority_class: str = ""
    min_resources: Mapping[str, int] = field(default_factory=dict)
    topology: NetworkTopology | None = None
    sub_groups: tuple[SubGroupPolicy, ...] = ()
    status: PodGroupStatus = PodGroupStatus()


def parse_podgroup(obj: object) -> tuple[PodGroup | None, tuple[FieldError, ...]]:
    """Parse a Volcano PodGroup from a manifest or API object; return it with its field errors.

    The PodGroup is None only if the object has no name. Invalid fields take their default values,
    so the PodGroup can still be displayed.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.POD_GROUP), "", errors)
    spec, status = whole.record("spec"), _status(whole.record("status"))
    group = PodGroup(
        meta=meta,
        min_member=spec.integer("minMember"),
        min_task_member=spec.integers_by_name("minTaskMember"),
        queue=spec.text("queue"),
        priority_class=spec.text("priorityClassName"),
        min_resources=_min_resources(spec),
        topology=read_topology(spec),
        sub_groups=tuple(
            SubGroupPolicy(
                selector=read_selector(selector)
                if (selector := each.optional_record("labelSelector"))
                else None,
                name=each.text("name"),
                size=each.integer("subGroupSize"),
                min_sub_groups=each.integer("minSubGroups"),
                match_label_keys=each.texts("matchLabelKeys"),
                topology=read_topology(each),
            )
            for each in _sub_groups(spec)
        ),
        status=status,
        errors=tuple(errors),
    )
    return group, group.errors


def group_name_of(annotations: Mapping[str, str]) -> str:
    """Return the PodGroup name in a pod's annotations; empty for a bare pod."""
    return wellknown.first_annotation(annotations, wellknown.GROUP_NAME_ANNOTATIONS)


def read_topology(fields: Fields) -> NetworkTopology | None:
    """Return the topology limit in the field `networkTopology`, or None if the field is absent."""
    topology = fields.optional_record("networkTopology")
    if topology is None:
        return None
    tier = topology.optional_integer("highestTierAllowed")
    tier_name = topology.text("highestTierName")
    if tier is not None and tier_name:
        problem = "may not be set together with highestTierAllowed: keep one of the two"
        topology.reject("highestTierName", tier_name, problem)
    return NetworkTopology(TopologyMode(topology.text("mode")), tier, tier_name)


MOST_RESOURCES: Final = 100
"""Maximum number of resource names in a PodGroup's minResources or in a pod's requests."""


MOST_SUB_GROUP_POLICIES: Final = 100
"""Maximum number of entries of `subGroupPolicy`; a session compares each of them with each pod."""


def _sub_groups(spec: Fields) -> list[Fields]:
    found = list(spec.records("subGroupPolicy"))
    if len(found) <= MOST_SUB_GROUP_POLICIES:
        return found
    message = f"entries are too many: write at most {MOST_SUB_GROUP_POLICIES}"
    spec.reject("subGroupPolicy", len(found), message)
    return []


def _min_resources(spec: Fields) -> dict[str, int]:
    found = spec.amounts("minResources")
    if len(found) <= MOST_RESOURCES:
        return found
    message = f"resource names are too many: write at most {MOST_RESOURCES}"
    spec.reject("minResources", len(found), message)
    return {}


def _status(status: Fields) -> PodGroupStatus:
    return PodGroupStatus(
        phase=PodGroupPhase(status.text("phase") or PodGroupPhase.PENDING),
        conditions=tuple(
            PodGroupCondition(
                type=each.text("type"),
                status=each.text("status"),
                transition_id=each.text("transitionID"),
                transition_ms=each.time_ms("lastTransitionTime"),
                reason=each.text("reason"),
                message=each.text("message"),
            )
            for each in status.records("conditions")
        ),
        running=status.integer("running"),
        succeeded=status.integer("succeeded"),
        failed=status.integer("failed"),
    )


def podgroup_status_patch(
    phase: PodGroupPhase,
    conditions: Iterable[PodGroupCondition],
    *,
    running: int,
    succeeded: int,
    failed: int,
) -> dict[str, Any]:
    """Return the JSON merge patch that sets a PodGroup's status.

    PodGroups have no status subresource. The patch includes counts of zero, because they must
    overwrite the stored counts.
    """
    return {
        "status": {
            "phase": phase.value,
            "conditions": [_condition_fields(each) for each in conditions],
            "running": running,
            "succeeded": succeeded,
            "failed": failed,
        }
    }


def _condition_fields(condition: PodGroupCondition) -> dict[str, Any]:
    # Empty fields are omitted, as with the `omitempty` tags of Volcano's Go type.
    fields = {
        "type": condition.type,
        "status": condition.status,
        "transitionID": condition.transition_id,
        "lastTransitionTime": ""
        if condition.transition_ms is None
        else format_time(condition.transition_ms),
        "reason": condition.reason,
        "message": condition.message,
    }
    return {name: value for name, value in fields.items() if value}


# --- schedulinggroup ------------------------------------------------------------------------------

_POLICY: Final = record(
    "When pods may start; exactly one of basic and gang must be set.",
    basic=record("Each pod may start alone."),
    gang=record(
        "All pods start together.",
        ("minCount",),
        minCount=integer("Number of pods that start together.", minimum=1),
    ),
)
_CONSTRAINTS: Final = record(
    "Where pods may run.",
    topology=listing(
        "Node labels; all pods run on nodes with the same value of each label.",
        record("One label.", ("key",), key=text("Key of the label.")),
    ),
)
SCHEDULING_POD_GROUP_SCHEMA: Final = whole_object(
    "Pods that are scheduled together.",
    spec=record(
        "The desired state.",
        ("schedulingPolicy",),
        schedulingPolicy=_POLICY,
        schedulingConstraints=_CONSTRAINTS,
        resourceClaims=listing("Devices for the whole group.", record("One claim.")),
        parentCompositePodGroupName=name("The CompositePodGroup to which the PodGroup belongs."),
        priorityClassName=name("Name of the group's PriorityClass."),
        priority=integer("Priority of the group."),
    ),
)

_NO_POLICY: Final = "has no policy: write basic or gang"
_TWO_POLICIES: Final = "has both basic and gang: keep one"
_ONE_LABEL: Final = "lists several labels; only one is supported"
_NO_CLAIMS: Final = "requests devices for the whole PodGroup, which is not supported"
_NO_PARENT: Final = "adds the PodGroup to a CompositePodGroup, which is not supported"


@dataclass(frozen=True, slots=True)
class SchedulingPodGroup(ApiObject):
    """An upstream Kubernetes PodGroup: pods that start together.

    A PodGroup that requests an unsupported feature has an error.

    Attributes
    ----------
    min_count
        Number of pods that start together; 1 if each pod may start alone.
    topology_key
        Label whose value must be equal on the nodes of all pods; empty if there is no constraint.
    queue
        The queue that a label or annotation names; the API has no queue field.
    priority, priority_class
        Priority as a number, or None; PriorityClass name, or empty.

    """

    min_count: int = 1
    topology_key: str = ""
    queue: str = ""
    priority: int | None = None
    priority_class: str = ""


def parse_scheduling_group(obj: object) -> tuple[SchedulingPodGroup | None, tuple[FieldError, ...]]:
    """Parse an upstream Kubernetes PodGroup (not Volcano's); return it with its field errors.

    The PodGroup is None only if the object has no name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    spec = Fields(obj, SCHEDULING_POD_GROUP_SCHEMA, "", errors).record("spec")
    unsupported = {"resourceClaims": _NO_CLAIMS, "parentCompositePodGroupName": _NO_PARENT}
    for key, message in unsupported.items():
        if spec.raw(key):
            spec.reject(key, spec.raw(key), message)
    policy, written_policy = spec.record("schedulingPolicy"), spec.raw("schedulingPolicy")
    basic, gang = policy.optional_record("basic"), policy.optional_record("gang")
    if basic is None and gang is None and written_policy is not None:
        spec.reject("schedulingPolicy", written_policy, _NO_POLICY)
    elif basic is not None and gang is not None:
        spec.reject("schedulingPolicy", written_policy, _TWO_POLICIES)
    min_count = 1 if gang is None else max(gang.integer("minCount"), 1)
    constraints = spec.record("schedulingConstraints")
    topology_keys = [each.text("key") for each in constraints.records("topology")]
    if len(topology_keys) > 1:
        constraints.reject("topology", constraints.raw("topology"), _ONE_LABEL)
    group = SchedulingPodGroup(
        meta=meta,
        min_count=min_count,
        topology_key=topology_keys[0] if topology_keys else "",
        queue={**meta.labels, **meta.annotations}.get(wellknown.QUEUE_NAME, ""),
        priority=spec.optional_integer("priority"),
        priority_class=spec.text("priorityClassName"),
        errors=tuple(errors),
    )
    return group, group.errors


def group_named_by(spec: dict[str, Any]) -> str:
    """Return the PodGroup name in a pod's `spec.schedulingGroup`; empty if absent."""
    group = spec.get("schedulingGroup")
    named = group.get("podGroupName") if isinstance(group, dict) else None
    return named if isinstance(named, str) else ""
