"""The status of a job: how it changes, and the patch that writes only what has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobCondition, JobPhase
from optsched.api.kinds import JOB
from optsched.controllers.effects import PatchStatus
from optsched.controllers.job.phases import ENDED
from optsched.controllers.json_fields import status_of, uid_of, version_of
from optsched.units import format_duration_ms, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.job import Job, JobStatus
    from optsched.controllers.effects import Manifest
    from optsched.controllers.job.phases import Counts

_SECOND_MS: Final = 1000
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
"""Fields that every pod of a job changes, one after the other."""

STARTING_S: Final = 2.5
"""How long a pending job may leave out that it has pods: most of them run by then."""

ENDING_S: Final = 1.0
"""How long any other job may leave out how many of its pods run, and how many have ended."""


def with_phase(job: Job, phase: JobPhase, now_ms: int) -> JobStatus:
    """The job's status in a stage, with the time since when it is in it.

    A stage that is reached again takes the place of the time before, as in Volcano.
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


def with_pod_counts(status: JobStatus, counts: Counts) -> JobStatus:
    """The status with the pods that there are."""
    return replace(
        status,
        pending=counts.pending,
        running=counts.running,
        succeeded=counts.succeeded,
        failed=counts.failed,
        unknown=counts.unknown,
        terminating=counts.terminating,
        task_counts=counts.by_task,
    )


def status_patch(job: Job, manifest: Manifest, wanted: JobStatus) -> tuple[PatchStatus, ...]:
    """The patch that corrects a job's status; none where it is right.

    It is refused if anybody has written in between: what was decided may not hold any more.
    """
    have = status_of(manifest)
    changes = _difference(have, _fields(wanted), is_first=job.status.is_new)
    if not changes:
        return ()
    meta = job.meta
    return (
        PatchStatus(
            JOB,
            meta.namespace,
            meta.name,
            {"status": changes},
            uid_of(manifest),
            resource_version=version_of(manifest),
            may_wait_s=_pause_s(wanted) if changes.keys() <= _NUMBERS else 0.0,
        ),
    )


def _pause_s(status: JobStatus) -> float:
    """How long numbers of pods may wait for more: they start, and end, one by one."""
    return STARTING_S if status.phase is JobPhase.PENDING else ENDING_S


def _fields(status: JobStatus) -> dict[str, Any]:
    state = {
        "phase": status.phase.value,
        "reason": status.reason,
        "message": status.message,
        "lastTransitionTime": _time(status.transition_ms),
    }
    fields: dict[str, Any] = {
        "state": state,
        "minAvailable": status.min_available,
        "taskStatusCount": {
            task: {"phase": dict(counts)} for task, counts in status.task_counts.items()
        },
        "pending": status.pending,
        "running": status.running,
        "succeeded": status.succeeded,
        "failed": status.failed,
        "terminating": status.terminating,
        "unknown": status.unknown,
        "version": status.version,
        "retryCount": status.retry_count,
        "evictions": status.evictions,
        "restarted": dict(status.restarted),
        "lastCommand": status.last_command,
        "controlledResources": dict(status.controlled),
        "conditions": [
            {"status": each.phase.value, "lastTransitionTime": _time(each.transition_ms)}
            for each in status.conditions
        ],
    }
    if status.running_duration_ms is not None:
        fields["runningDuration"] = format_duration_ms(status.running_duration_ms)
    return fields


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else format_time(at_ms)


def _difference(
    have: Mapping[str, Any], wanted: Mapping[str, Any], *, is_first: bool = False
) -> dict[str, Any]:
    """A merge patch from one mapping to another, of the fields that the other names."""
    changes: dict[str, Any] = {}
    for name, value in wanted.items():
        old = have.get(name)
        if isinstance(value, dict):
            inner = _replacement(old, value)
            if inner:
                changes[name] = inner
        elif old != value and (is_first or old is not None or value not in _NOTHING):
            changes[name] = value
    return changes


def _replacement(old: object, new: Mapping[str, Any]) -> dict[str, Any]:
    known = old if isinstance(old, dict) else {}
    gone = dict.fromkeys(name for name in known if name not in new)
    return {**_difference(known, new), **gone}
