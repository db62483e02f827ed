"""The condition DisruptionTarget of pods that are deleted despite their disruption budgets.

The eviction API sets this condition before it deletes a pod, so that job controllers do not count
the pod as failed. A pod that is deleted without the eviction API needs the same condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.api.json_fields import uid_of, version_of, with_condition
from optsched.formats.codec.pods.reader import is_standing
from optsched.kube.client.errors import Conflict
from optsched.units import format_time

if TYPE_CHECKING:
    from optsched.api.json_fields import Manifest
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw, Ref

DISRUPTION_TARGET: Final = "DisruptionTarget"
BY_SCHEDULER: Final = "PreemptionByScheduler"
"""The condition's reason, which Kubernetes also uses (`PodReasonPreemptionByScheduler`)."""

NOT_DELETED: Final = "DeletionWithdrawn"
_MAX_CONFLICTS: Final = 5


@dataclass(frozen=True, slots=True)
class DisruptionReset:
    """How to reset the condition of a pod that was marked for deletion but keeps running.

    `uid` is the pod's UID. `now_ms` is the time in milliseconds since the Unix epoch. `message`
    gives the cause.
    """

    ref: Ref
    uid: str
    now_ms: int
    message: str


async def mark_disruption(
    api: Client, ref: Ref, pod: Manifest, known: Manifest, message: str, now_ms: int
) -> Raw:
    """Set a pod's condition DisruptionTarget to True; return the stored pod.

    `known` is the metadata that the stored pod must match; otherwise the patch fails with
    `Conflict`.
    """
    condition = _condition("True", BY_SCHEDULER, message, now_ms)
    body = {"metadata": known, "status": {"conditions": with_condition(pod, condition)}}
    return await api.patch(ref, body, "status")


async def reset_disruption(api: Client, reset: DisruptionReset) -> None:
    """Set the condition DisruptionTarget to False, unless the pod has finished or terminates."""
    for left in reversed(range(_MAX_CONFLICTS)):
        pod = await api.read(reset.ref)
        if uid_of(pod) != reset.uid or not is_standing(pod) or not _is_marked(pod):
            return
        condition = _condition("False", NOT_DELETED, reset.message, reset.now_ms)
        body = {
            "metadata": {"uid": reset.uid, "resourceVersion": version_of(pod)},
            "status": {"conditions": with_condition(pod, condition)},
        }
        try:
            await api.patch(reset.ref, body, "status")
        except Conflict:
            if not left:
                raise
        else:
            return


def _is_marked(pod: Manifest) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        (each.get("type"), each.get("status"), each.get("reason"))
        == (DISRUPTION_TARGET, "True", BY_SCHEDULER)
        for each in conditions
    )


def _condition(status: str, reason: str, message: str, now_ms: int) -> Raw:
    return {
        "type": DISRUPTION_TARGET,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": format_time(now_ms),
    }
