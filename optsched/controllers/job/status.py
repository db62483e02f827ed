"""The phases of a job, and the status that records them.

Actions and pod states lead to the same phases as in Volcano, pkg/controllers/job/state. Unlike in
Volcano, a restart uses no retry if the cluster deleted pods or if a user resumed the job. If a
Command would end a job during a restart, it takes effect only after the restart.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobAction, JobCondition, JobPhase
from optsched.api.json_fields import status_of
from optsched.api.kinds import JOB
from optsched.controllers.effects import patch_status
from optsched.units import format_duration_ms, format_micro_time, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.job import Job, JobSpec, JobStatus, PodCounts
    from optsched.api.json_fields import Manifest
    from optsched.controllers.effects import PatchStatus


FINISHED: Final = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED})
"""Final phases of a job."""
ENDED: Final = FINISHED | {JobPhase.ABORTED}
"""Phases in which no pod of the job runs."""
LIVING: Final = frozenset({JobPhase.PENDING, JobPhase.RUNNING})
"""Phases in which a job's pods are created and its policies apply."""
RESTARTS: Final = frozenset(
    {
        JobAction.RESTART_JOB,
        JobAction.RESTART_TASK,
        JobAction.RESTART_POD,
        JobAction.RESTART_PARTITION,
    }
)
_LEADS_TO: Final = {
    JobAction.ABORT_JOB: JobPhase.ABORTING,
    JobAction.COMPLETE_JOB: JobPhase.COMPLETING,
    JobAction.TERMINATE_JOB: JobPhase.TERMINATING,
    **dict.fromkeys(RESTARTS, JobPhase.RESTARTING),
}
_ENDS_AS: Final = {
    JobPhase.ABORTING: JobPhase.ABORTED,
    JobPhase.COMPLETING: JobPhase.COMPLETED,
    JobPhase.TERMINATING: JobPhase.TERMINATED,
}


class NoTransition(Enum):
    """Why an action does not change a job's phase: the action is ignored or must wait."""

    IGNORED = "ignored"
    LATER = "later"


def after_action(phase: JobPhase, action: JobAction) -> JobPhase | NoTransition:
    """Return the phase to which an action leads, or the reason that the phase does not change."""
    if phase in LIVING:
        return _LEADS_TO.get(action, NoTransition.IGNORED)
    if phase in (JobPhase.ABORTING, JobPhase.ABORTED) and action is JobAction.RESUME_JOB:
        return JobPhase.RESTARTING
    if phase is JobPhase.RESTARTING and action not in RESTARTS | {JobAction.RESUME_JOB}:
        return NoTransition.LATER
    return NoTransition.IGNORED


def after_sync(phase: JobPhase, spec: JobSpec, counts: PodCounts) -> JobPhase:
    """Return the next phase of a pending or running job, given the states of its pods."""
    if phase is JobPhase.PENDING:
        started = counts.running + counts.succeeded + counts.failed
        return JobPhase.RUNNING if spec.min_available <= started else phase
    if phase is JobPhase.RUNNING:
        if not spec.num_pods:
            return JobPhase.RUNNING
        if spec.min_success is not None and counts.succeeded >= spec.min_success:
            return JobPhase.COMPLETED
        if counts.succeeded + counts.failed == spec.num_pods:
            return JobPhase.COMPLETED if _is_success(spec, counts) else JobPhase.FAILED
        if counts.pending > spec.num_pods - spec.min_available:
            return JobPhase.PENDING
        return JobPhase.RUNNING
    return phase


def after_kill(phase: JobPhase, spec: JobSpec, counts: PodCounts, num_retries: int) -> JobPhase:
    """Return the next phase of a job whose pods are being deleted.

    `counts` holds the number of the job's pods in each state. `num_retries` is the number of
    retries that the job has used.
    """
    if phase is JobPhase.RESTARTING:
        if num_retries >= spec.max_retry:
            return JobPhase.FAILED
        has_minimum = spec.num_pods - counts.terminating >= spec.min_available
        return JobPhase.PENDING if has_minimum else phase
    return phase if counts.alive else _ENDS_AS.get(phase, phase)


def _is_success(spec: JobSpec, counts: PodCounts) -> bool:
    """Return whether a job was successful; all its pods must have ended."""
    minimums = sum(task.min_available for task in spec.tasks)
    if spec.min_available >= minimums and any(
        counts.by_task.get(task.name, {}).get("Succeeded", 0) < task.min_available
        for task in spec.tasks
    ):
        return False
    return spec.min_success is None and counts.succeeded >= spec.min_available


_SECOND_MS: Final = 1000
_ENDED_PODS: Final = frozenset({"Succeeded", "Failed"})
"""Final phases of a pod."""
_NOTHING: Final[tuple[object, ...]] = (0, "", [])
_NUMBERS: Final = frozenset(
    {
        "pending",
        "running",
        "succeeded",
        "failed",
        "terminating",
        "unknown",
        "taskStatusCount",
    }
)
"""Status fields that may change whenever one of the job's pods changes."""

STARTING_S: Final = 2.5
"""Seconds for which new pod counts of a pending job may be deferred; most pods start within this
time.
"""

ENDING_S: Final = 1.0
"""Seconds for which new pod counts may be deferred in phases other than Pending."""


def with_phase(job: Job, phase: JobPhase, now_ms: int) -> JobStatus:
    """Return a job's status after a transition to `phase` at `now_ms`.

    If the job was in this phase before, the phase's earlier condition is replaced, as in Volcano.
    """
    status = job.status
    if phase is status.phase and not status.is_new:
        return status
    at_ms = now_ms // _SECOND_MS * _SECOND_MS
    others = tuple(each for each in status.conditions if each.phase is not phase)
    ran_ms = at_ms - job.meta.creation_ms if phase in ENDED else status.running_duration_ms
    return replace(
        status,
        phase=phase,
        transition_ms=at_ms,
        running_duration_ms=ran_ms,
        conditions=(*others, JobCondition(phase, at_ms)),
    )


def with_deleted_ended_pods(counts: PodCounts, status: JobStatus) -> PodCounts:
    """Return the pod counts of a finished job, including its ended pods that were deleted.

    Kubernetes deletes ended pods, for example after their node was deleted. In Volcano, the
    deletion of an ended pod decreases the counts of a finished job.
    """
    by_task = {task: dict(phases) for task, phases in counts.by_task.items()}
    for task, known in status.counts.by_task.items():
        phases = by_task.setdefault(task, {})
        for phase in known.keys() & _ENDED_PODS:
            phases[phase] = max(phases.get(phase, 0), known[phase])
    return replace(
        counts,
        succeeded=max(counts.succeeded, status.counts.succeeded),
        failed=max(counts.failed, status.counts.failed),
        by_task=by_task,
    )


def status_patch(job: Job, manifest: Manifest, desired: JobStatus) -> tuple[PatchStatus, ...]:
    """Return the patch that brings a job's status up to date; empty if no field differs."""
    have = status_of(manifest)
    changes = _find_differences(have, _format_status(desired), is_first=job.status.is_new)
    if not changes:
        return ()
    delay_s = STARTING_S if desired.phase is JobPhase.PENDING else ENDING_S
    may_wait_s = delay_s if changes.keys() <= _NUMBERS else 0.0
    return (patch_status(JOB, manifest, changes, may_wait_s),)


def _format_status(status: JobStatus) -> dict[str, Any]:
    counts, restarts = status.counts, status.restarts
    state = {
        "phase": status.phase.value,
        "reason": status.reason,
        "message": status.message,
        "lastTransitionTime": _format_time(status.transition_ms),
    }
    fields: dict[str, Any] = {
        "state": state,
        "minAvailable": status.min_available,
        "taskStatusCount": {
            task: {"phase": dict(phases)} for task, phases in counts.by_task.items()
        },
        "pending": counts.pending,
        "running": counts.running,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "terminating": counts.terminating,
        "unknown": counts.unknown,
        "version": restarts.version,
        "retryCount": restarts.retries,
        "evictions": restarts.evictions,
        "restarted": dict(restarts.restarted),
        "deletions": {
            pod: {"time": format_micro_time(each.deleted_ms), "disruption": each.is_disruption}
            for pod, each in status.deletions.items()
        },
        "lastCommand": status.last_command,
        "controlledResources": dict(status.controlled),
        "conditions": [
            {"status": each.phase.value, "lastTransitionTime": _format_time(each.transition_ms)}
            for each in status.conditions
        ],
    }
    if status.running_duration_ms is not None:
        fields["runningDuration"] = format_duration_ms(status.running_duration_ms)
    return fields


def _format_time(at_ms: int | None) -> str:
    return "" if at_ms is None else format_time(at_ms)


def _find_differences(
    have: Mapping[str, Any], desired: Mapping[str, Any], *, is_first: bool = False
) -> dict[str, Any]:
    """Return a merge patch with the fields of `desired` that differ from `have`."""
    changes: dict[str, Any] = {}
    for name, value in desired.items():
        old = have.get(name)
        if isinstance(value, dict):
            old_fields = old if isinstance(old, dict) else {}
            removed = dict.fromkeys(name for name in old_fields if name not in value)
            inner = {**_find_differences(old_fields, value), **removed}
            if inner:
                changes[name] = inner
        elif old != value and (is_first or old is not None or value not in _NOTHING):
            changes[name] = value
    return changes
