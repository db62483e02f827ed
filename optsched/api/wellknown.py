"""Annotations, labels and scheduling gates that influence scheduling decisions.

The names are Volcano's (staging/src/volcano.sh/apis, scheduling/v1beta1/labels.go and
batch/v1alpha1/labels.go; pkg/scheduler/api/well_known_labels.go), except names with `optsched.io`
and names whose comment states another origin.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VOLCANO_PREFIX: Final = "volcano.sh/"
DEFAULT_SCHEDULER_NAME: Final = "volcano"
OWN_SCHEDULER_NAME: Final = "optsched"
DEFAULT_QUEUE: Final = "default"
ROOT_QUEUE: Final = "root"

# Pods: membership and order.
GROUP_NAME_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
MADE_GROUP_PREFIX: Final = "podgroup-"  # Name prefix of PodGroups created for existing pods.
QUEUE_NAME: Final = "scheduling.volcano.sh/queue-name"  # Pods or namespaces.
# The name of the scheduling gate, and of the annotation that requests the gate.
QUEUE_ALLOCATION_GATE: Final = "scheduling.volcano.sh/queue-allocation-gate"
TASK_SPEC: Final = "volcano.sh/task-spec"
TASK_INDEX: Final = "volcano.sh/task-index"
TASK_PRIORITY: Final = "volcano.sh/task-priority"
PARTITION_ID: Final = "volcano.sh/partition-id"
TEMPLATE_UID: Final = "volcano.sh/template-uid"
JOB_NAME: Final = "volcano.sh/job-name"
JOB_NAMESPACE: Final = "volcano.sh/job-namespace"
JOB_VERSION: Final = "volcano.sh/job-version"
JOB_RETRY_COUNT: Final = "volcano.sh/job-retry-count"
POD_QUEUE_NAME: Final = "volcano.sh/queue-name"
JOB_FORWARDING: Final = "volcano.sh/job-forwarding"

# Pods and PodGroups: which pods may be victims, and when.
PREEMPTABLE: Final = "volcano.sh/preemptable"
REVOCABLE_ZONE: Final = "volcano.sh/revocable-zone"  # Pods, PodGroups or nodes.
COOLDOWN_TIME: Final = "volcano.sh/cooldown-time"
RUNNING_ESTIMATE: Final = "optsched.io/running-estimate"  # Expected run time.
CHECKPOINTED_AT: Final = "optsched.io/checkpointed-at"  # Time of the last checkpoint.
CHECKPOINT_INTERVAL: Final = (
    "optsched.io/checkpoint-interval"  # Time between checkpoints in simulations.
)
USER: Final = "optsched.io/user"  # The user who is charged for the usage of a PodGroup or pod.
CRATER_USER: Final = "crater.raids.io/task-user"  # User name, set by Crater.
DATASETS: Final = "optsched.io/datasets"  # Annotation of pods, PodGroups and nodes.
DATASET_LABEL_PREFIX: Final = "datasets.optsched.io/"  # Prefix of node labels.
MOVABLE: Final = "optsched.io/movable"  # Whether a pod may restart on another node.
MIN_AVAILABLE: Final = "volcano.sh/jdb-min-available"
MAX_UNAVAILABLE: Final = "volcano.sh/jdb-max-unavailable"

# Nodes and placement.
HOSTNAME: Final = "kubernetes.io/hostname"
NETWORK_TOPOLOGY_MODE: Final = "volcano.sh/network-topology-mode"
NETWORK_TOPOLOGY_HIGHEST_TIER: Final = "volcano.sh/network-topology-highest-tier"
NUMA_TOPOLOGY_POLICY: Final = "volcano.sh/numa-topology-policy"
TOPOLOGY_DECISION: Final = "volcano.sh/topology-decision"
SCORING_TYPE: Final = "volcano.sh/resource-strategy-scoring-type"
SCORING_WEIGHT: Final = "volcano.sh/resource-strategy-weight"

# Pods: devices.
GPU_INDEX: Final = "volcano.sh/gpu-index"
PREDICATE_TIME: Final = "volcano.sh/predicate-time"
VGPU_MODE: Final = "volcano.sh/vgpu-mode"
VGPU_PODGROUP_POLICY: Final = "volcano.sh/vgpu-podgroup-policy"
VGPU_USE_UUID: Final = "volcano.sh/vgpu-use-gpuuuid"
VGPU_AVOID_UUID: Final = "volcano.sh/vgpu-nouse-gpuuuid"
NPU_MODE: Final = "huawei.com/vnpu-mode"
GPU_USE_TYPE: Final = "nvidia.com/use-gputype"
GPU_AVOID_TYPE: Final = "nvidia.com/nouse-gputype"

# Annotations of PodGroups; a PodGroup may inherit them from the owner of its pods.
GROUP_MIN_MEMBER: Final = "scheduling.volcano.sh/group-min-member"
WAITING_TIME_ANNOTATIONS: Final = ("volcano.sh/sla-waiting-time", "sla-waiting-time")
TASK_TOPOLOGY_AFFINITY: Final = "volcano.sh/task-topology-affinity"
TASK_TOPOLOGY_ANTI_AFFINITY: Final = "volcano.sh/task-topology-anti-affinity"
TASK_TOPOLOGY_ORDER: Final = "volcano.sh/task-topology-task-order"
HYPERCLUSTER: Final = "volcano.sh/hypercluster"  # Tier name for the whole cluster.
GROUP_SCHEDULER: Final = "optsched.io/scheduler"  # Name of a PodGroup's scheduler.
ADMITTED_QUEUE: Final = "optsched.io/admitted-queue"  # Queue charged for a bound pod's usage.
EVICTED: Final = "optsched.io/evicted"  # Pods evicted by the scheduler, as `name=uid`.
MOVES: Final = "optsched.io/moves"  # Pods moved for a PodGroup or bare pod.
SHUFFLED_BY: Final = "optsched.io/shuffled-by-"  # A plugin name follows.
ALLOCATED_HYPERNODE: Final = "volcano.sh/job-allocated-hypernode"

# Queues.
HIERARCHY: Final = "volcano.sh/hierarchy"
HIERARCHY_WEIGHTS: Final = "volcano.sh/hierarchy-weights"
NODEGROUP_RESOURCE_LIMITS: Final = "volcano.sh/nodegroup-resource-limits"
CLOSED_BY_PARENT: Final = "volcano.sh/closed-by-parent"
OVERUSE_TOLERANCE: Final = "volcano.sh/overuse-tolerance"  # Not a Volcano annotation.
QUEUE_USERS: Final = "optsched.io/users"  # Users who may submit jobs, comma-separated.
QUEUE_GROUPS: Final = "optsched.io/groups"
QUEUE_NAMESPACES: Final = "optsched.io/namespaces"
SUBMITTER: Final = "optsched.io/submitter"  # Submitter of a PodGroup or pod, set at admission.

# Events.
FULL_MESSAGE: Final = "optsched.io/full-message"  # A message that is too long for an Event.

# Nodes.
GPU_UNHEALTHY_IDS: Final = "volcano.sh/gpu-unhealthy-ids"
NODE_VGPU_REGISTER: Final = "volcano.sh/node-vgpu-register"


def first_annotation(annotations: Mapping[str, str], keys: tuple[str, ...]) -> str:
    """Return the first annotation in `keys` that is not empty, or "" if there is none."""
    return next((annotations[key] for key in keys if annotations.get(key)), "")


# --- booleans -------------------------------------------------------------------------------------

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""The strings that Go's `strconv.ParseBool` parses as true."""


def is_true(text: str | None) -> bool:
    """Return whether Go's `strconv.ParseBool` parses a string as true."""
    return text in _TRUE


def is_mark(key: str) -> bool:
    """Return whether only schedulers may write the PodGroup annotation with this key."""
    return key in (EVICTED, MOVES) or key.startswith(SHUFFLED_BY)


# --- submitters -----------------------------------------------------------------------------------


_JOINED: Final = "joined"


@dataclass(frozen=True, slots=True)
class Subject:
    """A user, and the groups that the API server reports for the user."""

    user: str
    groups: frozenset[str] = frozenset()


def parse_submitters(text: object) -> tuple[Subject, ...]:
    """Return the submitters in an annotation; empty if the annotation is missing or invalid."""
    if not isinstance(text, str) or not text:
        return ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    entries = found if isinstance(found, list) else [found]
    subjects = []
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {}
        user, groups = fields.get("user"), fields.get("groups")
        if not isinstance(user, str) or not user or not isinstance(groups, list):
            # If any subject is invalid, the result is empty: every submitter needs access, so a
            # shorter list could grant more access.
            return ()
        subjects.append(Subject(user, frozenset(each for each in groups if isinstance(each, str))))
    return tuple(subjects)


def format_joined(uid: str, queue: str) -> str:
    """Format the UID of the PodGroup and the name of the queue to which a pod was admitted."""
    return f"{uid} {queue}"


def parse_joined(text: object) -> str | None:
    """Return the result of `format_joined` in a pod's submitter annotation, or None if absent.

    The string is empty for a pod that was created before its PodGroup.
    """
    try:
        entry = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    joined = entry.get(_JOINED) if isinstance(entry, dict) else None
    return joined if isinstance(joined, str) else None


def format_submitters(subjects: Iterable[Subject], joined: str | None = None) -> str:
    """Return the submitter annotation; subjects are sorted by user name, without duplicates.

    For a pod, `joined` is the string that `format_joined` returned.
    """
    more = {} if joined is None else {_JOINED: joined}
    unique = sorted(set(subjects), key=lambda subject: (subject.user, sorted(subject.groups)))
    entries = [{"user": each.user, "groups": sorted(each.groups), **more} for each in unique]
    return json.dumps(entries[0] if len(entries) == 1 else entries, separators=(",", ":"))
