"""`optsched pod`, and the queues to which jobs and pods belong.

A job or pod belongs to the queue of its PodGroup, because schedulers read the PodGroup. Admission
may have replaced the PodGroup's queue with the namespace's queue, or a user may have changed the
PodGroup's queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from optsched.api.job import parse_job
from optsched.api.kinds import JOB, POD, POD_GROUP, QUEUE, Ref
from optsched.api.wellknown import ADMITTED_QUEUE, DEFAULT_QUEUE, JOB_NAME
from optsched.cli.base.command_errors import Group
from optsched.cli.base.connection import (
    Exit,
    Failure,
    call_cluster,
    check_exists,
    cluster_options,
    if_allowed,
    list_in_namespace,
    list_kind,
)
from optsched.cli.base.options import WIDE, output_option, show_list, with_namespace, with_queues
from optsched.cli.base.table_columns import PODS, name_of, namespace_of, queue_of_pod
from optsched.cli.live.target_names import complete_names, namespace_option
from optsched.controllers.job.object_names import group_name
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES, gang_named_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cli.base.connection import Connection
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]
    Queues = Mapping[tuple[str, str], str]


@click.group(cls=Group)
def pod() -> None:
    """List the pods of jobs and queues."""


@pod.command("list")
@cluster_options
@output_option()
@namespace_option()
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces.")
@click.option(
    "-q",
    "--queue",
    default="",
    shell_complete=complete_names(QUEUE),
    help="Only pods of this queue.",
)
@click.option(
    "-j", "--job", default="", shell_complete=complete_names(JOB), help="Only pods of this job."
)
def list_pods(
    connection: Connection, form: str, namespace: str, *, all_namespaces: bool, **which: str
) -> None:
    """List the pods of all jobs, of one job or of one queue."""
    job, queue = which["job"], which["queue"]
    # If no queue is given, only pods of jobs are listed. A queue may also contain pods without a
    # job.
    labels = f"{JOB_NAME}={job}" if job else "" if queue else JOB_NAME

    async def list_pods(client: Client) -> tuple[list[Any], dict[tuple[str, str], str]]:
        inside = None if all_namespaces else namespace
        found = await list_in_namespace(client, POD, inside, labels=labels)
        wants_queues = bool(queue) or form == WIDE
        queues = await queues_of_groups(client, inside) if wants_queues else {}
        if not in_queue(found, queue, queues) and not (job and found):
            named = [] if inside is None else [Ref(JOB, inside or client.namespace, job)]
            await check_exists(client, Ref(QUEUE, "", queue), *named)
        return found, queues

    all_, queues = call_cluster(connection, list_pods)
    pods = in_queue(all_, queue, queues)
    if job and all_ and not pods:
        others = ", ".join(sorted({find_queue_of_pod(each, queues) for each in all_}))
        raise Failure(f"job {job} is not in queue {queue} but in {others}", Exit.CONFLICT)
    table = with_queues(PODS, lambda pod: find_queue_of_pod(pod, queues))
    show_list(POD, pods, form, with_namespace(table) if all_namespaces else table)


def in_queue(pods: Sequence[Raw], queue: str, queues: Mapping[tuple[str, str], str]) -> list[Raw]:
    """Return the pods that belong to a queue; an empty `queue` selects all pods.

    `queues` holds the queue of each PodGroup, keyed by (namespace, name).
    """
    return [pod for pod in pods if queue in ("", find_queue_of_pod(pod, queues))]


async def queues_of_groups(client: Client, namespace: str | None) -> dict[tuple[str, str], str]:
    """Return the queue of each PodGroup, keyed by (namespace, name).

    None as `namespace` selects all namespaces, and an empty `namespace` the current context's
    namespace. The result is empty if the user may not list PodGroups.
    """
    inside = "" if namespace is None else namespace or client.namespace
    subject = "queues set by admission are not shown"
    found: list[dict[str, Any]] = await if_allowed(
        list_kind(client, POD_GROUP, inside), subject, []
    )
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
