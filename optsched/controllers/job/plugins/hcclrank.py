"""hcclrank: the rank of a pod, where devices for NPUs look for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.controllers.job.plugins.base import Plugin, replicas_of

if TYPE_CHECKING:
    from optsched.controllers.job.plugins.flags import Flags
    from optsched.controllers.job.pod_draft import Draft

RANK_INDEX: Final = "hccl/rankIndex"


def dress(draft: Draft, flags: Flags) -> None:
    """Add the annotation, unless the user has: the variable RANK, else masters before workers."""
    if draft.annotations.get(RANK_INDEX):
        return
    rank = _given_rank(draft) or _count_rank(draft, flags)
    if rank:
        draft.annotations[RANK_INDEX] = rank


def _given_rank(draft: Draft) -> str:
    variables = (each for container in draft.containers for each in container["env"])
    return next((str(v.get("value") or "") for v in variables if v.get("name") == "RANK"), "")


def _count_rank(draft: Draft, flags: Flags) -> str:
    master, name = flags.text("master"), draft.task.name
    if name == master:
        return str(draft.index)
    if name == flags.text("worker"):
        return str(replicas_of(draft.job, master) + draft.index)
    return ""


HCCLRANK = Plugin("hcclrank", (("master", "master"), ("worker", "worker")), dress)
