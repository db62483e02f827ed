"""Actions on jobs: create, list, describe, watch, suspend, resume, delete."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobPhase, parse_job
from optsched.api.kinds import COMMAND, EVENT, JOB, POD_GROUP, QUEUE, Ref
from optsched.cli.base.connection import (
    Exit,
    Failure,
    absent,
    call_cluster,
    check_named,
    create,
    if_allowed,
    listed,
    listed_in,
    read,
)
from optsched.cli.base.console import echo, print_text, remarks
from optsched.cli.base.options import (
    JSON,
    NAME,
    TABLE,
    WIDE,
    YAML,
    as_stored,
    print_change,
    show_list,
    show_rows,
    show_stored,
    with_namespace,
    with_queues,
    written,
)
from optsched.cli.objects.describe import (
    EVENT_HEADINGS,
    HIDDEN_REFUSALS,
    UNMADE,
    description,
    event_rows,
    refusals,
    still_refused,
    why_unmade,
)
from optsched.cli.objects.manifests import command_manifest
from optsched.cli.objects.queue_membership import find_queue_of_job, queues_of_groups
from optsched.cli.objects.table_columns import (
    JOBS,
    Table,
    decode_job,
    name_of,
    namespace_of,
    with_positions,
)
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cli.base.connection import Place
    from optsched.cli.inspect.cluster_state import Cluster
    from optsched.cli.objects.target_names import Target
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]

ABORT: Final = "AbortJob"
RESUME: Final = "ResumeJob"
ENDS: Final = (JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED, JobPhase.ABORTED)
"""Final phases of a job, and the phase Aborted, which only a Command can end."""

_FINISHED: Final = ENDS[:3]
_SUSPENDED: Final = (JobPhase.ABORTING, JobPhase.ABORTED)
_WORDS: Final = {ABORT: "suspend", RESUME: "resume"}


def submit(place: Place, form: str, jobs: Sequence[Raw], namespace: str = "") -> None:
    """Create jobs, and print one line per created job."""

    async def create_job(client: Client) -> None:
        for obj in jobs:
            inside = namespace or namespace_of(obj) or client.namespace
            body = {**obj, "metadata": {**obj["metadata"], "namespace": inside}}
            kept = await create(client, Ref(JOB, inside, name_of(obj)), body)
            print_change(JOB, kept, form, f"run job {name_of(kept)} successfully")

    call_cluster(place, create_job)


def show_jobs(place: Place, form: str, namespace: str | None, which: Mapping[str, str]) -> None:
    """Print the jobs of a namespace, or of all namespaces for None.

    `which` holds the filters queue, scheduler, selector and labels. The table without `-o wide` has
    the columns of `vcctl`. The reasons why pods were rejected follow the table.
    """
    found = call_cluster(place, lambda client: _read_jobs(client, form, namespace, which))
    _print_jobs(found, form, JOBS, has_namespace=namespace is None)


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Jobs, the queues of PodGroups and, for table formats, events about rejected objects."""

    jobs: list[Any]
    queues: Mapping[tuple[str, str], str]
    events: list[Any]


async def _read_jobs(
    client: Client, form: str, namespace: str | None, which: Mapping[str, str]
) -> _Jobs:
    wants_queues = bool(which.get("queue")) or form == WIDE
    queues = await queues_of_groups(client, namespace) if wants_queues else {}
    found = await listed_in(client, JOB, namespace, labels=which.get("labels", ""))
    jobs = [obj for obj in found if matches_filters(obj, which, queues)]
    if not jobs:
        await check_named(client, Ref(QUEUE, "", which.get("queue", "")))
    if form not in (TABLE, WIDE) or not jobs:
        return _Jobs(jobs, queues, [])
    events = refusals(client, "" if namespace is None else namespace or client.namespace)
    return _Jobs(jobs, queues, await if_allowed(events, HIDDEN_REFUSALS, []))


def _print_jobs(found: _Jobs, form: str, table: Table, *, has_namespace: bool) -> None:
    jobs, messages = [], []
    for obj in found.jobs:
        job, _ = parse_job(obj)
        refusal = why_unmade(job, found.events) if job is not None else ""
        messages.append(refusal)
        if refusal and form == WIDE:
            # The wide table shows why the API server rejected the pods of a job.
            status = obj.get("status") or {}
            state = {**status.get("state", {}), "reason": UNMADE, "message": refusal}
            obj = {**obj, "status": {**status, "state": state}}
        jobs.append(obj)
    table = with_queues(table, lambda job: find_queue_of_job(job, found.queues))
    show_list(JOB, jobs, form, with_namespace(table) if has_namespace else table)
    for obj, refusal in zip(found.jobs, messages, strict=True):
        if refusal and form == TABLE:
            print_text(remarks(), f"job {name_of(obj)}: {UNMADE}: {refusal}", "yellow")


def show_standing_jobs(
    place: Place, form: str, namespace: str | None, which: Mapping[str, str]
) -> None:
    """Print jobs with their queue positions; this reads the whole cluster."""
    from optsched.cli.inspect.cluster_state import read_cluster
    from optsched.cli.inspect.explain_job import positions

    async def list_jobs(client: Client) -> tuple[_Jobs, Cluster]:
        # Read the cluster first: if the user may not, the error is printed without other remarks.
        cluster = await read_cluster(client)
        return await _read_jobs(client, form, namespace, which), cluster

    found, cluster = call_cluster(place, list_jobs)
    table = with_positions(JOBS, positions(cluster, found.jobs))
    _print_jobs(found, form, table, has_namespace=namespace is None)


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


def show_job(place: Place, form: str, target: Target) -> None:
    """Print a job as a description with events, or, in other formats, as the stored object."""
    wants_all = form in (TABLE, WIDE)

    async def read_job(client: Client) -> tuple[Raw, Sequence[Raw], str]:
        obj = await read(client, Ref(JOB, target.inside(client), target.name))
        if not wants_all:
            return obj, (), ""
        about = {"kind": JOB.kind, "name": name_of(obj), "uid": obj["metadata"]["uid"]}
        fields = ",".join(f"involvedObject.{name}={value}" for name, value in about.items())
        reading = listed(client, EVENT, namespace_of(obj), fields=fields)
        events: Sequence[Raw] = await if_allowed(reading, "the events are not shown", ())
        why = _why_pending(client, obj, events)
        return obj, events, await if_allowed(why, "the reason why the job waits is not shown", "")

    obj, events, why = call_cluster(place, read_job)
    if not wants_all:
        show_stored(JOB, obj, form)
        return
    for line in description(as_stored(JOB, obj), {"waitsBecause": why} if why else {}):
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
    if refusal := why_unmade(parsed, await still_refused(client, events)):
        return f"{UNMADE}: {refusal}"
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


def order(place: Place, form: str, target: Target, action: str) -> None:
    """Create a Command, with which the job controller performs an action on a job.

    The Command is created even if the job is already in the requested state, because an earlier
    Command may still be pending.
    """

    async def ordered(client: Client) -> tuple[Raw, str]:
        inside = target.inside(client)
        obj = await read(client, Ref(JOB, inside, target.name))
        phase = decode_job(obj).status.phase
        if phase in _FINISHED:
            text = f"job {target.name} is {phase}: there is nothing to {_WORDS[action]}"
            raise Failure(text, Exit.CONFLICT)
        manifest = command_manifest(JOB, obj, action, inside)
        command = await create(client, Ref(COMMAND, inside, ""), manifest)
        return command, phase if (phase in _SUSPENDED) is (action == ABORT) else ""

    command, phase = call_cluster(place, ordered)
    done = f"{_WORDS[action]} job {target.name} successfully"
    print_change(COMMAND, command, form, f"job {target.name} is {phase} already" if phase else done)


def remove(place: Place, form: str, target: Target, word: str) -> None:
    """Delete a job and print a message; `word` is the verb of this message."""

    async def removed(client: Client) -> Raw:
        ref = Ref(JOB, target.inside(client), target.name)
        obj = await read(client, ref)
        await client.delete(ref, obj["metadata"]["uid"])
        return obj

    print_change(JOB, call_cluster(place, removed), form, f"{word} job {target.name} successfully")


# --- watch ---------------------------------------------------------------------------------------

_CHANGES: Final = ("Name", "Phase", "Pending", "Running", "Succeeded", "Failed", "RetryCount")
_WIDTHS: Final = (12, 10, 10, 12, 9, 10)
"""Widths of the columns after the name; fixed, because rows are printed one by one."""


def watch_job(place: Place, form: str, target: Target, timeout_ms: int | None) -> None:
    """Print each change of a job until the job ends; raise `Failure` unless it completed."""
    timeout_s = None if timeout_ms is None else timeout_ms / 1000

    async def watched(client: Client) -> JobPhase:
        ref = Ref(JOB, target.inside(client), target.name)
        try:
            async with asyncio.timeout(timeout_s):
                return await _until_the_end(client, ref, form)
        except TimeoutError as e:
            raise Failure(f"job {target.name} did not end in time", Exit.TIMEOUT) from e

    phase = call_cluster(place, watched)
    if phase is not JobPhase.COMPLETED:
        raise Failure(f"job {target.name} is {phase}")


async def _until_the_end(client: Client, ref: Ref, form: str) -> JobPhase:
    from optsched.kube.cache.reflector import watch_object

    # If the server is unreachable, a read fails, while a watch would retry forever.
    await read(client, ref)
    last: list[str] = []
    async for state in watch_object(
        client, ref, lambda error: print_text(remarks(), f"{error}; retrying", "dim")
    ):
        if state is None:
            if not last:
                raise absent(ref)
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
                echo(f"---\n{written(as_stored(JOB, state), form)}", nl=False)
            last = cells
        if phase in ENDS:
            if form == NAME:
                show_stored(JOB, state, NAME)
            return phase
    raise absent(ref)


def change_line(cells: Sequence[str], name_width: int) -> str:
    """Format a row of `job watch` with aligned cells."""
    widths = (max(name_width, len(_CHANGES[0])) + 3, *_WIDTHS)
    return "".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
