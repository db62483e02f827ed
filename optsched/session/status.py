"""The status of a PodGroup after a session (Volcano `session.go`, jobStatus)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus

if TYPE_CHECKING:
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Gang


@dataclass(frozen=True, slots=True)
class GangStatus:
    """A gang's phase and task counts, and why it waits; `reason` is None if it does not wait."""

    phase: GangPhase
    running: int
    succeeded: int
    failed: int
    reason: Reason | None


def gang_status(gang: Gang, reason: Reason | None, allocated: int, enqueued: bool) -> GangStatus:
    """Return the status of a gang after a plan.

    Parameters
    ----------
    gang
        The gang in the session's snapshot.
    reason
        The reason why tasks of the gang still wait, or None if no task waits.
    allocated
        Number of tasks of the gang that the plan binds.
    enqueued
        Whether the plan enqueues the gang.

    """
    count = dict.fromkeys(TaskStatus, 0)
    for task in gang.tasks:
        count[task.status] += 1
    num_ended = count[TaskStatus.SUCCEEDED] + count[TaskStatus.FAILED]
    # A terminating pod still holds its node, so a rolling restart does not change the phase.
    num_terminating = sum(
        task.status is TaskStatus.RELEASING and bool(task.node) for task in gang.tasks
    )
    num_present = (
        count[TaskStatus.BOUND]
        + count[TaskStatus.RUNNING]
        + num_terminating
        + num_ended
        + allocated
    )
    if num_present >= gang.min_member and num_present > 0:
        phase = GangPhase.COMPLETED if num_present == num_ended else GangPhase.RUNNING
    elif count[TaskStatus.RUNNING]:
        phase = GangPhase.UNKNOWN
    elif enqueued or gang.phase is GangPhase.INQUEUE:
        phase = GangPhase.INQUEUE
    else:
        phase = GangPhase.PENDING
    return GangStatus(
        phase,
        count[TaskStatus.RUNNING],
        count[TaskStatus.SUCCEEDED],
        count[TaskStatus.FAILED],
        reason,
    )
