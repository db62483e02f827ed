"""The pod condition that records the GPU shares and NUMA cells with which a pod was bound.

A binder writes the condition to `pods/status` before it binds the pod. The role `edit` does not
permit writes to `pods/status`. Annotations name the devices for device plugins, but are not
reliable, because the pod's user may change them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.codec.gpu_shares import gpu_share_annotations, read_gpu_shares
from optsched.formats.codec.numatopologies import decision_marks, numa_parts
from optsched.units import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.gpu_shares import GpuShare
    from optsched.cluster.node_parts import NumaPart
    from optsched.units import FieldError

BOUND_DEVICES: Final = "optsched.io/BoundDevices"
"""The type of the pod condition that records bound devices."""
_REASON: Final = "Bound"


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
