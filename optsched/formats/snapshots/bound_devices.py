"""The devices with which pods were bound, and the pod condition that records them.

Without the admission webhook, a user with the role `edit` may change any annotation of a pod. The
devices of a pod are therefore recorded when the pod is bound, and the record does not change later.
The record comes from the binder of this process, or from a condition in `pods/status` that another
binder wrote before it bound the pod. The role `edit` does not permit writes to `pods/status`.
Without a binder's record or condition, the devices are read from the annotations that the pod had
when the scheduler first saw it on its node. A pod without a record or condition holds no device in
two cases: it was created with a node, so no scheduler bound it, or its scheduler is not known to
allocate devices.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.codec.gpu_shares import gpu_share_annotations, read_gpu_shares
from optsched.formats.codec.numatopologies import decision_marks, numa_parts
from optsched.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.node_resources import GpuShare, NumaPart
    from optsched.cluster.task import Task
    from optsched.units import FieldError

BOUND_DEVICES: Final = "optsched.io/BoundDevices"
"""The type of the pod condition that records bound devices."""
_REASON: Final = "Bound"
_NO_DEVICE: Final = "no device"
_SHOWN: Final = 200


def device_message(node: str, gpus: Sequence[GpuShare], numa: Sequence[NumaPart]) -> str:
    """Return the message of the device condition; empty for a pod bound without devices."""
    annotations = gpu_share_annotations(gpus) | decision_marks(numa)
    if not annotations:
        return ""
    return json.dumps({"node": node, "annotations": annotations}, separators=(",", ":"))


def device_condition(message: str, now_ms: int) -> dict[str, str]:
    """Return the device condition of a pod; `message` is a result of `device_message`."""
    return {
        "type": BOUND_DEVICES,
        "status": "True",
        "reason": _REASON,
        "message": message,
        "lastTransitionTime": format_time(now_ms),
    }


def read_device_condition(
    pod: Mapping[str, Any], node: str, request: Amounts
) -> tuple[tuple[GpuShare, ...], tuple[NumaPart, ...]] | None:
    """Read the GPU shares and NUMA cells with which a pod was bound to a node.

    The result is None if no condition records a binding to `node`, or if its message is invalid.
    """
    status = pod.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    messages = (
        each.get("message")
        for each in (conditions if isinstance(conditions, list) else ())
        if isinstance(each, dict) and each.get("type") == BOUND_DEVICES
    )
    message = next(messages, None)
    try:
        record = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("node") != node:
        return None
    annotations = record.get("annotations")
    if not isinstance(annotations, dict) or not all(
        isinstance(value, str) for value in annotations.values()
    ):
        return None
    errors: list[FieldError] = []
    devices = read_gpu_shares(annotations, request, errors), numa_parts(annotations, errors)
    return None if errors or not any(devices) else devices


@dataclass(frozen=True, slots=True)
class BoundDevices:
    """The devices that one pod holds on its node.

    `distrust` is the reason why the pod's annotations are ignored, or empty if a scheduler may have
    bound the pod.
    """

    uid: str
    node: str
    shared_gpus: tuple[GpuShare, ...] = ()
    numa: tuple[NumaPart, ...] = ()
    distrust: str = ""


class BoundDeviceStore:
    """A record of the devices with which each pod was bound; performs no I/O.

    Attributes
    ----------
    records
        The devices of pods that are bound or being bound, keyed by pod.

    """

    def __init__(self) -> None:
        self.records: dict[str, BoundDevices] = {}

    def has_devices(self, task: Task) -> bool:
        """Return whether the devices of a task on its current node are recorded."""
        held = self.records.get(task.key)
        return held is not None and held.uid == task.uid and held.node == task.node

    def reconcile(self, task: Task, distrust: str = "") -> tuple[Task, str]:
        """Return a task with its recorded devices, and a message if its annotations differ.

        Parameters
        ----------
        task
            The task with the devices in its annotations.
        distrust
            The reason why the annotations are ignored; empty if a binder may have written them.

        """
        if not task.node:
            return task, ""
        if not self.has_devices(task):
            first = BoundDevices(task.uid, task.node, task.shared_gpus, task.numa)
            if distrust:
                first = BoundDevices(task.uid, task.node, distrust=distrust)
            self.records[task.key] = first
        held = self.records[task.key]
        if (held.shared_gpus, held.numa) == (task.shared_gpus, task.numa):
            return task, ""
        # Annotations may list the same devices in another order.
        if _count_gpus(held.shared_gpus) == _count_gpus(task.shared_gpus) and _count_numa(
            held.numa
        ) == _count_numa(task.numa):
            return task, ""
        claimed = f"annotations say that the pod holds {_describe(task.shared_gpus, task.numa)}"
        counts = f"it was bound with {_describe(held.shared_gpus, held.numa)}, and only these count"
        message = f"{claimed}, but {held.distrust or counts}"
        return replace(task, shared_gpus=held.shared_gpus, numa=held.numa), message


def _count_gpus(uses: tuple[GpuShare, ...]) -> Counter[tuple[str, int, int, str, str]]:
    # For a whole GPU, an annotation holds only the index; the pod's request determines the memory.
    memory = {use.key: 0 if use.key.isdecimal() else use.memory for use in uses}
    return Counter((use.key, memory[use.key], use.cores, use.instance, use.npu) for use in uses)


def _count_numa(parts: Iterable[NumaPart]) -> Counter[tuple[int, int, int]]:
    return Counter((part.cell, part.cpus, part.gpus) for part in parts if part.cpus or part.gpus)


def _describe(shared_gpus: Iterable[GpuShare], numa: Iterable[NumaPart]) -> str:
    named = [use.key for use in shared_gpus]
    named += [f"{p.cpus} CPUs and {p.gpus} GPUs of NUMA node {p.cell}" for p in numa]
    return ", ".join(sorted(named))[:_SHOWN] or _NO_DEVICE
