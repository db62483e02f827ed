"""Records the devices of a pod in its status before it is bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.formats.codec.pods.device_condition import BOUND_DEVICES, device_condition
from optsched.kube.client.errors import Conflict

if TYPE_CHECKING:
    from optsched.kube.client.interfaces import Api, Ref

_TRIES: Final = 3
"""Attempts before a pod that keeps changing is left to the next session."""


async def record_devices(api: Api, ref: Ref, uid: str, message: str, now_ms: int) -> None:
    """Write the condition `optsched.io/BoundDevices` of the pod with this UID.

    A pod that is bound, or that another pod has replaced, is left as it is: the bind finds out. The
    resource version keeps a scheduler that no longer leads from overwriting the record of a bind.
    """
    for attempt in range(_TRIES):
        pod = await api.read(ref)
        meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
        if meta.get("uid", "") != uid or spec.get("nodeName"):
            return
        conditions = status.get("conditions") or ()
        known = [each for each in conditions if each.get("type") == BOUND_DEVICES]
        if [each.get("message") for each in known] == [message]:
            return
        others = [each for each in conditions if each.get("type") != BOUND_DEVICES]
        body = {
            "metadata": {"uid": uid, "resourceVersion": meta.get("resourceVersion")},
            "status": {"conditions": [*others, device_condition(message, now_ms)]},
        }
        try:
            await api.patch(ref, body, "status")
        except Conflict:
            if attempt == _TRIES - 1:
                raise
        else:
            return
