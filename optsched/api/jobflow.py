"""JobFlows, JobTemplates and CronJobs: the kinds from which controllers create jobs.

Field names and limits are from Volcano's flow/v1alpha1/jobflow_types.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from optsched.api import kinds
from optsched.api.crds import schema_of
from optsched.api.fields import Fields
from optsched.api.job import JobPhase, JobSpec, read_job_spec, task_counts
from optsched.api.meta import ApiObject, parse_meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.units import FieldError


class RetainPolicy(StrEnum):
    """Whether a JobFlow keeps or deletes its jobs after all of them complete."""

    RETAIN = "retain"
    DELETE = "delete"


class FlowPhase(StrEnum):
    """The phase of a JobFlow."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEED = "Succeed"
    FAILED = "Failed"
    TERMINATING = "Terminating"


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """An HTTP GET request that a task's pods must answer; `header` is a (name, value) pair."""

    task: str
    path: str
    port: int
    header: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """A TCP port that a task's pods must have open."""

    task: str
    port: int


@dataclass(frozen=True, slots=True)
class TaskProbe:
    """A pod phase that the pods of a task must have reached."""

    task: str
    phase: str


@dataclass(frozen=True, slots=True)
class Probes:
    """Probes of the jobs on which a job depends.

    Once all probes pass, the dependent job may start before the probed jobs have completed.
    """

    http: tuple[HttpProbe, ...] = ()
    tcp: tuple[TcpProbe, ...] = ()
    tasks: tuple[TaskProbe, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """A job of a JobFlow; `name` is its JobTemplate, and `patch` overrides template fields."""

    name: str
    targets: tuple[str, ...] = ()
    probes: Probes = Probes()
    patch: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FlowJobHistory:
    """One phase in the history of a JobFlow's job; times are in ms since 1970, or None."""

    phase: JobPhase | None
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FlowJob:
    """The stored status of one job of a JobFlow; times are in ms since 1970, or None."""

    name: str
    phase: JobPhase | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    num_restarts: int = 0
    history: tuple[FlowJobHistory, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowCondition:
    """The stored condition of one job of a JobFlow."""

    phase: JobPhase | None
    created_ms: int | None = None
    running_duration_ms: int | None = None
    task_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFlowStatus:
    """The stored status of a JobFlow; fields `pending` to `unknown` hold job names."""

    phase: FlowPhase = FlowPhase.PENDING
    is_new: bool = True
    pending: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    terminated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    jobs: tuple[FlowJob, ...] = ()
    conditions: Mapping[str, FlowCondition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFlow(ApiObject):
    """A graph of dependent jobs."""

    flows: tuple[Flow, ...] = ()
    retain: RetainPolicy = RetainPolicy.RETAIN
    status: JobFlowStatus = JobFlowStatus()


def parse_jobflow(obj: object) -> tuple[JobFlow | None, tuple[FieldError, ...]]:
    """Parse a JobFlow from a manifest or API object; return it with its field errors.

    The JobFlow is None only if the object has no name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.JOB_FLOW), "", errors)
    spec, status = whole.record("spec"), _status(whole.record("status"))
    found = JobFlow(
        meta=meta,
        flows=tuple(_flow(each) for each in spec.records("flows")),
        retain=RetainPolicy(spec.text("jobRetainPolicy") or RetainPolicy.RETAIN),
        status=status,
        errors=tuple(errors),
    )
    return found, found.errors


def _flow(flow: Fields) -> Flow:
    depends_on, name = flow.record("dependsOn"), flow.text("name")
    targets, probe = depends_on.texts("targets"), depends_on.record("probe")
    http: list[HttpProbe] = []
    for request in probe.records("httpGetList"):
        header = request.record("httpHeader")
        http.append(
            HttpProbe(
                task=request.text("taskName"),
                path=request.text("path"),
                port=request.integer("port"),
                header=(header.text("name"), header.text("value")),
            )
        )
    probes = Probes(
        http=tuple(http),
        tcp=tuple(
            TcpProbe(each.text("taskName"), each.integer("port"))
            for each in probe.records("tcpSocketList")
        ),
        tasks=tuple(
            TaskProbe(each.text("taskName"), each.text("phase"))
            for each in probe.records("taskStatusList")
        ),
    )
    return Flow(name, targets, probes, patch=flow.record("patch").mapping("jobSpec"))


def _status(status: Fields) -> JobFlowStatus:
    phase = status.record("state").text("phase")
    return JobFlowStatus(
        phase=FlowPhase(phase or FlowPhase.PENDING),
        is_new=not phase,
        pending=status.texts("pendingJobs"),
        running=status.texts("runningJobs"),
        failed=status.texts("failedJobs"),
        completed=status.texts("completedJobs"),
        terminated=status.texts("terminatedJobs"),
        unknown=status.texts("unKnowJobs"),
        jobs=tuple(
            FlowJob(
                name=job.text("name"),
                phase=_phase(job.text("state")),
                start_ms=job.time_ms("startTimestamp"),
                end_ms=job.time_ms("endTimestamp"),
                num_restarts=job.integer("restartCount"),
                history=tuple(
                    FlowJobHistory(
                        _phase(each.text("state")),
                        each.time_ms("startTimestamp"),
                        each.time_ms("endTimestamp"),
                    )
                    for each in job.records("runningHistories")
                ),
            )
            for job in status.records("jobStatusList")
        ),
        conditions={
            name: FlowCondition(
                phase=_phase(each.text("phase")),
                created_ms=each.time_ms("createTime"),
                running_duration_ms=each.duration_ms("runningDuration"),
                task_counts=task_counts(each),
            )
            for name, each in status.records_by_name("conditions")
        },
    )


def _phase(text: str) -> JobPhase | None:
    return JobPhase(text) if text else None


# --- jobtemplate ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobTemplate(ApiObject):
    """A template from which JobFlows create jobs.

    `template` is the unparsed spec, which is copied into created jobs; `job` is the parsed spec.
    `jobs` holds the names of the created jobs, read from the stored status.
    """

    template: Mapping[str, Any] = field(default_factory=dict)
    job: JobSpec = field(default_factory=JobSpec)
    jobs: tuple[str, ...] = ()


def parse_jobtemplate(obj: object) -> tuple[JobTemplate | None, tuple[FieldError, ...]]:
    """Parse a JobTemplate from a manifest or API object; return it with its field errors.

    The JobTemplate is None only if the object has no name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.JOB_TEMPLATE), "", errors)
    found = JobTemplate(
        meta=meta,
        template=whole.mapping("spec"),
        job=read_job_spec(whole.record("spec")),
        jobs=whole.record("status").texts("jobDependsOnList"),
        errors=tuple(errors),
    )
    return found, found.errors


# --- cronjob --------------------------------------------------------------------------------------


class ConcurrencyPolicy(StrEnum):
    """What a CronJob does if its next job is due while an earlier job is still running."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A reference to an unfinished job, with the fields of a core/v1 ObjectReference."""

    name: str
    namespace: str = ""
    uid: str = ""
    kind: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


@dataclass(frozen=True, slots=True)
class CronJobTemplate:
    """The labels, annotations and spec of the jobs that a CronJob creates.

    `spec` is the unparsed spec, which is copied into created jobs; `job` is the parsed spec.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    job: JobSpec = field(default_factory=JobSpec)


@dataclass(frozen=True, slots=True)
class CronJob(ApiObject):
    """A CronJob, which creates jobs on a schedule.

    `time_zone` is empty if the field is absent. A job that is more than `starting_deadline_s`
    seconds late is not created; None means no limit. `last_schedule_ms` and `last_success_ms` are
    in milliseconds since 1970, or None.
    """

    schedule: str = ""
    time_zone: str = ""
    starting_deadline_s: int | None = None
    concurrency: ConcurrencyPolicy = ConcurrencyPolicy.ALLOW
    suspended: bool = False
    template: CronJobTemplate = field(default_factory=CronJobTemplate)
    num_successful_kept: int = 3
    num_failed_kept: int = 1
    active: tuple[ActiveJob, ...] = ()
    last_schedule_ms: int | None = None
    last_success_ms: int | None = None


def parse_cronjob(obj: object) -> tuple[CronJob | None, tuple[FieldError, ...]]:
    """Parse a CronJob from a manifest or API object; return it with its field errors.

    The CronJob is None only if the object has no name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.CRON_JOB), "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    template = spec.record("jobTemplate")
    template_meta = template.record("metadata")
    found = CronJob(
        meta=meta,
        schedule=spec.text("schedule"),
        time_zone=spec.text("timeZone"),
        starting_deadline_s=spec.optional_integer("startingDeadlineSeconds"),
        concurrency=ConcurrencyPolicy(spec.text("concurrencyPolicy")),
        suspended=spec.boolean("suspend"),
        template=CronJobTemplate(
            labels=template_meta.texts_by_name("labels"),
            annotations=template_meta.texts_by_name("annotations"),
            spec=template.mapping("spec"),
            job=read_job_spec(template.record("spec")),
        ),
        num_successful_kept=spec.integer("successfulJobsHistoryLimit"),
        num_failed_kept=spec.integer("failedJobsHistoryLimit"),
        active=tuple(
            ActiveJob(
                name=each.text("name"),
                namespace=each.text("namespace"),
                uid=each.text("uid"),
                kind=each.text("kind"),
                api_version=each.text("apiVersion"),
                resource_version=each.text("resourceVersion"),
                field_path=each.text("fieldPath"),
            )
            for each in status.records("active")
        ),
        last_schedule_ms=status.time_ms("lastScheduleTime"),
        last_success_ms=status.time_ms("lastSuccessfulTime"),
        errors=tuple(errors),
    )
    return found, found.errors
