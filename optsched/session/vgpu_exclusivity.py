"""Which tasks share no vGPU with others because of their labels, written into their shapes.

Labels do not decide the task class; where a rule reads some of them, they do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.plugins.devices.deviceshare import EXCLUSIVE, DeviceShare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.extension_points import Rule


def with_exclusive(snapshot: Snapshot, rules: Iterable[Rule]) -> Snapshot:
    """The snapshot with notes on tasks that have labels of `DeviceShare.exclusive`.

    The very same snapshot where no rule names labels.
    """
    rule = next((r for r in rules if isinstance(r, DeviceShare) and r.exclusive), None)
    if rule is None:
        return snapshot
    known: dict[str, Task] = {}

    def noted(task: Task) -> Task:
        if task.key not in known:
            known[task.key] = _noted(task, rule.exclusive_groups(task))
        return known[task.key]

    nodes = tuple(replace(n, residents=tuple(map(noted, n.residents))) for n in snapshot.nodes)
    gangs = tuple(replace(g, tasks=tuple(map(noted, g.tasks))) for g in snapshot.gangs)
    return replace(snapshot, nodes=nodes, gangs=gangs)


def _noted(task: Task, note: str) -> Task:
    if not note:
        return task
    notes = tuple(sorted({**dict(task.shape.notes), EXCLUSIVE: note}.items()))
    return replace(task, shape=replace(task.shape, notes=notes))
