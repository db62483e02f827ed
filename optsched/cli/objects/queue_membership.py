"""The queues of jobs and pods.

A job or pod belongs to the queue of its PodGroup, because schedulers read the PodGroup. Admission
may have replaced the PodGroup's queue with the namespace's queue, or a user may have changed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.api.job import parse_job
from optsched.api.kinds import POD_GROUP
from optsched.api.wellknown import ADMITTED_QUEUE, DEFAULT_QUEUE
from optsched.cli.base.connection import if_allowed, listed
from optsched.cli.objects.table_columns import name_of, namespace_of, queue_of_pod
from optsched.controllers.job.object_names import group_name
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES, gang_named_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]
    Queues = Mapping[tuple[str, str], str]


async def queues_of_groups(client: Client, namespace: str | None) -> dict[tuple[str, str], str]:
    """Return the queue of each PodGroup, keyed by (namespace, name).

    If `namespace` is None, all namespaces are read; if it is empty, the current context's
    namespace. The result is empty if the user may not list PodGroups.
    """
    inside = "" if namespace is None else namespace or client.namespace
    subject = "queues set by admission are not shown"
    found: list[dict[str, Any]] = await if_allowed(listed(client, POD_GROUP, inside), subject, [])
    return {
        (namespace_of(group), name_of(group)): (group.get("spec") or {}).get("queue")
        or DEFAULT_QUEUE
        for group in found
    }


def find_queue_of_job(obj: Raw, queues: Queues) -> str:
    """Return the queue of a job's PodGroup, or the job's own queue if the PodGroup is unknown."""
    job, _ = parse_job(obj)
    if job is None:
        return ""
    return queues.get((job.meta.namespace, group_name(job))) or job.spec.queue or DEFAULT_QUEUE


def find_queue_of_pod(pod: Raw, queues: Queues) -> str:
    """Return a pod's queue; "" if the pod belongs to another scheduler and names no queue.

    The queue of a bound pod is the queue in which it was admitted.
    """
    spec, annotations = pod["spec"], pod["metadata"].get("annotations") or {}
    admitted = annotations.get(ADMITTED_QUEUE) if spec.get("nodeName") else None
    grouped = queues.get((namespace_of(pod), gang_named_by(annotations, spec)))
    default = DEFAULT_QUEUE if spec.get("schedulerName") in SCHEDULER_NAMES else ""
    return str(admitted or grouped or queue_of_pod(pod) or default)
