"""`optsched what-if`: predict the placement of jobs that are not in the cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.api.crds import unknown_fields
from optsched.api.kinds import (
    CRON_JOB,
    JOB,
    JOB_FLOW,
    JOB_TEMPLATE,
    NAMESPACE,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    kind_of,
)
from optsched.cli.base.connection import Connection, Exit, Failure, call_cluster, cluster_options
from optsched.cli.base.console import echo, print_text, stderr
from optsched.cli.base.options import (
    JSON,
    SECONDS,
    TABLE,
    WIDE,
    YAML,
    form_option,
    format_document,
    show_rows,
    solver_option,
    tenant_claim_options,
)
from optsched.cli.base.path_arguments import ModelSource, Source, plugins_dir_option, single_model
from optsched.cli.base.session_context import scheduler_names_option, session_context
from optsched.cli.base.table_columns import name_of, namespace_of
from optsched.cli.live.admission_checks import UID, DryRun, QuotaUsage
from optsched.cli.live.cluster_state import (
    MODEL,
    classes_in,
    policy_for,
    read_cluster,
    read_cluster_file,
)
from optsched.cli.live.manifests import file_option, read_file_objects
from optsched.cli.live.target_names import namespace_option
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.controllers.job.preview import Expanded, expand_job
from optsched.formats.codec.pods.reader import (
    IMPLICIT_PREFIX,
    DecodeOptions,
    gang_named_by,
    is_gang_of_bare_pod,
)
from optsched.formats.snapshots.assembly import READ_KINDS
from optsched.session.solve_settings import DEFAULT_SECONDS, limits_of
from optsched.study.prediction.hypothetical_jobs import (
    AddedObjects,
    Clash,
    Prediction,
    Start,
    predict,
)
from optsched.study.prediction.queue_position import PredictionSettings
from optsched.units import format_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from optsched.cli.live.cluster_state import Cluster
    from optsched.cli.live.manifests import FileObject
    from optsched.formats.files.diagnostics import ObjectProblem
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.policy.policy import Policy
    from optsched.study.prediction.hypothetical_jobs import Predictions


MOST_OTHERS: Final = 5
"""Maximum number of printed problems of cluster objects; a cluster may have thousands."""

_NONE: Final = "<none>"
_CREATORS: Final = (CRON_JOB, JOB_FLOW, JOB_TEMPLATE)
_UNREAD: Final = "no scheduler reads this kind"
_NOTHING: Final = "no file contains a Job, PodGroup, pod or other object that a scheduler reads"
_HEADINGS: Final = ("Name", "Starts", "Pods", "Nodes", "Evicts", "Expected", "Reason")
_WORDS: Final = {Start.NOW: "now", Start.SOON: "soon", Start.LATER: "later", Start.NEVER: "never"}


@dataclass(frozen=True, slots=True)
class Options:
    """Values of the command line options; the help of `what-if` describes them."""

    files: tuple[str, ...]
    namespace: str
    snapshot: Path | None
    model: str
    solver: str | None
    time_limit: float | None
    deterministic: bool
    names: tuple[str, ...]
    plugins_dir: Path | None
    lifting_classes: tuple[str, ...]
    device_schedulers: tuple[str, ...]
    overrides_budgets: bool

    @property
    def decoding(self) -> DecodeOptions:
        """The decode options of the prediction.

        If a snapshot is given, an empty option accepts every PriorityClass or device scheduler.
        """
        lifting, devices = frozenset(self.lifting_classes), frozenset(self.device_schedulers)
        return DecodeOptions(
            self.names,
            lifting_classes=lifting or None if self.snapshot else lifting,
            device_schedulers=devices or None if self.snapshot else devices,
            guarantees_override_budgets=self.overrides_budgets,
        )


@click.command("what-if")
@cluster_options
@file_option(
    "File with jobs, PodGroups, pods or other objects; - is standard input. May be repeated.",
    "files",
    multiple=True,
    required=True,
)
@namespace_option()
@click.option(
    "--snapshot",
    type=Source(),
    help="Read this file of `optsched snapshot` or folder of manifests instead of the cluster.",
)
@click.option(
    "--model",
    type=ModelSource(),
    multiple=True,
    default=("",),
    callback=single_model,
    show_default=f"the cluster's, else {MODEL}",
)
@solver_option
@click.option(
    "--time-limit",
    type=SECONDS,
    help=f"Time limit of the solver in seconds; {DEFAULT_SECONDS:g} by default.",
)
@click.option("--deterministic", is_flag=True, help="Reproducible result: reads no clock.")
@scheduler_names_option
@plugins_dir_option
@tenant_claim_options
@form_option((TABLE, WIDE, JSON, YAML))
def what_if(connection: Connection, form: str, **given: Any) -> None:  # noqa: ANN401  click checks them
    """Predict whether a job would start now, where, and which pods it would evict.

    Read-only: the command reads the cluster once, adds the objects of the files to a copy, and runs
    a session on the copy. The exit code is 0 if all jobs would start, 8 if some would wait, and
    9 if one could never start.
    """
    options = Options(**given)
    documents = [document for path in options.files for document in read_file_objects(path)]
    cluster = (
        read_cluster_file(options.snapshot)
        if options.snapshot
        else call_cluster(connection, read_cluster)
    )
    policy = policy_for(cluster, options.model, options.solver, options.plugins_dir)
    request = _parse_request(documents, cluster, options.namespace, options.names)
    if not options.snapshot:
        request = _dry_run_request(connection, request, cluster)
    _check_scheduler(request, options.names)
    later = {gang.key: gang.later for gang in request.gangs}
    found = _decide(cluster.objects, request, policy, options)
    if form in (JSON, YAML):
        echo(format_document(build_document(found, policy.name, later), form), nl=False)
    else:
        if found.added:
            rows = [_format_row(prediction, wide=form == WIDE) for prediction in found.added]
            show_rows(_HEADINGS, rows)
        for prediction in found.added:
            if tasks := later.get(prediction.gang):
                echo(f"{job_name(prediction.gang)}: pods of {', '.join(tasks)} are created later")
        for keys, what in ((found.starts_no_more, "no more"), (found.starts_too, "too")):
            if keys:
                echo(f"would start {what}: {', '.join(keys)}")
        if not (found.added or found.starts_no_more or found.starts_too):
            echo("nothing would change")
    starts = {prediction.start for prediction in found.added}
    if Start.NEVER in starts:
        raise click.exceptions.Exit(Exit.NEVER)
    if Start.LATER in starts:
        raise click.exceptions.Exit(Exit.WAITS)


# --- additions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Gang:
    """A hypothetical gang: its job, PodGroup or bare pod, and the result of its dry run.

    Attributes
    ----------
    key
        The key of the PodGroup, or of the gang that represents a bare pod.
    group
        The PodGroup; None for a bare pod, or if the cluster already has the PodGroup.
    job
        The job to which the gang belongs; None if the file contains the pods themselves.
    later
        Tasks of the job whose pods are created only after other tasks have started.
    rejection, quota
        The fields of `DryRun` with the same names.
    """

    key: str
    group: Raw | None
    pods: Sequence[Raw]
    job: Raw | None = None
    later: tuple[str, ...] = ()
    rejection: str = ""
    quota: str = ""

    @property
    def minimum(self) -> Sequence[Raw]:
        """The pods that must start together; empty if the PodGroup already exists."""
        if self.group is not None:
            return self.pods[: int(self.group["spec"].get("minMember") or 1)]
        return self.pods if is_gang_of_bare_pod(self.key) else ()


@dataclass(frozen=True, slots=True)
class _Request:
    """Hypothetical gangs and other objects, which are added to a copy of the cluster."""

    gangs: tuple[_Gang, ...]
    objects: tuple[Raw, ...]

    @property
    def added(self) -> AddedObjects:
        """The objects to add to the cluster, without gangs that the API server rejected."""
        taken = [gang for gang in self.gangs if not gang.rejection]
        groups = [gang.group for gang in taken if gang.group is not None]
        pods = [pod for gang in taken if gang.job is None for pod in gang.pods]
        made = {gang.key: gang.pods for gang in taken if gang.job is not None}
        return AddedObjects([*self.objects, *groups, *pods], made)


def _parse_request(
    documents: Sequence[FileObject], cluster: Cluster, namespace: str, names: Sequence[str]
) -> _Request:
    """Split the files' objects into gangs and other objects; `names` are the scheduler names."""
    classes = classes_in([*cluster.objects, *(document.value for document in documents)])
    inside = namespace or cluster.namespace
    objects: list[Raw] = []
    gangs: list[_Gang] = []
    problems: list[str] = []
    for document in documents:
        kind, meta = kind_of(document.value), document.value["metadata"]
        if kind is not None and kind.namespaced:
            meta = {**meta, "namespace": meta.get("namespace") or inside}
        if kind == JOB:
            meta = {**meta, "uid": UID}
        obj = {**document.value, "metadata": meta}
        if kind is not None and kind.namespaced and namespace not in ("", namespace_of(obj)):
            problems.append(
                f"{document.location('metadata.namespace')}: {obj['kind']} {name_of(obj)}: "
                f"metadata.namespace: {namespace_of(obj)} differs from -n {namespace}"
            )
        if kind == JOB:
            expanded, errors = expand_job(obj, classes)
            head = f"Job {obj['metadata']['name']}"
            problems += document.describe_errors(head, errors)
            for remark in document.describe_errors(head, unknown_fields(JOB, document.value)):
                print_text(stderr(), f"Warning: {remark}", "yellow")
            if expanded is not None:
                key = f"{namespace_of(obj)}/{name_of(expanded.group)}"
                gangs.append(_Gang(key, expanded.group, expanded.pods, obj, expanded.later))
        elif kind in READ_KINDS:
            objects.append(obj)
        else:
            message = f"{document.location()}: {obj['kind']} {obj['metadata']['name']} is ignored"
            why = "name the Job that it creates instead" if kind in _CREATORS else _UNREAD
            print_text(stderr(), f"{message}: {why}", "yellow")
    if problems or not (gangs or objects):
        raise Failure("\n".join(problems) or _NOTHING, Exit.USAGE)
    loose, others = _split_gangs(objects, names)
    return _Request((*gangs, *loose), tuple(others))


def _split_gangs(objects: Iterable[Raw], names: Sequence[str]) -> tuple[list[_Gang], list[Raw]]:
    """Split objects into gangs (PodGroups and pods without a node) and all other objects."""
    groups: dict[str, Raw] = {}
    pods: dict[str, list[Raw]] = {}
    others: list[Raw] = []
    for obj in objects:
        kind, spec = kind_of(obj), obj.get("spec")
        fields = spec if isinstance(spec, dict) else {}
        if kind == POD_GROUP and isinstance(spec, dict):
            groups[f"{namespace_of(obj)}/{name_of(obj)}"] = obj
        elif kind == POD and fields.get("schedulerName") in names and not fields.get("nodeName"):
            annotations = obj["metadata"].get("annotations") or {}
            group = gang_named_by(annotations, obj["spec"]) or IMPLICIT_PREFIX + name_of(obj)
            pods.setdefault(f"{namespace_of(obj)}/{group}", []).append(obj)
        else:
            others.append(obj)
    keys = dict.fromkeys([*groups, *pods])
    return [_Gang(key, groups.get(key), pods.get(key, [])) for key in keys], others


def _dry_run_request(connection: Connection, request: _Request, cluster: Cluster) -> _Request:
    """Dry-run the objects of a what-if request; return the request as mutated by admission."""
    added, present = (
        {(str(obj.get("kind")), name_of(obj)) for obj in objects}
        for objects in (request.objects, cluster.objects)
    )
    added -= present
    classes = classes_in([*cluster.objects, *request.objects])

    async def dry_run_all(client: Client) -> _Request:
        rejected: dict[str, str] = {}
        objects = [await _dry_run_queue(client, obj, rejected) for obj in request.objects]
        if unused := rejected.keys() - {_find_queue_name(gang) for gang in request.gangs}:
            raise Failure("\n".join(rejected[name] for name in sorted(unused)))
        gangs = [
            replace(gang, rejection=rejected[queue])
            if (queue := _find_queue_name(gang)) in rejected
            else await _dry_run_gang(client, gang, classes, added)
            for gang in request.gangs
        ]
        return _Request(tuple(gangs), tuple(obj for obj in objects if obj is not None))

    needs_dry_run = request.gangs or any(kind_of(obj) == QUEUE for obj in request.objects)
    return call_cluster(connection, dry_run_all) if needs_dry_run else request


async def _dry_run_queue(client: Client, obj: Raw, rejected: dict[str, str]) -> Raw | None:
    """Return a Queue as mutated by admission, and any other object unchanged.

    If the API server rejects the Queue, return None and add the reason to `rejected`, keyed by
    queue name.
    """
    if kind_of(obj) != QUEUE:
        return obj
    run = DryRun(client)
    admitted = await run.create(QUEUE, obj)
    for remark in run.remarks:
        print_text(stderr(), remark, "yellow")
    if run.rejection:
        rejected[name_of(obj)] = run.rejection
        return None
    return {**obj, "spec": admitted.get("spec") or {}}


def _find_queue_name(gang: _Gang) -> str:
    named = gang.job or gang.group or {}
    return str((named.get("spec") or {}).get("queue") or "")


async def _dry_run_gang(
    client: Client, gang: _Gang, classes: Mapping[str, Raw], added: Collection[tuple[str, str]]
) -> _Gang:
    """Dry-run the objects of a gang, and return the gang as mutated by admission.

    `added` holds the kinds and names of objects that the files add to the cluster. The API server
    does not know the added objects, so a gang that names an added object gets no dry run.
    """
    objects = [each for each in (gang.job, gang.group, *gang.pods) if each is not None]
    specs = [obj.get("spec") or {} for obj in objects]
    required = {
        *((NAMESPACE.kind, namespace_of(obj)) for obj in objects),
        *((QUEUE.kind, str(spec.get("queue"))) for spec in specs),
        *((PRIORITY_CLASS.kind, str(spec.get("priorityClassName"))) for spec in specs),
    }
    unknown = sorted(required & set(added))
    if unknown:
        what = " and ".join(" ".join(each) for each in unknown)
        message = f"admission did not check {job_name(gang.key)}: the cluster has no {what} yet"
        print_text(stderr(), message, "yellow")
        return gang
    run = DryRun(client)
    if gang.job is not None and gang.group is not None:
        given = Expanded(dict(gang.group), tuple(dict(pod) for pod in gang.pods), gang.later)
        made = await run.create_job(gang.job, given, classes)
        gang = replace(gang, group=made.group, pods=made.pods, later=made.later)
    else:
        group = None if gang.group is None else await run.create_group(gang.group)
        gang = replace(gang, group=group, pods=await run.create_pods(gang.pods))
    for remark in run.remarks:
        print_text(stderr(), remark, "yellow")
    return replace(gang, rejection=run.rejection, quota=run.quota)


def _check_scheduler(request: _Request, names: Sequence[str]) -> None:
    """Raise `Failure` for a job if no pod of it has a `schedulerName` in `names`."""
    for gang in request.gangs:
        found = sorted({str(pod["spec"].get("schedulerName") or "") for pod in gang.pods})
        is_exempt = gang.job is None or gang.rejection or not found
        if not is_exempt and not set(found) & set(names):
            raise Failure(
                f"Job {job_name(gang.key)}: spec.schedulerName: {found[0]} is none of "
                f"{', '.join(names)}: if optsched has this name, give --scheduler-name {found[0]}",
                Exit.USAGE,
            )


# --- results -------------------------------------------------------------------------------------


def _decide(
    objects: Sequence[Raw], request: _Request, policy: Policy, options: Options
) -> Predictions:
    limits = limits_of(policy, options.time_limit, deterministic=options.deterministic)
    console = stderr()
    with (
        console.status(f"deciding with {policy.name}"),
        session_context(policy, limits, deterministic=options.deterministic) as around,
    ):
        try:
            settings = PredictionSettings(policy, around, options.decoding)
            limited = _limit_by_quotas(objects, request)
            found = predict(objects, limited.request.added, settings)
        except Clash as e:
            raise Failure(str(e), Exit.CONFLICT) from e
    # Print all problems of added objects, but at most `MOST_OTHERS` problems of other objects.
    groups = [gang.group for gang in request.gangs if gang.group is not None]
    added_objects = [
        *request.objects,
        *groups,
        *(pod for gang in request.gangs for pod in gang.pods),
    ]
    requested = {(obj["kind"], f"{namespace_of(obj)}/{name_of(obj)}") for obj in added_objects}
    others: list[ObjectProblem] = []
    for problem in found.problems:
        if (problem.kind, problem.key) in requested:
            print_text(console, str(problem), "yellow")
        else:
            others.append(problem)
    for problem in others[:MOST_OTHERS]:
        print_text(console, str(problem), "yellow")
    if len(others) > MOST_OTHERS:
        more = len(others) - MOST_OTHERS
        print_text(console, f"and {more} more problems with other objects of the cluster", "yellow")
    rejected = [
        Prediction(
            gang.key,
            Start.NEVER,
            len(gang.pods),
            {},
            reason=Reason(ReasonCode.REFUSED, gang.rejection),
        )
        for gang in request.gangs
        if gang.rejection
    ]
    return _apply_quotas(replace(found, added=(*found.added, *rejected)), limited)


@dataclass(frozen=True, slots=True)
class _QuotaResult:
    """A what-if request without the pods that exceed a ResourceQuota.

    Attributes
    ----------
    over
        Keyed by gang: why its minimum exceeds a quota, and whether it would exceed the quota even
        if no other pod counted towards it.
    beyond
        Keyed by gang: why pods beyond its minimum are not created, and its total number of pods.
    """

    request: _Request
    over: Mapping[str, tuple[Reason, bool]]
    beyond: Mapping[str, tuple[Reason, int]]


def _limit_by_quotas(objects: Sequence[Raw], request: _Request) -> _QuotaResult:
    """Check the request's pods against the ResourceQuotas, in order of creation."""
    usage = QuotaUsage([*objects, *request.objects])
    over: dict[str, tuple[Reason, bool]] = {}
    beyond: dict[str, tuple[Reason, int]] = {}
    gangs: list[_Gang] = []
    for gang in request.gangs:
        namespace, minimum = gang.key.partition("/")[0], gang.minimum
        if gang.rejection:
            pass
        elif too_much := usage.add(namespace, minimum):
            over[gang.key] = too_much
        elif gang.quota:
            over[gang.key] = Reason(ReasonCode.QUOTA, gang.quota), False
        else:
            kept, reason = usage.add_fitting(namespace, gang.pods[len(minimum) :])
            if reason is not None:
                beyond[gang.key] = reason, len(gang.pods)
                gang = replace(gang, pods=(*minimum, *kept))
        gangs.append(gang)
    return _QuotaResult(replace(request, gangs=tuple(gangs)), over, beyond)


def _apply_quotas(found: Predictions, limited: _QuotaResult) -> Predictions:
    """Return the predictions, corrected for jobs and pods that exceed a ResourceQuota."""
    predictions = []
    for prediction in found.added:
        if prediction.gang in limited.over and prediction.start is not Start.NEVER:
            reason, never = limited.over[prediction.gang]
            start = Start.NEVER if never else Start.LATER
            prediction = Prediction(prediction.gang, start, prediction.num_pods, {}, reason=reason)
        elif prediction.gang in limited.beyond:
            reason, num_pods = limited.beyond[prediction.gang]
            prediction = replace(prediction, num_pods=num_pods, reason=prediction.reason or reason)
        predictions.append(prediction)
    # If a quota excludes all new pods of an existing PodGroup, `found` has no prediction for it.
    predicted = {prediction.gang for prediction in predictions}
    predictions += [
        Prediction(gang, Start.LATER, num_pods, {}, reason=reason)
        for gang, (reason, num_pods) in limited.beyond.items()
        if gang not in predicted
    ]
    return replace(found, added=tuple(predictions))


def build_document(
    found: Predictions, policy: str, later: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the predictions as JSON data; docs/what-if.md describes the fields."""
    return {
        "apiVersion": "optsched.io/v1alpha1",
        "kind": "WhatIf",
        "takenAt": format_time(found.taken_ms),
        "policy": policy,
        "proved": found.certificate.is_proved,
        "asked": [
            {
                "name": job_name(prediction.gang),
                "starts": prediction.start.value,
                "pods": prediction.num_pods,
                "places": dict(prediction.places),
                "evictions": [
                    {"pod": v.pod, "node": v.node, "of": v.gang, "action": v.action}
                    for v in prediction.victims
                ],
                "reason": prediction.reason
                and {"code": prediction.reason.code.value, "message": prediction.reason.message},
                "expectedStart": prediction.expected and format_time(prediction.expected.start_ms),
                "isEarliest": prediction.expected is not None and prediction.expected.is_open,
                "laterTasks": list(later.get(prediction.gang, ())),
            }
            for prediction in found.added
        ],
        "startsNoMore": list(found.starts_no_more),
        "startsToo": list(found.starts_too),
    }


def job_name(gang: str) -> str:
    """Return the job name that a hypothetical gang's key contains."""
    return gang.removesuffix(f"-{UID}")


def _format_row(prediction: Prediction, *, wide: bool) -> tuple[str, ...]:
    victims = (
        _count_names(victim.gang or victim.pod for victim in prediction.victims)
        if not wide
        else [v.pod for v in prediction.victims]
    )
    start = _NONE
    if prediction.expected is not None:
        text = format_time(prediction.expected.start_ms)
        start = f"after {text}" if prediction.expected.is_open else text
    nodes = [f"{pod}={node}" for pod, node in sorted(prediction.places.items())] if wide else None
    return (
        job_name(prediction.gang),
        _WORDS[prediction.start],
        f"{len(prediction.places)}/{prediction.num_pods}",
        ", ".join(_count_names(prediction.places.values()) if nodes is None else nodes) or _NONE,
        ", ".join(victims) or _NONE,
        start,
        str(prediction.reason) if prediction.reason is not None else _NONE,
    )


def _count_names(names: Iterable[str]) -> list[str]:
    counts = sorted(Counter(names).items())
    return [f"{name} ×{number}" if number > 1 else name for name, number in counts]
