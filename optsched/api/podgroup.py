"""PodGroups of Volcano and of Kubernetes itself: pods that start together.

Source of names, defaults and limits: Volcano's scheduling/v1beta1/types.go and its podgroup
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
from optsched.api.meta import parse_meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.fields import LabelSelector
    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError


class PodGroupPhase(StrEnum):
    """The stage of a PodGroup's life."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


class TopologyMode(StrEnum):
    """Whether a limit on the network is a rule or a wish."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class NetworkTopology:
    """The largest distance of pods in the network: a tier by number or by name, or neither."""

    mode: TopologyMode = TopologyMode.HARD
    highest_tier: int | None = None
    highest_tier_name: str = ""


@dataclass(frozen=True, slots=True)
class SubGroupPolicy:
    """A rule that forms smaller groups inside a PodGroup.

    selector: None where the rule names no pods at all, as upstream distinguishes a missing selector
    from an empty one.
    """

    name: str
    size: int = 1
    min_sub_groups: int = 0
    selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    topology: NetworkTopology | None = None


@dataclass(frozen=True, slots=True)
class PodGroupCondition:
    """One fact about a PodGroup. transition_ms: milliseconds since 1970, or None."""

    type: str
    status: str
    transition_id: str = ""
    transition_ms: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodGroupStatus:
    """The progress of a PodGroup, as last written."""

    phase: PodGroupPhase = PodGroupPhase.PENDING
    conditions: tuple[PodGroupCondition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods that start together or not at all. Amounts are base units by resource.

    errors: fields that cannot be read; a gang is not placed by rules that cannot be read.
    """

    meta: ObjectMeta
    min_member: int = 0
    min_task_member: Mapping[str, int] = field(default_factory=dict)
    queue: str = wellknown.DEFAULT_QUEUE
    priority_class: str = ""
    min_resources: Mapping[str, int] = field(default_factory=dict)
    topology: NetworkTopology | None = None
    sub_groups: tuple[SubGroupPolicy, ...] = ()
    status: PodGroupStatus = PodGroupStatus()
    errors: tuple[FieldError, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.meta.key


def parse_podgroup(obj: object) -> tuple[PodGroup | None, tuple[FieldError, ...]]:
    """The PodGroup in a manifest or an answer of the API server, and all that is wrong with it.

    None only for an object without a name. With errors the PodGroup is returned all the same,
    its bad fields at their defaults, so that it can be shown.
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
        sub_groups=tuple(_sub_group(each) for each in spec.records("subGroupPolicy")),
        status=status,
        errors=tuple(errors),
    )
    return group, group.errors


def group_name_of(annotations: Mapping[str, str]) -> str:
    """The PodGroup that a pod's annotations name; empty for a pod on its own."""
    return wellknown.first_annotation(annotations, wellknown.GROUP_NAME_ANNOTATIONS)


def read_topology(fields: Fields) -> NetworkTopology | None:
    """The limit under `networkTopology` of a spec or a part of it; None without one."""
    topology = fields.optional_record("networkTopology")
    if topology is None:
        return None
    tier = topology.optional_integer("highestTierAllowed")
    tier_name = topology.text("highestTierName")
    if tier is not None and tier_name:
        problem = "names a tier next to highestTierAllowed: keep one of the two"
        topology.reject("highestTierName", tier_name, problem)
    return NetworkTopology(TopologyMode(topology.text("mode")), tier, tier_name)


MOST_RESOURCES: Final = 100
"""Names in minResources; pods have as many at most."""


def _min_resources(spec: Fields) -> dict[str, int]:
    found = spec.amounts("minResources")
    if len(found) <= MOST_RESOURCES:
        return found
    message = f"names of resources are too many: write at most {MOST_RESOURCES}"
    spec.reject("minResources", len(found), message)
    return {}


def _sub_group(policy: Fields) -> SubGroupPolicy:
    selector = policy.optional_record("labelSelector")
    return SubGroupPolicy(
        name=policy.text("name"),
        size=policy.integer("subGroupSize"),
        min_sub_groups=policy.integer("minSubGroups"),
        selector=read_selector(selector) if selector else None,
        match_label_keys=policy.texts("matchLabelKeys"),
        topology=read_topology(policy),
    )


def _status(status: Fields) -> PodGroupStatus:
    return PodGroupStatus(
        phase=PodGroupPhase(status.text("phase") or PodGroupPhase.PENDING),
        conditions=tuple(_condition(each) for each in status.records("conditions")),
        running=status.integer("running"),
        succeeded=status.integer("succeeded"),
        failed=status.integer("failed"),
    )


def _condition(fields: Fields) -> PodGroupCondition:
    return PodGroupCondition(
        type=fields.text("type"),
        status=fields.text("status"),
        transition_id=fields.text("transitionID"),
        transition_ms=fields.time_ms("lastTransitionTime"),
        reason=fields.text("reason"),
        message=fields.text("message"),
    )


# --- schedulinggroup ------------------------------------------------------------------------------

_POLICY: Final = record(
    "When pods may start; one of the two.",
    basic=record("Each pod by itself."),
    gang=record(
        "Together.",
        ("minCount",),
        minCount=integer("Pods that start together.", minimum=1),
    ),
)
_CONSTRAINTS: Final = record(
    "Where pods may run.",
    topology=listing(
        "Labels of nodes whose values must be the same for all pods.",
        record("One of them.", ("key",), key=text("The label.")),
    ),
)
SCHEDULING_POD_GROUP_SCHEMA: Final = whole_object(
    "Pods that are scheduled together.",
    spec=record(
        "What is wanted.",
        ("schedulingPolicy",),
        schedulingPolicy=_POLICY,
        schedulingConstraints=_CONSTRAINTS,
        resourceClaims=listing("Devices for the whole group.", record("One of them.")),
        parentCompositePodGroupName=name("The group of groups that it is part of."),
        priorityClassName=name("Name of its priority."),
        priority=integer("Its priority."),
    ),
)

_NO_POLICY: Final = "says nothing: write basic or gang"
_TWO_POLICIES: Final = "says both basic and gang: keep one"
_ONE_LABEL: Final = "lists several labels; one is understood"
_NO_CLAIMS: Final = "asks for devices by claims, which are not allocated here"
_NO_PARENT: Final = "is part of a CompositePodGroup, which is not understood here"


@dataclass(frozen=True, slots=True)
class SchedulingPodGroup:
    """Pods that start together.

    Attributes
    ----------
    min_count
        Pods that start together; 1 where each starts by itself.
    topology_key
        The node label that is equal for all; empty for none.
    queue
        The queue that a label or annotation names; the API has no field for it.
    priority, priority_class
        Its priority by number, or None, and by name.
    errors
        Fields that cannot be read, or ask for what is not understood.

    """

    meta: ObjectMeta
    min_count: int = 1
    topology_key: str = ""
    queue: str = ""
    priority: int | None = None
    priority_class: str = ""
    errors: tuple[FieldError, ...] = ()


def parse_scheduling_group(obj: object) -> tuple[SchedulingPodGroup | None, tuple[FieldError, ...]]:
    """The PodGroup in a manifest or an answer of the API server, and all that is wrong with it.

    None only for an object without a name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    spec = Fields(obj, SCHEDULING_POD_GROUP_SCHEMA, "", errors).record("spec")
    marks = {**meta.labels, **meta.annotations}
    _refuse(spec, "resourceClaims", _NO_CLAIMS)
    _refuse(spec, "parentCompositePodGroupName", _NO_PARENT)
    group = SchedulingPodGroup(
        meta=meta,
        min_count=_min_count(spec),
        topology_key=_topology_key(spec.record("schedulingConstraints")),
        queue=marks.get(wellknown.QUEUE_NAME, ""),
        priority=spec.optional_integer("priority"),
        priority_class=spec.text("priorityClassName"),
        errors=tuple(errors),
    )
    return group, group.errors


def group_named_by(spec: dict[str, Any]) -> str:
    """The PodGroup that `spec.schedulingGroup` of a pod names; empty where it names none."""
    group = spec.get("schedulingGroup")
    named = group.get("podGroupName") if isinstance(group, dict) else None
    return named if isinstance(named, str) else ""


def _refuse(spec: Fields, field: str, why: str) -> None:
    value = spec.raw(field)
    if value:
        spec.reject(field, value, why)


def _min_count(spec: Fields) -> int:
    policy = spec.record("schedulingPolicy")
    basic, gang = policy.optional_record("basic"), policy.optional_record("gang")
    if gang is None:
        if basic is None and spec.raw("schedulingPolicy") is not None:
            spec.reject("schedulingPolicy", spec.raw("schedulingPolicy"), _NO_POLICY)
        return 1
    if basic is not None:
        spec.reject("schedulingPolicy", spec.raw("schedulingPolicy"), _TWO_POLICIES)
    return max(gang.integer("minCount"), 1)


def _topology_key(constraints: Fields) -> str:
    keys = [each.text("key") for each in constraints.records("topology")]
    if len(keys) > 1:
        constraints.reject("topology", constraints.raw("topology"), _ONE_LABEL)
    return keys[0] if keys else ""
