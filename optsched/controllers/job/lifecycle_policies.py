"""Events of a job, and the actions that its lifecycle policies trigger.

No state is kept in memory: events are derived from the current objects. The event of a failed pod,
for example, lasts until an action deletes the pod. A deleted pod leaves no object behind, so the
job's status stores the deletions to which a policy with a timeout applies. Source: Volcano,
pkg/controllers/job/job_controller_handler.go and `applyPolicies` of job_controller_util.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobAction, JobEvent, PodDeletion
from optsched.api.json_fields import (
    annotations_of,
    created_ms,
    meta_of,
    records,
    status_of,
    subobject,
    time_ms,
)
from optsched.controllers.job.object_names import pod_name
from optsched.controllers.job.observed_job import (
    container_statuses,
    exit_codes,
    is_disrupted,
    pod_key,
    restarts,
)
from optsched.controllers.job.podgroups import GENERATION
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from optsched.api.job import Job, LifecyclePolicy, TaskSpec
    from optsched.controllers.job.observed_job import ObservedJob, PodView

_ORDINARY: Final = frozenset(
    {
        JobEvent.POD_PENDING,
        JobEvent.POD_RUNNING,
        JobEvent.JOB_UPDATED,
        JobEvent.OUT_OF_SYNC,
        JobEvent.COMMAND_ISSUED,
    }
)
"""Events of jobs without problems; a lifecycle policy for `*` does not match these events."""


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """An event that has occurred in a job.

    Attributes
    ----------
    task, index
        The task and pod index to which the event belongs. The index is -1 for an event of the whole
        task. For an event of the whole job, the task is None too.
    since_ms
        The time of the event in ms since the Unix epoch. If the time is unknown, this is None, and
        every timeout counts as expired.
    is_disruption
        True if the cluster, not a user, deleted the pod.
    """

    event: JobEvent
    what: str
    task: TaskSpec | None = None
    index: int = -1
    exit_codes: frozenset[int] = frozenset()
    since_ms: int | None = None
    is_disruption: bool = False


@dataclass(frozen=True, slots=True)
class TriggeredAction:
    """The action of a lifecycle policy, and the event that triggers it."""

    action: JobAction
    occurrence: ObservedEvent


def apply_policies(observed: ObservedJob) -> tuple[TriggeredAction | None, int | None]:
    """Return the action for the first event whose policy has no timeout or an expired timeout.

    If no policy triggers an action, return the time in ms until the next policy timeout expires, or
    None if no timeout is pending. Events are checked in the order of `_EVENT_SOURCES`.
    """
    waits = []
    events = events_with_policy(observed.job)
    for occurrence in chain.from_iterable(
        observe_events(observed) for event, observe_events in _EVENT_SOURCES if event in events
    ):
        policy = policy_for(observed.job, occurrence)
        action = None if policy is None else policy.action
        if policy is None or action is None or action is JobAction.RESUME_JOB:
            continue  # A pending or running job is not suspended, so it cannot be resumed.
        wait_ms = 0
        if policy.timeout_ms is not None and occurrence.since_ms is not None:
            wait_ms = occurrence.since_ms + policy.timeout_ms - observed.now_ms
        if wait_ms > 0:
            waits.append(wait_ms)
            continue
        return TriggeredAction(action, occurrence), None
    return None, min(waits, default=None)


def awaited_deletions(observed: ObservedJob) -> dict[str, PodDeletion]:
    """Return the pod deletions to which a policy with a timeout applies.

    The result is keyed by `pod_key(task, index)`.
    """
    found: dict[str, PodDeletion] = {}
    if JobEvent.POD_EVICTED not in events_with_policy(observed.job):
        return found
    for occurrence in _observe_evicted_pods(observed):
        policy = policy_for(observed.job, occurrence)
        if occurrence.task is None or policy is None or policy.timeout_ms is None:
            continue
        since_ms = observed.now_ms if occurrence.since_ms is None else occurrence.since_ms
        key = pod_key(occurrence.task.name, occurrence.index)
        found[key] = PodDeletion(since_ms, occurrence.is_disruption)
    return found


def events_with_policy(job: Job) -> frozenset[JobEvent]:
    """Return the events that the lifecycle policies of a job and its tasks may match."""
    policies = [*job.spec.policies, *(each for task in job.spec.tasks for each in task.policies)]
    found = {event for policy in policies for event in policy.events}
    if any(policy.exit_code is not None for policy in policies):
        found.add(JobEvent.POD_FAILED)
    return frozenset(JobEvent if JobEvent.ANY in found else found)


def policy_for(job: Job, occurrence: ObservedEvent) -> LifecyclePolicy | None:
    """Return the first policy of the task or else of the job that matches an event, or None."""
    task = occurrence.task
    for policy in (*(() if task is None else task.policies), *job.spec.policies):
        if occurrence.event is JobEvent.POD_PENDING and policy.timeout_ms is None:
            # Every new pod is pending, so only a policy with a timeout can match PodPending.
            continue
        if (
            occurrence.event in policy.events
            or (JobEvent.ANY in policy.events and occurrence.event not in _ORDINARY)
            or (policy.exit_code is not None and policy.exit_code in occurrence.exit_codes)
        ):
            return policy
    return None


# --- observed events -----------------------------------------------------------------------------


def _observe_completed_tasks(observed: ObservedJob) -> Iterator[ObservedEvent]:
    for task in observed.job.spec.tasks:
        pods = [pod for pod in observed.pods_of(task) if pod.is_active]
        is_complete = task.replicas and len(pods) == task.replicas
        if is_complete and all(pod.phase == "Succeeded" for pod in pods):
            what = f"all pods of task {task.name} have succeeded"
            since = _latest(
                _last_end_ms(records(status_of(pod.manifest), "containerStatuses"), "state")
                for pod in pods
            )
            yield ObservedEvent(JobEvent.TASK_COMPLETED, what, task, since_ms=since)


def _observe_failed_pods(observed: ObservedJob) -> Iterator[ObservedEvent]:
    for task, pod in _active_pods(observed):
        if pod.phase == "Failed":
            codes = exit_codes(pod.manifest)
            tail = f" with exit code {', '.join(map(str, sorted(codes)))}" if codes else ""
            yield ObservedEvent(
                JobEvent.POD_FAILED,
                f"pod {pod.name} has failed{tail}",
                task,
                pod.index,
                codes,
                _last_end_ms(records(status_of(pod.manifest), "containerStatuses"), "state"),
            )


def _observe_evicted_pods(observed: ObservedJob) -> Iterator[ObservedEvent]:
    """Yield an event for each terminating or deleted pod; deletions by the cluster come last.

    If fewer pods of a task exist than the job's status records, the missing pods were deleted. A
    deletion in the job's status causes an event until the replacement pod runs, as in Volcano.
    """
    found = [
        *_observe_terminating_pods(observed),
        *_observe_absent_pods(observed),
        *_observe_stored_deletions(observed),
    ]
    yield from sorted(found, key=lambda occurrence: occurrence.is_disruption)


def _observe_terminating_pods(observed: ObservedJob) -> Iterator[ObservedEvent]:
    deletions = observed.job.status.deletions
    for (name, index), pod in observed.pods.items():
        if pod.is_terminating and not pod.is_outdated and pod_key(name, index) not in deletions:
            meta = meta_of(pod.manifest)
            by_ms = time_ms(meta.get("deletionTimestamp"))
            grace = meta.get("deletionGracePeriodSeconds")
            deleted_ms = (
                None if by_ms is None else by_ms - 1000 * (grace if isinstance(grace, int) else 0)
            )
            yield ObservedEvent(
                JobEvent.POD_EVICTED,
                f"pod {pod.name} is being deleted",
                pod.task,
                index,
                since_ms=deleted_ms,
                is_disruption=observed.evicted.get(pod.name) == pod.uid
                or is_disrupted(pod.manifest),
            )


def _observe_absent_pods(observed: ObservedJob) -> Iterator[ObservedEvent]:
    job = observed.job
    for task in job.spec.tasks:
        num_known = sum(job.status.counts.by_task.get(task.name, {}).values())
        num_existing = sum(1 for pod in observed.pods_of(task))
        num_absent = min(num_known, task.replicas) - num_existing
        if num_absent <= 0:
            continue
        absent = [
            i
            for i in range(task.replicas)
            if (task.name, i) not in observed.pods
            and pod_key(task.name, i) not in job.status.deletions
        ]
        names = {i: pod_name(job.meta.name, task.name, i) for i in absent}
        by_scheduler = [i for i in absent if names[i] in observed.evicted]
        by_others = [i for i in absent if names[i] not in observed.evicted]
        for index in (by_scheduler + by_others)[:num_absent]:
            yield ObservedEvent(
                JobEvent.POD_EVICTED,
                f"pod {names[index]} was deleted",
                task,
                index,
                since_ms=observed.now_ms,
                is_disruption=index in by_scheduler,
            )


def _observe_stored_deletions(observed: ObservedJob) -> Iterator[ObservedEvent]:
    job = observed.job
    if not job.status.deletions:
        return
    for task in job.spec.tasks:
        for index in range(task.replicas):
            deletion = job.status.deletions.get(pod_key(task.name, index))
            pod = observed.pods.get((task.name, index))
            has_run = pod is not None and not pod.is_terminating and pod.phase != "Pending"
            if deletion is not None and not has_run:
                yield ObservedEvent(
                    JobEvent.POD_EVICTED,
                    f"pod {pod_name(job.meta.name, task.name, index)} was deleted",
                    task,
                    index,
                    since_ms=deletion.deleted_ms,
                    is_disruption=deletion.is_disruption,
                )


def _observe_exhausted_restarts(observed: ObservedJob) -> Iterator[ObservedEvent]:
    for task in observed.job.spec.tasks:
        if task.max_retry < 0:
            continue
        pods = [p for p in observed.pods_of(task) if p.is_active and not p.has_ended]
        num_restarts = sum(restarts(pod.manifest) for pod in pods)
        if num_restarts >= task.max_retry:
            what = f"containers of task {task.name} restarted {num_restarts} times"
            since = _latest(
                _last_end_ms(container_statuses(pod.manifest), "lastState") for pod in pods
            )
            yield ObservedEvent(JobEvent.TASK_FAILED, what, task, since_ms=since)


def _observe_unknown_gang(observed: ObservedJob) -> Iterator[ObservedEvent]:
    if observed.group is not None and status_of(observed.group).get("phase") == "Unknown":
        what = "some pods run, but the scheduler cannot place minAvailable pods"
        conditions = records(status_of(observed.group), "conditions")
        since = _latest(time_ms(each.get("lastTransitionTime")) for each in conditions)
        # If a pod that the scheduler evicted no longer runs, the cluster caused the disruption.
        running = {
            pod.name
            for pod in observed.all_pods
            if pod.phase == "Running" and not pod.is_terminating
        }
        terminating = (pod for pod in observed.all_pods if pod.is_terminating)
        is_disruption = not observed.evicted.keys() <= running or any(
            is_disrupted(pod.manifest) for pod in terminating
        )
        yield ObservedEvent(JobEvent.UNKNOWN, what, since_ms=since, is_disruption=is_disruption)


def _observe_update(observed: ObservedJob) -> Iterator[ObservedEvent]:
    seen = "" if observed.group is None else annotations_of(observed.group).get(GENERATION, "")
    if is_decimal(seen) and int(seen) < observed.generation:
        yield ObservedEvent(JobEvent.JOB_UPDATED, "the job was changed")


def _observe_pending_pods(observed: ObservedJob) -> Iterator[ObservedEvent]:
    for task, pod in _active_pods(observed):
        if pod.phase == "Pending":
            what = f"pod {pod.name} is pending"
            since = created_ms(pod.manifest)
            yield ObservedEvent(JobEvent.POD_PENDING, what, task, pod.index, since_ms=since)


_EVENT_SOURCES: Final[
    tuple[tuple[JobEvent, Callable[[ObservedJob], Iterator[ObservedEvent]]], ...]
] = (
    (JobEvent.TASK_COMPLETED, _observe_completed_tasks),
    (JobEvent.POD_FAILED, _observe_failed_pods),
    (JobEvent.POD_EVICTED, _observe_evicted_pods),
    (JobEvent.TASK_FAILED, _observe_exhausted_restarts),
    (JobEvent.UNKNOWN, _observe_unknown_gang),
    (JobEvent.JOB_UPDATED, _observe_update),
    (JobEvent.POD_PENDING, _observe_pending_pods),
)


def _active_pods(observed: ObservedJob) -> Iterator[tuple[TaskSpec, PodView]]:
    for task in observed.job.spec.tasks:
        for pod in observed.pods_of(task):
            if pod.is_active:
                yield task, pod


# --- times of events -----------------------------------------------------------------------------


def _last_end_ms(statuses: Iterable[Mapping[str, Any]], state: str) -> int | None:
    """Return the latest time in epoch ms at which a container terminated, or None.

    `state` is "state" to read the current runs of the containers, or "lastState" to read their
    previous runs.
    """
    ends = (subobject(subobject(each, state), "terminated").get("finishedAt") for each in statuses)
    return _latest(time_ms(end) for end in ends)


def _latest(times: Iterable[int | None]) -> int | None:
    return max((each for each in times if each is not None), default=None)
