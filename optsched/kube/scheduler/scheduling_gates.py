"""Removes the scheduling gates of pods once their queue has capacity."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.kube.client.errors import Conflict
from optsched.kube.scheduler.status import UNSCHEDULABLE
from optsched.units import format_time

if TYPE_CHECKING:
    from optsched.kube.client.interfaces import Api, Raw, Ref

SCHEDULED = "PodScheduled"


@dataclass(frozen=True, slots=True)
class GateOpening:
    """A gate to remove from a pod that fits on no node; message: why it fits on none."""

    ref: Ref
    uid: str
    now_ms: int
    message: str


async def open_gate(api: Api, ref: Ref, uid: str) -> Raw:
    """Remove the gates of the pod with this UID; returns the pod as stored.

    No gate can come back: an API server only allows their removal.
    """
    return await api.patch(ref, {"metadata": {"uid": uid}, "spec": {"schedulingGates": None}})


async def open_gate_unplaced(api: Api, opening: GateOpening) -> None:
    """Remove the gates of a pod, and report in PodScheduled that it fits on no node.

    Cluster autoscalers read that condition.
    """
    pod = await open_gate(api, opening.ref, opening.uid)
    if (pod.get("spec") or {}).get("nodeName"):
        return
    conditions = (pod.get("status") or {}).get("conditions") or ()
    fact = {
        "type": SCHEDULED,
        "status": "False",
        "reason": UNSCHEDULABLE,
        "message": opening.message,
        "lastTransitionTime": format_time(opening.now_ms),
    }
    others = [each for each in conditions if each.get("type") != SCHEDULED]
    meta = {"uid": opening.uid, "resourceVersion": pod["metadata"].get("resourceVersion")}
    # A conflict means a newer state: the pod was bound, or is being changed.
    with suppress(Conflict):
        await api.patch(
            opening.ref, {"metadata": meta, "status": {"conditions": [*others, fact]}}, "status"
        )
