"""`optsched pod`: commands for the pods of jobs and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from optsched.api.kinds import JOB, POD, QUEUE, Ref
from optsched.api.wellknown import JOB_NAME
from optsched.cli.base.command_errors import Group
from optsched.cli.base.connection import (
    Exit,
    Failure,
    call_cluster,
    check_named,
    cluster_options,
    listed_in,
)
from optsched.cli.base.options import WIDE, output_option, show_list, with_namespace, with_queues
from optsched.cli.objects.queue_membership import find_queue_of_pod, queues_of_groups
from optsched.cli.objects.table_columns import PODS
from optsched.cli.objects.target_names import names_of, namespace_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cli.base.connection import Place
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]


@click.group(cls=Group)
def pod() -> None:
    """List the pods of jobs and queues."""


@pod.command("list")
@cluster_options
@output_option()
@namespace_option()
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces.")
@click.option(
    "-q", "--queue", default="", shell_complete=names_of(QUEUE), help="Only pods of this queue."
)
@click.option(
    "-j", "--job", default="", shell_complete=names_of(JOB), help="Only pods of this job."
)
def list_pods(
    place: Place, form: str, namespace: str, *, all_namespaces: bool, **which: str
) -> None:
    """List the pods of all jobs, of one job or of one queue."""
    job, queue = which["job"], which["queue"]
    # Without a queue, only pods of jobs are selected. A queue may also contain pods without a job.
    labels = f"{JOB_NAME}={job}" if job else "" if queue else JOB_NAME

    async def list_pods(client: Client) -> tuple[list[Any], dict[tuple[str, str], str]]:
        inside = None if all_namespaces else namespace
        found = await listed_in(client, POD, inside, labels=labels)
        wants_queues = bool(queue) or form == WIDE
        queues = await queues_of_groups(client, inside) if wants_queues else {}
        if not in_queue(found, queue, queues) and not (job and found):
            named = [] if inside is None else [Ref(JOB, inside or client.namespace, job)]
            await check_named(client, Ref(QUEUE, "", queue), *named)
        return found, queues

    all_, queues = call_cluster(place, list_pods)
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
