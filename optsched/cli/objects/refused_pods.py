"""Pods of jobs that the API server refuses because of a quota or an admission webhook.

The job controller writes an event `FailedCreate` of the job with the answer of the API server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobPhase
from optsched.api.kinds import EVENT, JOB
from optsched.cli.base.connection import listed
from optsched.cli.objects.describe import last_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.api.job import Job
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]

UNMADE: Final = "FailedCreate"
"""The reason of such events, which commands show as the reason of the job."""

_MAKING: Final = (JobPhase.PENDING, JobPhase.RUNNING, JobPhase.RESTARTING)


async def refused_pods(client: Client, namespace: str, name: str = "") -> list[Raw]:
    """Return the events of refused pods of a job, or of all jobs of a namespace, or of all."""
    about = {"reason": UNMADE, "involvedObject.kind": JOB.kind}
    if name:
        about["involvedObject.name"] = name
    fields = ",".join(f"{key}={value}" for key, value in about.items())
    return list(await listed(client, EVENT, namespace, fields=fields))


def why_unmade(job: Job, events: Sequence[Raw]) -> str:
    """Return the API server's message for a job's missing pods; empty if none is missing.

    Among the events others may be, of this job or of another object.
    """
    status = job.status
    there = (status.pending, status.running, status.succeeded, status.failed, status.unknown)
    if status.phase not in _MAKING or sum(there) + status.terminating >= job.spec.num_pods:
        return ""
    unmade = (event for event in events if event.get("reason") == UNMADE)
    mine = [e for e in unmade if (e.get("involvedObject") or {}).get("uid") == job.meta.uid]
    newest = max(mine, key=last_ms, default=None)
    return "" if newest is None else " ".join(str(newest.get("message") or "").split())
