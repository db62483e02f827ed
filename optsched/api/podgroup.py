"""PodGroup: pods that start together, read from `scheduling.volcano.sh/v1beta1`.

Source of names, defaults and limits: Volcano's scheduling/v1beta1/types.go and its podgroup
webhooks (pkg/webhooks/admission/podgroups).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from optsched.api import wellknown
from optsched.api.crds import POD_GROUP_SCHEMA
from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.api.selectors import read_selector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.meta import ObjectMeta
    from optsched.api.selectors import LabelSelector
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
    """How far apart in the network pods may be: a tier by number or by name, or neither."""

    mode: TopologyMode = TopologyMode.HARD
    highest_tier: int | None = None
    highest_tier_name: str = ""


@dataclass(frozen=True, slots=True)
class SubGroupPolicy:
    """A rule that forms smaller groups inside a PodGroup.

    selector: None where the rule names no pods at all, as upstream tells a missing selector from
    an empty one.
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
    """How far a PodGroup has come, as last written."""

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
    whole = Fields(obj, POD_GROUP_SCHEMA, "", errors)
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
