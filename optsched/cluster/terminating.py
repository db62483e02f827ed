"""Pods that terminate and still count against the quota of their queue.

A pod runs until its grace period is over, and the user who deletes it chooses how long that is. It
counts against hard limits until then, as in a ResourceQuota. Victims do not: their capacity is for
their preemptors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api.wellknown import EVICTED
from optsched.cluster.task import TaskStatus

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task


def read_evicted(text: str) -> dict[str, str]:
    """Return UIDs by name of the evicted pods that an annotation of their PodGroup lists."""
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
