"""PodGroup of Kubernetes itself: `scheduling.k8s.io` v1beta1, v1alpha3 or v1alpha2.

Source of names and limits: Kubernetes' api/scheduling types of 1.36 and 1.37. What is the same in
all three versions is read, and what would change when pods may start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.api.schema import integer, listing, name, record, text, whole_object

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError

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
        The node label whose value is the same for all; empty for none.
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
