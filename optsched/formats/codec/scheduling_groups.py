"""Reader and writer of `scheduling.k8s.io` PodGroups as gangs.

A Volcano PodGroup and a `scheduling.k8s.io` PodGroup may have the same name. To keep
their gangs apart, gang names of `scheduling.k8s.io` PodGroups have a prefix that no object name can
have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.podgroup import group_named_by
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase
from optsched.cluster.topology import TopologyRequest
from optsched.formats.codec.snapshot_annotations import (
    PROBLEM,
    WAITING_SINCE,
    read_reason,
    waiting_since_ms,
    without_annotations,
)
from optsched.formats.files.diagnostics import join_messages
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.api.podgroup import SchedulingPodGroup
    from optsched.cluster.task import Task
    from optsched.formats.codec.pod_limits import Priorities

PREFIX: Final = "k8s:"
"""Prefix of the gang name of a `scheduling.k8s.io` PodGroup; object names contain no colons."""

_NO_CLASS: Final = "names a PriorityClass that does not exist; priority 0 is used"
_MARKS: Final = frozenset({PROBLEM, WAITING_SINCE, wellknown.QUEUE_NAME})


def gang_key(key: str) -> str:
    """Convert the key of a `scheduling.k8s.io` PodGroup to the key of its gang."""
    namespace, _, name = key.partition("/")
    return f"{namespace}/{PREFIX}{name}"


def object_key(gang: str) -> str:
    """Convert a gang key to the key of its Volcano or `scheduling.k8s.io` PodGroup."""
    return gang.replace(f"/{PREFIX}", "/", 1)


def gang_name(spec: dict[str, Any]) -> str:
    """Return the gang name for a pod's `spec.schedulingGroup`, or "" if the field is missing."""
    group = group_named_by(spec)
    return PREFIX + group if group else ""


def is_upstream(gang: Gang) -> bool:
    """Return whether the PodGroup of a gang is in the API group `scheduling.k8s.io`."""
    return gang.name.startswith(PREFIX)


def group_name(gang: Gang) -> str:
    """Return the name of a gang's PodGroup."""
    return gang.name.removeprefix(PREFIX)


def gang_of_scheduling_group(
    group: SchedulingPodGroup, tasks: Iterable[Task], priorities: Priorities, default_queue: str
) -> tuple[Gang, tuple[FieldError, ...]]:
    """Return the gang of a PodGroup and its pods, and remarks that do not block the gang."""
    members = tuple(sorted(tasks, key=lambda task: task.order))
    created = group.meta.creation_ms
    # A PodGroup with neither priority nor PriorityClass has the highest priority of its pods.
    remarks: tuple[FieldError, ...] = ()
    if group.priority is not None:
        priority = group.priority
    elif not group.priority_class:
        default = priorities.value_of("") or 0
        priority = max((task.priority for task in members), default=default)
    else:
        value = priorities.value_of(group.priority_class)
        priority = value or 0
        if value is None:
            remarks = (FieldError("spec.priorityClassName", group.priority_class, _NO_CLASS),)
    problem = read_reason(group.meta.annotations)
    if group.errors:
        message = f"PodGroup {group.meta.key} of scheduling.k8s.io: {join_messages(group.errors)}"
        problem = Reason(ReasonCode.INVALID_POD_GROUP, message)
    gang = Gang(
        key=gang_key(group.meta.key),
        queue=group.queue or default_queue,
        uid=group.meta.uid,
        min_member=group.min_count,
        priority=priority,
        created_ms=created,
        waiting_since_ms=waiting_since_ms(group.meta.annotations, created),
        phase=GangPhase.INQUEUE,
        tasks=members,
        annotations=without_annotations(group.meta.annotations, _MARKS),
        topology=TopologyRequest(label=group.topology_key) if group.topology_key else None,
        problem=problem,
    )
    return gang, remarks


def scheduling_group_spec(gang: Gang) -> dict[str, Any]:
    """Return the `spec` of a gang's `scheduling.k8s.io` PodGroup."""
    label = gang.topology.label if gang.topology is not None else ""
    constraints = {"schedulingConstraints": {"topology": [{"key": label}]}} if label else {}
    return {
        "schedulingPolicy": {"gang": {"minCount": gang.min_member}},
        **constraints,
        "priority": gang.priority,
    }
