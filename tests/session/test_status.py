"""Tests of the PodGroup status after a session (Volcano `session.go`, jobStatus)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.session.status import gang_status
from tests.support.small import gang, shape

RUN, OVER, LEAVE = TaskStatus.RUNNING, TaskStatus.SUCCEEDED, TaskStatus.RELEASING
WAIT = TaskStatus.PENDING


@pytest.mark.parametrize(
    ("statuses", "allocated", "phase"),
    [
        ((RUN, RUN), 0, GangPhase.RUNNING),
        ((RUN, LEAVE), 0, GangPhase.RUNNING),
        ((LEAVE, LEAVE), 0, GangPhase.RUNNING),
        ((OVER, LEAVE), 0, GangPhase.RUNNING),
        ((RUN, WAIT), 1, GangPhase.RUNNING),
        ((RUN, WAIT), 0, GangPhase.UNKNOWN),
        ((LEAVE, WAIT), 0, GangPhase.PENDING),
        ((OVER, OVER), 0, GangPhase.COMPLETED),
    ],
)
def test_pods_that_terminate_count_until_they_are_gone(
    statuses: tuple[TaskStatus, ...], allocated: int, phase: GangPhase
) -> None:
    made = gang("g", ("w", len(statuses), shape(1)), phase=GangPhase.PENDING)
    tasks = tuple(
        replace(task, status=status, node="" if status is WAIT else "n")
        for task, status in zip(made.tasks, statuses, strict=True)
    )
    found = gang_status(replace(made, tasks=tasks), None, allocated, enqueued=False)
    assert found.phase is phase


def test_a_pod_that_terminates_without_a_node_holds_nothing() -> None:
    made = gang("g", ("w", 1, shape(1)), phase=GangPhase.PENDING)
    tasks = (replace(made.tasks[0], status=LEAVE),)
    found = gang_status(replace(made, tasks=tasks), None, 0, enqueued=False)
    assert found.phase is GangPhase.PENDING
