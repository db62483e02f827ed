"""Convert Volcano PodGroups, `scheduling.k8s.io` PodGroups and bare pods to gangs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds, wellknown
from optsched.cluster.amounts import amounts
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase, Owner
from optsched.cluster.task import TaskStatus
from optsched.cluster.topology import TopologyRequest
from optsched.formats.codec.annotations import (
    DEVICE,
    OWNER,
    PLUGIN_ANNOTATIONS,
    PROBLEM,
    WAITING_SINCE,
    read_reason,
    time_text,
    waiting_since_ms,
    without_annotations,
)
from optsched.formats.codec.ascend_npus import NPU_ANNOTATIONS
from optsched.formats.codec.gpu_shares import CARDS, VGPU_IDS
from optsched.formats.codec.hypernodes import sub_group_rule, topology_request
from optsched.formats.codec.nodes import IMAGES
from optsched.formats.codec.numatopologies import NEEDS
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES, UPSTREAM_PREFIX, upstream_gang_key
from optsched.formats.files.diagnostics import join_messages
from optsched.plugins.topology.task_topology import read_roles
from optsched.units import (
    DurationError,
    FieldError,
    TimestampError,
    parse_duration_ms,
    parse_time_ms,
    split_usage,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from optsched.api.podgroup import PodGroup, SchedulingPodGroup
    from optsched.cluster.task import Task
    from optsched.formats.codec.pod_limits import Priorities

_NO_CLASS: Final = "names a PriorityClass that does not exist; priority 0 is used"
_DECODED_UPSTREAM_ANNOTATIONS: Final = frozenset({PROBLEM, WAITING_SINCE, wellknown.QUEUE_NAME})
_DECODED_ANNOTATIONS: Final = frozenset({PROBLEM, WAITING_SINCE, wellknown.SUBMITTER})
ENDING_STATUSES: Final = frozenset({TaskStatus.RELEASING, TaskStatus.SUCCEEDED, TaskStatus.FAILED})
DECODED_POD_ANNOTATIONS: Final = frozenset(
    {
        wellknown.SUBMITTER,
        wellknown.PREEMPTABLE,
        wellknown.COOLDOWN_TIME,
        wellknown.CHECKPOINTED_AT,
        wellknown.MOVABLE,
        wellknown.RUNNING_ESTIMATE,
        wellknown.QUEUE_ALLOCATION_GATE,
        PROBLEM,
        WAITING_SINCE,
        CARDS,
        DEVICE,
        OWNER,
        NEEDS,
        wellknown.TOPOLOGY_DECISION,
        wellknown.GPU_INDEX,
        VGPU_IDS,
        wellknown.QUEUE_NAME,
        wellknown.TASK_SPEC,
        wellknown.TASK_INDEX,
        wellknown.TASK_PRIORITY,
        *wellknown.GROUP_NAME_ANNOTATIONS,
        wellknown.DATASETS,
        IMAGES,
        *PLUGIN_ANNOTATIONS,
    }
)
"""Pod annotations that are decoded into fields of the task or gang."""


def gang_of_group(
    group: PodGroup, tasks: Iterable[Task], priorities: Priorities
) -> tuple[Gang, tuple[FieldError, ...]]:
    """Return the gang of a PodGroup with its pods, and field errors that do not block the gang.

    If the PodGroup has invalid fields, `Gang.problem` names them.
    """
    value = priorities.value_of(group.priority_class)
    missing = FieldError("spec.priorityClassName", group.priority_class, _NO_CLASS)
    created = group.meta.creation_ms
    least, usage = split_usage(group.min_resources)
    members = tuple(sorted(tasks, key=lambda task: task.order))
    phase = GangPhase(group.status.phase.value)
    problem = read_reason(group.meta.annotations)
    if group.errors:
        message = f"PodGroup {group.key}: {join_messages(group.errors)}"
        problem = Reason(ReasonCode.INVALID_POD_GROUP, message)
    if has_lost_its_pods(members, group):
        phase = GangPhase.PENDING if phase is GangPhase.INQUEUE else phase
        message = f"minMember is {group.min_member}, but only 0 pods exist"
        problem = problem or Reason(ReasonCode.NOT_ENOUGH_TASKS, message)
    annotations = without_annotations(group.meta.annotations, _DECODED_ANNOTATIONS)
    label = group.meta.labels.get(wellknown.PREEMPTABLE)
    if label is not None:
        annotations = {wellknown.PREEMPTABLE: label, **annotations}
    controller, owner = group.meta.controller, None
    if controller is not None:
        owner = Owner(controller.api_version, controller.kind, controller.name, controller.uid)
    gang = Gang(
        key=group.key,
        queue=group.queue,
        uid=group.meta.uid,
        min_member=group.min_member,
        min_role=tuple(sorted(group.min_task_member.items())),
        min_resources=amounts(least),
        min_usage=amounts(usage),
        priority=value or 0,
        created_ms=created,
        waiting_since_ms=waiting_since_ms(group.meta.annotations, created),
        phase=phase,
        tasks=members,
        annotations=annotations,
        topology=topology_request(group.topology),
        sub_groups=tuple(sub_group_rule(policy) for policy in group.sub_groups),
        owner=owner,
        problem=problem,
    )
    remarks = (missing,) if value is None else ()
    unread: list[FieldError] = []
    read_roles(group.meta.annotations, unread)
    return gang, (*remarks, *_unread_durations(group.meta.annotations), *unread)


def has_lost_its_pods(members: tuple[Task, ...], group: PodGroup) -> bool:
    """Return whether a PodGroup was created for existing pods that have all been deleted.

    A PodGroup for existing pods exists as long as its owner, for example a suspended or failed Job.
    Without pods, the PodGroup must neither reserve resources nor be enqueued, because only Volcano
    Jobs wait for the phase Inqueue before they create pods.
    """
    owner = group.meta.controller
    if members or owner is None:
        return False
    is_made = group.meta.name == f"{wellknown.MADE_GROUP_PREFIX}{owner.uid}"
    return is_made and (owner.api_version, owner.kind) != (kinds.JOB.api_version, kinds.JOB.kind)


def _unread_durations(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    """Yield an error for an invalid waiting time or run time; Volcano ignores invalid times."""
    waiting = next((k for k in wellknown.WAITING_TIME_ANNOTATIONS if annotations.get(k)), None)
    running = wellknown.RUNNING_ESTIMATE if annotations.get(wellknown.RUNNING_ESTIMATE) else None
    for key in filter(None, (waiting, running)):
        try:
            parse_duration_ms(annotations[key])
        except DurationError as e:
            yield e.at_path(f"metadata.annotations[{key}]")


def is_empty_group_of(group: PodGroup, scheduler_names: Collection[str]) -> bool:
    """Return whether a PodGroup without pods belongs to a scheduler in `scheduler_names`.

    An annotation names the PodGroup's scheduler. Without the annotation, the PodGroup belongs to
    every scheduler whose name is in `SCHEDULER_NAMES`.
    """
    named = group.meta.annotations.get(wellknown.GROUP_SCHEDULER)
    if named:
        return named in scheduler_names
    return not set(SCHEDULER_NAMES).isdisjoint(scheduler_names)


def gang_of_scheduling_group(
    group: SchedulingPodGroup, tasks: Iterable[Task], priorities: Priorities, default_queue: str
) -> tuple[Gang, tuple[FieldError, ...]]:
    """Return the gang of an upstream PodGroup, and field errors that do not block the gang."""
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
        key=upstream_gang_key(group.meta.key),
        queue=group.queue or default_queue,
        uid=group.meta.uid,
        min_member=group.min_count,
        priority=priority,
        created_ms=created,
        waiting_since_ms=waiting_since_ms(group.meta.annotations, created),
        phase=GangPhase.INQUEUE,
        tasks=members,
        annotations=without_annotations(group.meta.annotations, _DECODED_UPSTREAM_ANNOTATIONS),
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


def gang_without_group(key: str, tasks: Iterable[Task], queue: str) -> Gang:
    """Return the gang that consists of the pods of a missing PodGroup.

    `Gang.problem` is None if all pods are terminating or have finished, because a finished job
    deletes its PodGroup.
    """
    members = tuple(sorted(tasks, key=lambda task: task.order))
    first = min(members, key=lambda task: task.key)
    namespace, _, name = key.partition("/")
    group_text = f"PodGroup {key}"
    if name.startswith(UPSTREAM_PREFIX):
        group_text = (
            f"PodGroup {namespace}/{name.removeprefix(UPSTREAM_PREFIX)} of scheduling.k8s.io"
        )
    message = f"{group_text}, which pod {first.key} names, does not exist"
    if name in {f"{wellknown.MADE_GROUP_PREFIX}{task.owner or task.uid}" for task in members}:
        message = f"{group_text} of pod {first.key} does not exist yet: controllers will create it"
    created = min(task.created_ms for task in members)
    is_over = all(task.status in ENDING_STATUSES for task in members)
    return Gang(
        key=key,
        queue=queue,
        priority=max(task.priority for task in members),
        created_ms=created,
        waiting_since_ms=created,
        tasks=members,
        problem=None if is_over else Reason(ReasonCode.POD_GROUP_NOT_FOUND, message),
    )


def implicit_gang(task: Task, queue: str, priority: int, annotations: Mapping[str, str]) -> Gang:
    """Return the gang of a pod without a PodGroup.

    `priority` is the pod's priority without the effect of `volcano.sh/task-priority`. `annotations`
    are the pod's annotations.
    """
    phase = GangPhase.PENDING
    if task.status.holds_resources:
        phase = GangPhase.RUNNING
    elif task.status in (TaskStatus.SUCCEEDED, TaskStatus.FAILED):
        phase = GangPhase.COMPLETED
    return Gang(
        key=task.gang,
        queue=queue,
        min_member=1,
        priority=priority,
        created_ms=task.created_ms,
        waiting_since_ms=waiting_since_ms(annotations, task.created_ms),
        phase=phase,
        tasks=(task,),
        annotations=without_annotations(
            without_annotations(annotations, DECODED_POD_ANNOTATIONS), NPU_ANNOTATIONS
        ),
        is_implicit=True,
    )


# --- shuffle times --------------------------------------------------------------------------------

MOST_SHUFFLES: Final = 64
"""Maximum number of plugins for which `ShuffleTimes.written` keeps a time.

Tenants may write annotations `optsched.io/shuffled-by-` with any number of plugin names.
"""


def shuffle_annotation(plugin: str, now_ms: int) -> dict[str, str]:
    """Return the PodGroup annotation for pods that a plugin moves at the time `now_ms`."""
    return {f"{wellknown.SHUFFLED_BY}{plugin}": time_text(now_ms)}


def last_shuffle_ms(annotations: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """Read from PodGroup annotations when each plugin last moved pods; ignore invalid times."""
    found: dict[str, int] = {}
    for each in annotations:
        for key, text in each.items():
            if key.startswith(wellknown.SHUFFLED_BY):
                plugin = key.removeprefix(wellknown.SHUFFLED_BY)
                found.setdefault(plugin, 0)
                with suppress(TimestampError):
                    found[plugin] = max(found[plugin], parse_time_ms(text))
    return found


@dataclass(frozen=True, slots=True)
class ShuffleTimes:
    """The times at which plugins last moved pods to better nodes, in ms, keyed by plugin.

    Attributes
    ----------
    own
        The times recorded by this process.
    written
        The times recorded in PodGroup annotations.

    """

    own: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)

    def add_annotations(self, annotations: Mapping[str, str]) -> None:
        """Add the move times in a PodGroup's annotations to `written`; keep the latest ones."""
        times = self.written
        for plugin, at_ms in last_shuffle_ms([annotations]).items():
            times[plugin] = max(times.get(plugin, 0), at_ms)
            if len(times) > MOST_SHUFFLES:
                del times[min(times, key=lambda name: times[name])]

    def last_ms(self, taken_ms: int | None) -> dict[str, int]:
        """Return when each plugin last moved pods to better nodes.

        `taken_ms` is the current time in ms since 1970, or None. Times after `taken_ms` are
        ignored, so that a process on a machine with a wrong clock cannot block the plugin.
        """
        found: dict[str, int] = {}
        for times in (self.written, self.own):
            for plugin, at_ms in times.items():
                if taken_ms is None or at_ms <= taken_ms:
                    found[plugin] = max(found.get(plugin, 0), at_ms)
        return found
