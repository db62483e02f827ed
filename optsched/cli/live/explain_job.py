"""Explain a waiting job: the scheduler's reason, the queue position and the expected start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.api.job import JobPhase, parse_job
from optsched.api.json_fields import controller_of, is_owned_as
from optsched.api.kinds import JOB, POD_GROUP, Ref
from optsched.cli.base.connection import Exit, call_cluster, if_allowed, read_object
from optsched.cli.base.console import echo
from optsched.cli.base.options import JSON, NAME, YAML, format_document, typed_name
from optsched.cli.base.table_columns import decode_job, format_span, name_of, namespace_of
from optsched.cli.live.cluster_state import classes_in, policy_for, read_cluster
from optsched.cli.live.describe import (
    FAILED_CREATE,
    HIDDEN_REJECTIONS,
    find_rejection,
    list_rejections,
)
from optsched.cluster.reasons import ReasonCode
from optsched.controllers.job.object_names import group_name
from optsched.controllers.job.preview import expand_job
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES, DecodeOptions
from optsched.session.session import SessionContext
from optsched.study.prediction.queue_position import (
    PredictionSettings,
    Standing,
    standings,
    waiting,
)
from optsched.units import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.api.job import Job
    from optsched.cli.base.connection import Connection
    from optsched.cli.live.cluster_state import Cluster
    from optsched.cli.live.target_names import Target
    from optsched.kube.client.client import Client
    from optsched.study.prediction.queue_position import Waiting

    Raw = Mapping[str, Any]

MOST_AHEAD: Final = 5
"""Maximum number of preceding jobs that the text output names; JSON and YAML list all jobs."""

_UNKNOWN: Final = "not known"
_OPEN: Final = "the job waits for resources of pods without an estimated end"


@dataclass(frozen=True, slots=True)
class PendingReason:
    """The reason code and message that the scheduler reports for a gang; both may be empty."""

    code: str = ""
    message: str = ""


def explain_job(connection: Connection, form: str, target: Target, options: DecodeOptions) -> None:
    """Print why a job waits; exit with 8 if it waits, and with 9 if it can never start.

    If the user may not read the cluster, the reason comes from the job's status, and the queue
    position is omitted. `options` are the decode options of the running scheduler; the scheduler
    names in `options` are ignored.
    """

    async def read_job(client: Client) -> tuple[Raw, Cluster | None, list[Raw]]:
        obj = await read_object(client, Ref(JOB, target.inside(client), target.name))
        hidden = "the position and the expected start are not shown"
        cluster = await if_allowed(read_cluster(client), hidden, None)
        events = list_rejections(client, target.inside(client), target.name)
        return obj, cluster, await if_allowed(events, HIDDEN_REJECTIONS, [])

    obj, cluster, events = call_cluster(connection, read_job)
    job = decode_job(obj)
    key = f"{job.meta.namespace}/{group_name(job)}"
    is_waiting = job.status.phase in (JobPhase.PENDING, JobPhase.RESTARTING)
    if cluster is None:
        reason, found = PendingReason(job.status.reason, job.status.message), None
    else:
        context = _prediction_context(cluster, [obj], options)
        reason = _find_reason(cluster.objects, key)
        found = None
        if is_waiting:
            expanded, _ = expand_job(obj, classes_in(cluster.objects))
            found = waiting(cluster.objects, key, expanded.pods if expanded else (), context)
    objects = () if cluster is None else cluster.objects
    reason = reason if is_waiting else PendingReason()
    if rejection := find_rejection(job, events):
        reason = PendingReason(FAILED_CREATE, rejection)
    # Admission may have replaced the PodGroup's queue with the namespace's queue.
    queue = (_find_group(objects, key).get("spec") or {}).get("queue") or job.spec.queue
    facts = build_document(job, reason, found, str(queue))
    if form in (JSON, YAML):
        echo(format_document(facts, form), nl=False)
    elif form == NAME:
        echo(typed_name(JOB, obj))
    else:
        others, last = facts["ahead"][:-MOST_AHEAD], facts["ahead"][-MOST_AHEAD:]
        ahead = [*others, *(_find_job_key(objects, each) for each in last)]
        for line in format_sentences({**facts, "ahead": ahead}, found):
            echo(line)
    if is_waiting:
        is_hopeless = reason.code == ReasonCode.IMPOSSIBLE
        raise click.exceptions.Exit(Exit.NEVER if is_hopeless else Exit.WAITS)


def find_positions(cluster: Cluster, jobs: Sequence[Raw]) -> dict[tuple[str, str], str]:
    """Return the queue positions of jobs, such as `2/5`, keyed by (namespace, name)."""
    options = DecodeOptions(lifting_classes=frozenset(), device_schedulers=frozenset())
    found = standings(cluster.objects, _prediction_context(cluster, jobs, options))
    places = {}
    for obj in jobs:
        job, _ = parse_job(obj)
        stand = found.get(f"{job.meta.namespace}/{group_name(job)}") if job else None
        if stand is not None:
            places[namespace_of(obj), name_of(obj)] = f"{stand.position}/{stand.num_waiting}"
    return places


def _prediction_context(
    cluster: Cluster, jobs: Sequence[Raw], options: DecodeOptions
) -> PredictionSettings:
    """Return prediction settings that accept the `schedulerName` of every job."""
    parsed = (parse_job(obj)[0] for obj in jobs)
    named = {job.spec.scheduler_name for job in parsed if job is not None}
    options = replace(options, scheduler_names=tuple(sorted({*SCHEDULER_NAMES, *named})))
    return PredictionSettings(policy_for(cluster), SessionContext(), options)


def _find_group(objects: Sequence[Raw], key: str) -> Raw:
    """Return the PodGroup with the key `key`, or an empty mapping if there is none."""
    groups = (obj for obj in objects if obj.get("kind") == POD_GROUP.kind)
    return next((obj for obj in groups if f"{namespace_of(obj)}/{name_of(obj)}" == key), {})


def _find_job_key(objects: Sequence[Raw], key: str) -> str:
    """Return the key of the job that owns a PodGroup, or the PodGroup's own key."""
    group = _find_group(objects, key)
    owner = controller_of(group)
    if owner is None or not is_owned_as(owner, JOB):
        return key
    return f"{namespace_of(group)}/{owner.get('name')}"


def _find_reason(objects: Sequence[Raw], key: str) -> PendingReason:
    for each in (_find_group(objects, key).get("status") or {}).get("conditions") or ():
        if each.get("type") == "Unschedulable" and each.get("status") == "True":
            return PendingReason(str(each.get("reason") or ""), str(each.get("message") or ""))
    return PendingReason()


# --- output ---------------------------------------------------------------------------------------


def build_document(
    job: Job, reason: PendingReason, found: Waiting | None, queue: str
) -> dict[str, Any]:
    """Return the explanation as JSON data; docs/pending.md describes the fields."""
    stand: Standing | None = None if found is None else found.standing
    reservation = None if found is None else found.expected
    return {
        "apiVersion": "optsched.io/v1alpha1",
        "kind": "Explanation",
        "name": job.meta.name,
        "namespace": job.meta.namespace,
        "phase": job.status.phase.value,
        "queue": queue,
        "pods": job.spec.num_pods,
        "running": job.status.counts.running,
        "succeeded": job.status.counts.succeeded,
        "failed": job.status.counts.failed,
        "minAvailable": job.spec.min_available,
        "reason": {"code": reason.code, "message": reason.message} if reason.code else None,
        "waitingSince": format_time(found.since_ms) if found and stand else None,
        "position": stand.position if stand else None,
        "numWaiting": stand.num_waiting if stand else None,
        "ahead": list(stand.ahead) if stand else [],
        "expectedStart": format_time(reservation.start_ms) if reservation else None,
        "isEarliest": reservation is not None and reservation.is_open,
    }


def format_sentences(facts: Raw, found: Waiting | None) -> list[str]:
    """Format the explanation as sentences, one per line."""
    head = f"{facts['namespace']}/{facts['name']} is {facts['phase'] or 'new'}"
    ended = "".join(f"{facts[n]} {n}, " for n in ("succeeded", "failed") if facts[n])
    pods = f"{facts['running']} of {facts['pods']} pods run, {ended}"
    lines = [f"{head}: {pods}{facts['minAvailable']} have to start together"]
    if facts["reason"]:
        lines.append(f"Reason:    {facts['reason']['code']}: {facts['reason']['message']}")
    elif found is not None:
        lines.append("Reason:    the scheduler has not reported a reason yet")
    if found is not None and facts["position"] is not None:
        lines.append(f"Waiting:   for {format_span(found.now_ms - found.since_ms)}")
        position = (
            f"{facts['position']} of {facts['numWaiting']} that wait in queue {facts['queue']}"
        )
        if ahead := facts["ahead"][-MOST_AHEAD:]:
            more = "… " if len(ahead) < len(facts["ahead"]) else ""
            position = f"{position}, behind {more}{', '.join(ahead)}"
        lines.append(f"Position:  {position}")
        start = facts["expectedStart"] or _UNKNOWN
        is_open = facts["expectedStart"] and facts["isEarliest"]
        lines.append(f"Expected:  {f'not before {start}; {_OPEN}' if is_open else start}")
    return lines
