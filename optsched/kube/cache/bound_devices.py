"""Which devices pods hold: those that were bound, whatever their annotations say later.

A user with the role `edit` may change annotations of pods where no webhook guards them. The devices
of a pod are therefore fixed when it is bound: by the binder of this process, or as the pod is first
seen on its node. A pod that is created with a node was bound by no scheduler and holds no device;
neither does a pod of a scheduler that is not known to allocate devices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.gpu_shares import GpuShare
    from optsched.cluster.numa import NumaPart
    from optsched.cluster.task import Task

_NOTHING: Final = "no device"
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class BoundDevices:
    """The devices of one pod on its node.

    distrust: why its annotations do not count; empty if a scheduler may have bound it.
    """

    uid: str
    node: str
    shared_gpus: tuple[GpuShare, ...] = ()
    numa: tuple[NumaPart, ...] = ()
    distrust: str = ""

    def agrees_with(self, task: Task) -> bool:
        """Whether the annotations of a task name the same devices, in any order."""
        return _count_gpus(self.shared_gpus) == _count_gpus(task.shared_gpus) and _count_numa(
            self.numa
        ) == _count_numa(task.numa)


class BoundDeviceStore:
    """The devices of pods by key; no I/O."""

    def __init__(self) -> None:
        self._records: dict[str, BoundDevices] = {}

    def record_bind(self, key: str, holding: BoundDevices) -> None:
        """Record the devices with which a pod is being bound."""
        self._records[key] = holding

    def forget(self, key: str) -> None:
        """Forget a pod, or a bind that has failed."""
        self._records.pop(key, None)

    def is_distrusted(self, key: str) -> bool:
        """Whether no scheduler that is known to allocate devices has bound a pod."""
        held = self._records.get(key)
        return held is not None and bool(held.distrust)

    def reconcile(self, task: Task, distrust: str = "") -> tuple[Task, str]:
        """Return the task with its devices, and a message about annotations that do not count.

        Parameters
        ----------
        task
            With the devices that its annotations name.
        distrust
            Why the annotations do not count; empty if a binder may have written them.

        """
        if not task.node:
            return task, ""
        held = self._records.get(task.key)
        if held is None or held.uid != task.uid or held.node != task.node:
            held = BoundDevices(task.uid, task.node, task.shared_gpus, task.numa)
            if distrust:
                held = BoundDevices(task.uid, task.node, distrust=distrust)
            self._records[task.key] = held
        if held.agrees_with(task):
            return task, ""
        claimed = f"annotations say that the pod holds {_describe(task.shared_gpus, task.numa)}"
        counts = f"it was bound with {_describe(held.shared_gpus, held.numa)}, which counts"
        message = f"{claimed}, but {held.distrust or counts}"
        return replace(task, shared_gpus=held.shared_gpus, numa=held.numa), message


def _count_gpus(uses: tuple[GpuShare, ...]) -> Counter[tuple[str, int, int, str, str]]:
    # Annotations hold only the index of a whole GPU: its memory comes from the pod's request.
    memory = {use.key: 0 if use.key.isdecimal() else use.memory for use in uses}
    return Counter((use.key, memory[use.key], use.cores, use.instance, use.npu) for use in uses)


def _count_numa(parts: Iterable[NumaPart]) -> Counter[tuple[int, int, int]]:
    return Counter((part.cell, part.cpus, part.gpus) for part in parts if part.cpus or part.gpus)


def _describe(shared_gpus: Iterable[GpuShare], numa: Iterable[NumaPart]) -> str:
    named = [use.key for use in shared_gpus]
    named += [f"{p.cpus} CPUs and {p.gpus} GPUs of NUMA node {p.cell}" for p in numa]
    return ", ".join(sorted(named))[:_SHOWN] or _NOTHING
