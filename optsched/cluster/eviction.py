"""The cluster once some tasks have been told to go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task


def with_terminating(
    snapshot: Snapshot, tasks: Collection[str], *, still_request: bool = True
) -> Snapshot:
    """Return the snapshot in which some tasks, by key, terminate; the rest is shared.

    Their queues still request what they hold (`Task.is_victim`), unless other tasks request it.
    """
    if not tasks:
        return snapshot
    known: dict[int, Task] = {}

    def mark_task(task: Task) -> Task:
        return replace(task, status=TaskStatus.RELEASING, is_victim=still_request)

    def mark_if_evicted(task: Task) -> Task:
        if task.key not in tasks:
            return task
        # A task is the same object in its gang and on its node, and stays so.
        new = known.get(id(task))
        if new is None:
            new = known[id(task)] = mark_task(task)
        return new

    def mark_tasks(old: tuple[Task, ...]) -> tuple[Task, ...] | None:
        return tuple(map(mark_if_evicted, old)) if any(t.key in tasks for t in old) else None

    nodes = tuple(
        node if (new := mark_tasks(node.residents)) is None else replace(node, residents=new)
        for node in snapshot.nodes
    )
    gangs = tuple(
        gang if (new := mark_tasks(gang.tasks)) is None else replace(gang, tasks=new)
        for gang in snapshot.gangs
    )
    return replace(snapshot, nodes=nodes, gangs=gangs)
