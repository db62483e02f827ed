"""Jobs: their specification, status and defaults.

Names, defaults and limits are from Volcano's batch/v1alpha1/job.go and its job webhooks
(pkg/webhooks/admission/jobs). The parser sets the same defaults as Volcano's mutating webhook for
task names, minAvailable and maxRetry. The parsed fields of a job therefore do not depend on whether
the webhook reviewed the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds, wellknown
from optsched.api.crds import schema_of
from optsched.api.fields import Fields
from optsched.api.meta import ApiObject, parse_meta
from optsched.api.podgroup import read_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.podgroup import NetworkTopology
    from optsched.units import FieldError

DEFAULT_MAX_RETRY: Final = 3
TASK_NAME_PREFIX: Final = "default"


class JobPhase(StrEnum):
    """The phase of a job."""

    PENDING = "Pending"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"


class JobEvent(StrEnum):
    """Events of jobs, tasks and pods; no policy may use PodRunning, OutOfSync or CommandIssued."""

    ANY = "*"
    POD_PENDING = "PodPending"
    POD_RUNNING = "PodRunning"
    POD_FAILED = "PodFailed"
    POD_EVICTED = "PodEvicted"
    UNKNOWN = "Unknown"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    JOB_UPDATED = "JobUpdated"
    OUT_OF_SYNC = "OutOfSync"
    COMMAND_ISSUED = "CommandIssued"


class JobAction(StrEnum):
    """Actions that a lifecycle policy or Command runs on a job, task, partition or pod."""

    ABORT_JOB = "AbortJob"
    RESTART_JOB = "RestartJob"
    RESTART_TASK = "RestartTask"
    RESTART_POD = "RestartPod"
    RESTART_PARTITION = "RestartPartition"
    TERMINATE_JOB = "TerminateJob"
    COMPLETE_JOB = "CompleteJob"
    RESUME_JOB = "ResumeJob"


class NumaPolicy(StrEnum):
    """A task's NUMA policy: how strictly its CPUs and devices must be aligned with NUMA nodes."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Iteration(StrEnum):
    """Whether a task waits for any one or for all of the tasks on which it depends."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class LifecyclePolicy:
    """The action that an event or an exit code triggers.

    `action` is None if the field cannot be read. `timeout_ms` is how long the event must last
    before the action runs, in ms. None means that the action runs immediately.
    """

    action: JobAction | None
    events: tuple[JobEvent, ...] = ()
    exit_code: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DependsOn:
    """Tasks that must be running or finished before the dependent task starts."""

    names: tuple[str, ...] = ()
    iteration: Iteration = Iteration.ALL


@dataclass(frozen=True, slots=True)
class PartitionPolicy:
    """A policy that divides a task's pods into `total` partitions of `size` pods each."""

    total: int
    size: int
    min_partitions: int = 0
    topology: NetworkTopology | None = None


@dataclass(frozen=True, slots=True)
class JobVolume:
    """A volume that every container of a job mounts; `claim` is the spec of a PVC to create."""

    mount_path: str
    claim_name: str = ""
    claim: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task of a job: `replicas` pods with the same template.

    If the field `minAvailable` is absent, `min_available` is the default value of Volcano's
    webhook. `template` is the unparsed pod template. The task fails after `max_retry` restarts of
    one pod; -1 means no limit.
    """

    name: str
    replicas: int = 0
    min_available: int = 0
    template: Mapping[str, Any] = field(default_factory=dict)
    policies: tuple[LifecyclePolicy, ...] = ()
    topology_policy: NumaPolicy = NumaPolicy.NONE
    max_retry: int = DEFAULT_MAX_RETRY
    depends_on: DependsOn | None = None
    partition: PartitionPolicy | None = None


MAX_PODS: Final = 100_000
"""Maximum number of pods of one job; Kubernetes supports up to 150 000 pods in a cluster."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The spec of a job.

    `min_available` is the number of pods that start together; by default, it is the sum of the
    tasks' `min_available`. `ttl_s`, `min_success` and `running_estimate_ms` are None if the spec
    does not set them. `plugins` maps plugin names to arguments.
    """

    scheduler_name: str = wellknown.DEFAULT_SCHEDULER_NAME
    min_available: int = 0
    volumes: tuple[JobVolume, ...] = ()
    tasks: tuple[TaskSpec, ...] = ()
    policies: tuple[LifecyclePolicy, ...] = ()
    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    running_estimate_ms: int | None = None
    queue: str = wellknown.DEFAULT_QUEUE
    max_retry: int = DEFAULT_MAX_RETRY
    ttl_s: int | None = None
    priority_class: str = ""
    min_success: int | None = None
    topology: NetworkTopology | None = None

    @property
    def num_pods(self) -> int:
        """The total number of replicas of all tasks."""
        return sum(task.replicas for task in self.tasks)


@dataclass(frozen=True, slots=True)
class JobCondition:
    """A phase that a job entered at `transition_ms` (in ms since 1970; None if unknown)."""

    phase: JobPhase
    transition_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """The deletion of a job's pod whose replacement pod has not run yet.

    `deleted_ms` is in ms since 1970. `is_disruption` is True if the cluster deleted the pod, not a
    user.
    """

    deleted_ms: int
    is_disruption: bool = False


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The number of a job's pods in each state.

    `by_task` maps each task to its number of pods per phase, without terminating pods.
    """

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    terminating: int = 0
    by_task: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def alive(self) -> int:
        """Number of pods that have not finished, including pods in an unknown state."""
        return self.pending + self.running + self.unknown + self.terminating


@dataclass(frozen=True, slots=True)
class JobRestarts:
    """The version of a job and its number of restarts.

    `evictions` counts restarts after evictions; `retries` counts all other restarts. `restarted`
    maps each restarted task, partition or pod to the lowest job version that its pods may have.
    """

    version: int = 0
    retries: int = 0
    evictions: int = 0
    restarted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The stored status of a job.

    `phase` is Pending and `is_new` is True while no phase is stored. `deletions` holds the pod
    deletions whose policy timeout has not expired, keyed by pod. `last_command` is the UID of the
    last executed Command.
    """

    phase: JobPhase = JobPhase.PENDING
    is_new: bool = True
    reason: str = ""
    message: str = ""
    transition_ms: int | None = None
    min_available: int = 0
    counts: PodCounts = PodCounts()
    restarts: JobRestarts = JobRestarts()
    deletions: Mapping[str, PodDeletion] = field(default_factory=dict)
    last_command: str = ""
    running_duration_ms: int | None = None
    controlled: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[JobCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class Job(ApiObject):
    """A batch job."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


def parse_job(obj: object) -> tuple[Job | None, tuple[FieldError, ...]]:
    """Parse a job from a manifest or API object; return it with its field errors.

    The job is None only if the object has no name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.JOB), "", errors)
    spec, status = read_job_spec(whole.record("spec")), _status(whole.record("status"))
    job = Job(meta=meta, spec=spec, status=status, errors=tuple(errors))
    return job, job.errors


def read_job_spec(spec: Fields) -> JobSpec:
    """Parse the spec of a Job, JobTemplate or CronJob template, with Volcano's defaults."""
    tasks = tuple(_task(each, index) for index, each in enumerate(spec.records("tasks")))
    num_pods = sum(task.replicas for task in tasks)
    if num_pods > MAX_PODS:
        message = f"pods are too many: all tasks together may have at most {MAX_PODS} replicas"
        spec.reject("tasks", num_pods, message)
    return JobSpec(
        scheduler_name=spec.text("schedulerName") or wellknown.DEFAULT_SCHEDULER_NAME,
        min_available=spec.integer("minAvailable") or sum(task.min_available for task in tasks),
        volumes=tuple(
            JobVolume(
                mount_path=each.text("mountPath"),
                claim_name=each.text("volumeClaimName"),
                claim=None if each.raw("volumeClaim") is None else each.mapping("volumeClaim"),
            )
            for each in spec.records("volumes")
        ),
        tasks=tasks,
        policies=_policies(spec),
        plugins=spec.text_lists_by_name("plugins"),
        running_estimate_ms=spec.duration_ms("runningEstimate"),
        queue=spec.text("queue"),
        max_retry=spec.integer("maxRetry") or DEFAULT_MAX_RETRY,
        ttl_s=spec.optional_integer("ttlSecondsAfterFinished"),
        priority_class=spec.text("priorityClassName"),
        min_success=spec.optional_integer("minSuccess"),
        topology=read_topology(spec),
    )


def task_counts(fields: Fields) -> dict[str, dict[str, int]]:
    """Return the number of pods by task and phase in the field `taskStatusCount`."""
    return {
        task: counts.integers_by_name("phase")
        for task, counts in fields.records_by_name("taskStatusCount")
    }


def _task(task: Fields, index: int) -> TaskSpec:
    replicas, policy = task.integer("replicas"), task.optional_record("partitionPolicy")
    partition = None
    if policy is not None:
        partition = PartitionPolicy(
            total=policy.integer("totalPartitions"),
            size=policy.integer("partitionSize"),
            min_partitions=policy.integer("minPartitions"),
            topology=read_topology(policy),
        )
    minimum = task.optional_integer("minAvailable")
    if minimum is None and partition is not None and partition.min_partitions:
        minimum = partition.min_partitions * partition.size
    return TaskSpec(
        name=task.text("name") or f"{TASK_NAME_PREFIX}{index}",
        replicas=replicas,
        min_available=replicas if minimum is None else minimum,
        template=task.mapping("template"),
        policies=_policies(task),
        topology_policy=NumaPolicy(task.text("topologyPolicy") or NumaPolicy.NONE),
        max_retry=task.integer("maxRetry") or DEFAULT_MAX_RETRY,
        depends_on=DependsOn(
            waits.texts("name"), Iteration(waits.text("iteration") or Iteration.ALL)
        )
        if (waits := task.optional_record("dependsOn"))
        else None,
        partition=partition,
    )


def _policies(fields: Fields) -> tuple[LifecyclePolicy, ...]:
    found: list[LifecyclePolicy] = []
    for policy in fields.records("policies"):
        action = policy.text("action")
        names = filter(None, dict.fromkeys([*policy.choices("events"), policy.text("event")]))
        found.append(
            LifecyclePolicy(
                action=JobAction(action) if action else None,
                # Volcano's guides write JobUnknown for the event that its API calls Unknown.
                events=tuple(
                    JobEvent.UNKNOWN if name == "JobUnknown" else JobEvent(name) for name in names
                ),
                exit_code=policy.optional_integer("exitCode"),
                timeout_ms=policy.duration_ms("timeout"),
            )
        )
    return tuple(found)


def _status(status: Fields) -> JobStatus:
    state = status.record("state")
    return JobStatus(
        phase=JobPhase(state.text("phase") or JobPhase.PENDING),
        is_new=not state.text("phase"),
        reason=state.text("reason"),
        message=state.text("message"),
        transition_ms=state.time_ms("lastTransitionTime"),
        min_available=status.integer("minAvailable"),
        counts=PodCounts(
            pending=status.integer("pending"),
            running=status.integer("running"),
            succeeded=status.integer("succeeded"),
            failed=status.integer("failed"),
            unknown=status.integer("unknown"),
            terminating=status.integer("terminating"),
            by_task=task_counts(status),
        ),
        restarts=JobRestarts(
            version=status.integer("version"),
            retries=status.integer("retryCount"),
            evictions=status.integer("evictions"),
            restarted=status.integers_by_name("restarted"),
        ),
        deletions=_deletions(status),
        last_command=status.text("lastCommand"),
        running_duration_ms=status.duration_ms("runningDuration"),
        controlled=status.texts_by_name("controlledResources"),
        conditions=tuple(
            JobCondition(JobPhase(each.text("status")), each.time_ms("lastTransitionTime"))
            for each in status.records("conditions")
            if each.text("status")
        ),
    )


def _deletions(status: Fields) -> dict[str, PodDeletion]:
    found = {}
    for pod, each in status.records_by_name("deletions"):
        deleted_ms, is_disruption = each.time_ms("time"), each.boolean("disruption")
        if deleted_ms is not None:
            found[pod] = PodDeletion(deleted_ms, is_disruption)
    return found
