"""`optsched job`: create, list, view, explain, watch, suspend, resume and delete jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.api.job import JobPhase, parse_job
from optsched.api.kinds import COMMAND, EVENT, JOB, POD_GROUP, QUEUE, Ref
from optsched.cli.base.command_errors import Group
from optsched.cli.base.connection import (
    Exit,
    Failure,
    call_cluster,
    check_exists,
    cluster_options,
    create_object,
    if_allowed,
    list_in_namespace,
    list_kind,
    missing_object,
    read_object,
)
from optsched.cli.base.console import echo, print_text, stderr
from optsched.cli.base.options import (
    DURATION,
    JSON,
    NAME,
    TABLE,
    WIDE,
    YAML,
    as_stored,
    format_document,
    output_option,
    print_change,
    show_list,
    show_rows,
    show_stored,
    tenant_claim_options,
    with_namespace,
    with_queues,
)
from optsched.cli.base.table_columns import (
    JOBS,
    Table,
    decode_job,
    name_of,
    namespace_of,
    with_positions,
)
from optsched.cli.live.describe import (
    EVENT_HEADINGS,
    FAILED_CREATE,
    HIDDEN_REJECTIONS,
    describe_object,
    drop_resolved_rejections,
    event_rows,
    find_rejection,
    list_rejections,
)
from optsched.cli.live.manifests import (
    AMOUNTS,
    COUNT,
    DEFAULT_AMOUNTS,
    JobFlags,
    check_manifests,
    command_manifest,
    file_option,
    job_manifest,
    read_manifests,
)
from optsched.cli.live.pod_commands import find_queue_of_job, queues_of_groups
from optsched.cli.live.target_names import Target, namespace_option, single_name, target_options
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cli.base.connection import Connection
    from optsched.cli.live.cluster_state import Cluster
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]

ABORT: Final = "AbortJob"
RESUME: Final = "ResumeJob"
END_PHASES: Final = (JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED, JobPhase.ABORTED)
"""Final phases of a job, and the phase Aborted, which only a Command can end."""

_FINISHED: Final = END_PHASES[:3]
_SUSPENDED: Final = (JobPhase.ABORTING, JobPhase.ABORTED)
_WORDS: Final = {ABORT: "suspend", RESUME: "resume"}


@click.group(cls=Group)
def job() -> None:
    """Run, list, view, watch, suspend, resume and delete batch jobs."""


# --- run -----------------------------------------------------------------------------------------


@job.command("run")
@cluster_options
@output_option()
@click.argument("positional", metavar="NAME", default="")
@click.option("-N", "--name", default="", help="Name of the job.")
@namespace_option()
@file_option("File with jobs; - is standard input.", "filename", default="")
@click.option("-i", "--image", default="busybox", show_default=True)
@click.option("-m", "--min", "minimum", type=COUNT, default=1, show_default=True)
@click.option("-r", "--replicas", type=COUNT, default=1, show_default=True)
@click.option("-R", "--requests", type=AMOUNTS, default=DEFAULT_AMOUNTS, show_default=True)
@click.option("-L", "--limits", type=AMOUNTS, show_default="the requests")
@click.option("-S", "--scheduler", default="volcano", show_default=True)
@click.option("-q", "--queue", default="", show_default="default")
@click.option("-c", "--command", default="", help="Command line of the container.")
@click.option("--priority-class", default="")
def run(connection: Connection, form: str, positional: str, filename: str, **flags: Any) -> None:  # noqa: ANN401
    """Create a job from flags, or jobs from a file.

    A name on the command line is the name of the job; it is accepted with a file only if the file
    contains one job.
    """
    namespace = flags.pop("namespace")
    name = flags["name"] = single_name((positional, flags["name"]), "names")
    if filename:
        manifests = read_manifests(filename, JOB)
        check_manifests(manifests, namespace)
        if name and len(manifests) > 1:
            raise click.UsageError(
                f"{filename} holds {len(manifests)} jobs, which cannot all be named {name}"
            )
        for remark in (remark for manifest in manifests for remark in manifest.remarks):
            print_text(stderr(), f"Warning: {remark}", "yellow")
        jobs = [manifest.obj for manifest in manifests]
        if name:
            jobs = [{**jobs[0], "metadata": {**jobs[0]["metadata"], "name": name}}]
    elif name:
        jobs = [job_manifest(JobFlags(**flags), namespace)]
    else:
        raise click.UsageError("a name is missing: write it after the command, or give -f FILE")
    create_jobs(connection, form, jobs, namespace)


def create_jobs(
    connection: Connection, form: str, jobs: Sequence[Raw], namespace: str = ""
) -> None:
    """Create jobs, and print one line per created job."""

    async def create_job(client: Client) -> None:
        for obj in jobs:
            inside = namespace or namespace_of(obj) or client.namespace
            body = {**obj, "metadata": {**obj["metadata"], "namespace": inside}}
            kept = await create_object(client, Ref(JOB, inside, name_of(obj)), body)
            print_change(JOB, kept, form, f"run job {name_of(kept)} successfully")

    call_cluster(connection, create_job)


# --- list ----------------------------------------------------------------------------------------


@job.command("list")
@cluster_options
@output_option()
@namespace_option()
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("-q", "--queue", default="", help="Only jobs of this queue.")
@click.option("-S", "--scheduler", default="", help="Only jobs of this scheduler.")
@click.option("--selector", default="", help="Only jobs whose names contain this text.")
@click.option(
    "-l", "--labels", default="", help="Only jobs with these labels, such as team=vision."
)
@click.option(
    "--position",
    "with_position",
    is_flag=True,
    help="Add queue positions; reads the whole cluster.",
)
def list_jobs(
    connection: Connection,
    form: str,
    namespace: str,
    *,
    all_namespaces: bool,
    with_position: bool,
    **which: str,
) -> None:
    """List jobs."""
    show_jobs(
        connection, form, None if all_namespaces else namespace, which, with_position=with_position
    )


def show_jobs(
    connection: Connection,
    form: str,
    namespace: str | None,
    which: Mapping[str, str],
    *,
    with_position: bool = False,
) -> None:
    """Print the jobs of a namespace; None stands for all namespaces.

    `which` holds the filters queue, scheduler, selector and labels. The table without `-o wide` has
    the columns of `vcctl`. `with_position` adds queue positions, for which the whole cluster is
    read. The reasons why pods were rejected follow the table.
    """

    async def read_jobs(
        client: Client,
    ) -> tuple[list[Any], Mapping[tuple[str, str], str], list[Any], Cluster | None]:
        cluster = None
        if with_position:
            from optsched.cli.live.cluster_state import read_cluster

            # If the user may not read the cluster, the command fails before it prints other
            # messages.
            cluster = await read_cluster(client)
        wants_queues = bool(which.get("queue")) or form == WIDE
        queues = await queues_of_groups(client, namespace) if wants_queues else {}
        found = await list_in_namespace(client, JOB, namespace, labels=which.get("labels", ""))
        jobs = [obj for obj in found if matches_filters(obj, which, queues)]
        if not jobs:
            await check_exists(client, Ref(QUEUE, "", which.get("queue", "")))
        if form not in (TABLE, WIDE) or not jobs:
            return jobs, queues, [], cluster
        reading = list_rejections(
            client, "" if namespace is None else namespace or client.namespace
        )
        return jobs, queues, await if_allowed(reading, HIDDEN_REJECTIONS, []), cluster

    found, queues, events, cluster = call_cluster(connection, read_jobs)
    table = JOBS
    if cluster is not None:
        from optsched.cli.live.explain_job import find_positions

        table = with_positions(JOBS, find_positions(cluster, found))
    jobs, messages = [], []
    for obj in found:
        job, _ = parse_job(obj)
        rejection = find_rejection(job, events) if job is not None else ""
        messages.append(rejection)
        if rejection and form == WIDE:
            # The wide table shows why the API server rejected the pods of a job.
            status = obj.get("status") or {}
            state = {**status.get("state", {}), "reason": FAILED_CREATE, "message": rejection}
            obj = {**obj, "status": {**status, "state": state}}
        jobs.append(obj)
    table = with_queues(table, lambda job: find_queue_of_job(job, queues))
    show_list(JOB, jobs, form, with_namespace(table) if namespace is None else table)
    for obj, rejection in zip(found, messages, strict=True):
        if rejection and form == TABLE:
            print_text(stderr(), f"job {name_of(obj)}: {FAILED_CREATE}: {rejection}", "yellow")


def matches_filters(
    obj: Raw, which: Mapping[str, str], queues: Mapping[tuple[str, str], str]
) -> bool:
    """Return whether a job matches the filters on queue, scheduler and name.

    `queues` holds the queue of each PodGroup, keyed by (namespace, name).
    """
    parsed, _ = parse_job(obj)
    if parsed is None:
        return False
    queue, scheduler = which.get("queue", ""), which.get("scheduler", "")
    return (
        queue in ("", find_queue_of_job(obj, queues))
        and scheduler in ("", parsed.spec.scheduler_name)
        and which.get("selector", "") in parsed.meta.name
    )


# --- view and explain ----------------------------------------------------------------------------


@job.command("view")
@cluster_options
@output_option()
@target_options(JOB)
def view(connection: Connection, form: str, target: Target) -> None:
    """Show all fields of a job, and its events."""
    show_job(connection, form, target)


def show_job(connection: Connection, form: str, target: Target) -> None:
    """Print a job as a description with events, or, in other formats, as the stored object."""
    wants_all = form in (TABLE, WIDE)

    async def read_job(client: Client) -> tuple[Raw, Sequence[Raw], str]:
        obj = await read_object(client, Ref(JOB, target.inside(client), target.name))
        if not wants_all:
            return obj, (), ""
        about = {"kind": JOB.kind, "name": name_of(obj), "uid": obj["metadata"]["uid"]}
        fields = ",".join(f"involvedObject.{name}={value}" for name, value in about.items())
        reading = list_kind(client, EVENT, namespace_of(obj), fields=fields)
        events: Sequence[Raw] = await if_allowed(reading, "the events are not shown", ())
        why = _why_pending(client, obj, events)
        return obj, events, await if_allowed(why, "the reason why the job waits is not shown", "")

    obj, events, why = call_cluster(connection, read_job)
    if not wants_all:
        show_stored(JOB, obj, form)
        return
    for line in describe_object(as_stored(JOB, obj), {"waitsBecause": why} if why else {}):
        echo(line)
    if not events:
        echo("Events:  <none>")
        return
    from optsched.kube.runtime.timing import SystemClock

    echo("Events:")
    show_rows(EVENT_HEADINGS, event_rows(events, SystemClock().now_ms()))


async def _why_pending(client: Client, obj: Raw, events: Sequence[Raw]) -> str:
    """Return why some pods of a job are not created or not bound; empty if unknown."""
    from optsched.kube.client.errors import NotFound

    parsed = decode_job(obj)
    if rejection := find_rejection(parsed, await drop_resolved_rejections(client, events)):
        return f"{FAILED_CREATE}: {rejection}"
    if parsed.status.phase is not JobPhase.PENDING:
        return ""
    name = f"{parsed.meta.name}-{parsed.meta.uid}"
    try:
        group = await client.read(Ref(POD_GROUP, parsed.meta.namespace, name))
    except NotFound:
        return ""
    for condition in (group.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Unschedulable" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


@job.command("explain")
@cluster_options
@output_option()
@tenant_claim_options
@target_options(JOB)
def explain(
    connection: Connection,
    form: str,
    target: Target,
    lifting_classes: tuple[str, ...],
    device_schedulers: tuple[str, ...],
    *,
    overrides_budgets: bool,
) -> None:
    """Explain why a job waits: reason, position in its queue, and expected start.

    The exit code is 8 if the job waits, 9 if it can never start, and otherwise 0.
    """
    # The import of the modules that compute the queue order takes a second.
    from optsched.cli.live.explain_job import explain_job

    options = DecodeOptions(
        lifting_classes=frozenset(lifting_classes),
        device_schedulers=frozenset(device_schedulers),
        guarantees_override_budgets=overrides_budgets,
    )
    explain_job(connection, form, target, options)


# --- suspend, resume, delete ---------------------------------------------------------------------


@job.command("suspend")
@cluster_options
@output_option()
@target_options(JOB)
def suspend(connection: Connection, form: str, target: Target) -> None:
    """Suspend a job: delete its pods until the job is resumed."""
    send_command(connection, form, target, ABORT)


@job.command("resume")
@cluster_options
@output_option()
@target_options(JOB)
def resume(connection: Connection, form: str, target: Target) -> None:
    """Resume a suspended job."""
    send_command(connection, form, target, RESUME)


def send_command(connection: Connection, form: str, target: Target, action: str) -> None:
    """Create a Command that instructs the job controller to perform an action on a job.

    The Command is created even if the job is already in the requested state, because an earlier
    Command may still be pending.
    """

    async def ordered(client: Client) -> tuple[Raw, str]:
        inside = target.inside(client)
        obj = await read_object(client, Ref(JOB, inside, target.name))
        phase = decode_job(obj).status.phase
        if phase in _FINISHED:
            text = f"job {target.name} is {phase}: there is nothing to {_WORDS[action]}"
            raise Failure(text, Exit.CONFLICT)
        manifest = command_manifest(JOB, obj, action, inside)
        command = await create_object(client, Ref(COMMAND, inside, ""), manifest)
        return command, phase if (phase in _SUSPENDED) is (action == ABORT) else ""

    command, phase = call_cluster(connection, ordered)
    done = f"{_WORDS[action]} job {target.name} successfully"
    print_change(COMMAND, command, form, f"job {target.name} is {phase} already" if phase else done)


@job.command("delete")
@cluster_options
@output_option()
@target_options(JOB)
def delete(connection: Connection, form: str, target: Target) -> None:
    """Delete a job and its pods."""
    delete_job(connection, form, target, "delete")


def delete_job(connection: Connection, form: str, target: Target, word: str) -> None:
    """Delete a job and print a message; `word` is the verb of this message."""

    async def removed(client: Client) -> Raw:
        ref = Ref(JOB, target.inside(client), target.name)
        obj = await read_object(client, ref)
        await client.delete(ref, obj["metadata"]["uid"])
        return obj

    print_change(
        JOB, call_cluster(connection, removed), form, f"{word} job {target.name} successfully"
    )


# --- watch ---------------------------------------------------------------------------------------

_CHANGES: Final = ("Name", "Phase", "Pending", "Running", "Succeeded", "Failed", "RetryCount")
_WIDTHS: Final = (12, 10, 10, 12, 9, 10)
"""Widths of the columns after the name; they are fixed, because rows are printed one by one."""


@job.command("watch")
@cluster_options
@output_option(help_text="Format of each change; name: print only the name, once the job finishes.")
@click.option("--timeout", type=DURATION, help="Stop after this time, such as 90s or 2h.")
@target_options(JOB)
def watch(connection: Connection, form: str, timeout: int | None, target: Target) -> None:
    """Show each change of a job until it finishes; the exit code states the outcome.

    0: the job has completed. 1: the job has failed, or was aborted or terminated. 3: the job was
    deleted. 7: the job did not finish before the timeout.
    """
    timeout_s = None if timeout is None else timeout / 1000

    async def watched(client: Client) -> JobPhase:
        ref = Ref(JOB, target.inside(client), target.name)
        try:
            async with asyncio.timeout(timeout_s):
                return await _until_the_end(client, ref, form)
        except TimeoutError as e:
            raise Failure(f"job {target.name} did not end in time", Exit.TIMEOUT) from e

    phase = call_cluster(connection, watched)
    if phase is not JobPhase.COMPLETED:
        raise Failure(f"job {target.name} is {phase}")


async def _until_the_end(client: Client, ref: Ref, form: str) -> JobPhase:
    from optsched.kube.cache.reflector import watch_object

    # If the API server is unreachable, this read fails, while a watch would retry forever.
    await read_object(client, ref)
    last: list[str] = []
    async for state in watch_object(
        client, ref, lambda error: print_text(stderr(), f"{error}; retrying", "dim")
    ):
        if state is None:
            if not last:
                raise missing_object(ref)
            message = f"job {ref.name} was deleted while it was {last[1]}"
            raise Failure(message, Exit.NOT_FOUND)
        phase = decode_job(state).status.phase
        shown = tuple(c for c in JOBS.columns if c.heading in _CHANGES)
        cells = Table(JOBS.read, shown).row(state, 0, wide=False)
        if cells != last:
            if form in (TABLE, WIDE):
                if not last:
                    echo(change_line(_CHANGES, len(cells[0])))
                echo(change_line(cells, len(cells[0])))
            elif form == JSON:
                echo(write_json(as_stored(JOB, state), sort_keys=True))
            elif form == YAML:
                echo(f"---\n{format_document(as_stored(JOB, state), form)}", nl=False)
            last = cells
        if phase in END_PHASES:
            if form == NAME:
                show_stored(JOB, state, NAME)
            return phase
    raise missing_object(ref)


def change_line(cells: Sequence[str], name_width: int) -> str:
    """Format a row of `job watch` with aligned cells."""
    widths = (max(name_width, len(_CHANGES[0])) + 3, *_WIDTHS)
    return "".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
