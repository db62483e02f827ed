"""Opens the scheduling gates of pods that have asked for one until their queue has room."""

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
    """A gate that is to open although no node has room for its pod, and since when and why not."""

    ref: Ref
    uid: str
    now_ms: int
    message: str


async def open_gate(api: Api, ref: Ref, uid: str) -> Raw:
    """Take the gates off a pod, if it is that very one; returns it as it is kept.

    Nobody can put another one on: an API server lets gates only go.
    """
    return await api.patch(ref, {"metadata": {"uid": uid}, "spec": {"schedulingGates": None}})


async def open_gate_unplaced(api: Api, opening: GateOpening) -> None:
    """Take the gates off a pod, and tell who adds nodes that it finds none (PodScheduled)."""
    pod = await open_gate(api, opening.ref, opening.uid)
    if (pod.get("spec") or {}).get("nodeName"):
        return
    told = (pod.get("status") or {}).get("conditions") or ()
    fact = {
        "type": SCHEDULED,
        "status": "False",
        "reason": UNSCHEDULABLE,
        "message": opening.message,
        "lastTransitionTime": format_time(opening.now_ms),
    }
    others = [each for each in told if each.get("type") != SCHEDULED]
    meta = {"uid": opening.uid, "resourceVersion": pod["metadata"].get("resourceVersion")}
    # Somebody else has a newer word on it: bound, or being changed.
    with suppress(Conflict):
        await api.patch(
            opening.ref, {"metadata": meta, "status": {"conditions": [*others, fact]}}, "status"
        )
