"""Terminating pods that are still charged to the quota of their queue.

A deleted pod runs until its grace period ends, and the user who deletes the pod chooses that
period. Until the end of the period, hard limits include the pod, as in a ResourceQuota. Hard limits
exclude pods that a scheduler has evicted, because their capacity is for their preemptors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api.wellknown import EVICTED
from optsched.cluster.task import TaskStatus

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task


def read_evicted(text: str) -> dict[str, str]:
    """Return the evicted pods in a PodGroup annotation as a mapping from pod name to pod UID."""
    pairs = (entry.partition("=") for entry in text.split())
    return {name: uid for name, _, uid in pairs}


def terminating_within_quota(gang: Gang) -> tuple[Task, ...]:
    """Return the terminating tasks of a gang that no scheduler has evicted."""
    found = [
        task
        for task in gang.tasks
        if task.status is TaskStatus.RELEASING and task.node and not task.is_evicted
    ]
    if not found:
        return ()
    evicted = read_evicted(gang.annotations.get(EVICTED, ""))
    return tuple(task for task in found if not task.uid or evicted.get(task.name) != task.uid)
