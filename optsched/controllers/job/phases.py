"""The stages of a job's life: what follows from an action, and from the state of its pods.

Source: Volcano, pkg/controllers/job/state. Two differences: deletions by the cluster and resuming
are no retries, and an event that ends a job while it restarts waits until it has restarted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from optsched.api.job import JobAction, JobPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.job import JobSpec

FINISHED: Final = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED})
"""Stages that a job never leaves."""
ENDED: Final = FINISHED | {JobPhase.ABORTED}
"""Stages in which nothing of a job runs."""
LIVING: Final = frozenset({JobPhase.PENDING, JobPhase.RUNNING})
"""Stages in which a job gets pods, and in which its policies count."""
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


class Answer(Enum):
    """The fate of an action that a phase does not handle."""

    IGNORED = "ignored"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Counts:
    """Pods of a job by state; by_task: phases of pods that are not being deleted, by task."""

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    terminating: int = 0
    by_task: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def alive(self) -> int:
        """Pods that have not ended, as far as is known."""
        return self.pending + self.running + self.unknown + self.terminating


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a job was started again so far, and how often it may be."""

    retry_count: int
    max_retry: int

    @property
    def are_exhausted(self) -> bool:
        """Whether the job has failed once too often."""
        return self.retry_count >= self.max_retry


def after_action(phase: JobPhase, action: JobAction) -> JobPhase | Answer:
    """The stage that an action leads to."""
    if phase in LIVING:
        return _LEADS_TO.get(action, Answer.IGNORED)
    if phase in (JobPhase.ABORTING, JobPhase.ABORTED) and action is JobAction.RESUME_JOB:
        return JobPhase.RESTARTING
    if phase is JobPhase.RESTARTING and action not in RESTARTS | {JobAction.RESUME_JOB}:
        return Answer.LATER
    return Answer.IGNORED


def after_sync(phase: JobPhase, spec: JobSpec, counts: Counts) -> JobPhase:
    """The stage of a living job by the state of its pods."""
    if phase is JobPhase.PENDING:
        started = counts.running + counts.succeeded + counts.failed
        return JobPhase.RUNNING if spec.min_available <= started else phase
    if phase is JobPhase.RUNNING:
        return _after_running(spec, counts)
    return phase


def after_kill(phase: JobPhase, spec: JobSpec, counts: Counts, retries: Retries) -> JobPhase:
    """The stage of a job whose pods are deleted, by the pods that are left."""
    if phase is JobPhase.RESTARTING:
        if retries.are_exhausted:
            return JobPhase.FAILED
        is_room = spec.num_pods - counts.terminating >= spec.min_available
        return JobPhase.PENDING if is_room else phase
    return phase if counts.alive else _ENDS_AS.get(phase, phase)


def _after_running(spec: JobSpec, counts: Counts) -> JobPhase:
    if not spec.num_pods:
        return JobPhase.RUNNING
    if spec.min_success is not None and counts.succeeded >= spec.min_success:
        return JobPhase.COMPLETED
    if counts.succeeded + counts.failed == spec.num_pods:
        return JobPhase.COMPLETED if _is_success(spec, counts) else JobPhase.FAILED
    if counts.pending > spec.num_pods - spec.min_available:
        return JobPhase.PENDING
    return JobPhase.RUNNING


def _is_success(spec: JobSpec, counts: Counts) -> bool:
    """Whether a job whose pods have all ended has succeeded."""
    minimums = sum(task.min_available for task in spec.tasks)
    if spec.min_available >= minimums and any(
        counts.by_task.get(task.name, {}).get("Succeeded", 0) < task.min_available
        for task in spec.tasks
    ):
        return False
    return spec.min_success is None and counts.succeeded >= spec.min_available
