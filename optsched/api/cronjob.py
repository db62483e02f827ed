"""CronJob: jobs made by a timetable, read from `batch.volcano.sh/v1alpha1`.

Source of names, defaults and limits: Volcano's batch/v1alpha1/job.go. What the schedule means is
told where the next time is reckoned, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from optsched.api.fields import Fields
from optsched.api.job import JobSpec, read_job_spec
from optsched.api.job_schemas import CRON_JOB_SCHEMA
from optsched.api.meta import parse_meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError


class ConcurrencyPolicy(StrEnum):
    """Whether jobs of one CronJob may run beside each other."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that has not ended; the fields of a core/v1 ObjectReference."""

    name: str
    namespace: str = ""
    uid: str = ""
    kind: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


@dataclass(frozen=True, slots=True)
class CronJob:
    """Jobs made by a timetable.

    time_zone: empty where nothing is written. starting_deadline_s: seconds by which a job may be
    late, or None. template: the spec as it stands, for the jobs that are made; `job`: the same,
    read. last_schedule_ms, last_success_ms: milliseconds since 1970, or None. errors: fields that
    cannot be read, at their defaults.
    """

    meta: ObjectMeta
    schedule: str = ""
    time_zone: str = ""
    starting_deadline_s: int | None = None
    concurrency: ConcurrencyPolicy = ConcurrencyPolicy.ALLOW
    suspended: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    job: JobSpec = field(default_factory=JobSpec)
    num_successful_kept: int = 3
    num_failed_kept: int = 1
    active: tuple[ActiveJob, ...] = ()
    last_schedule_ms: int | None = None
    last_success_ms: int | None = None
    errors: tuple[FieldError, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.meta.key


def parse_cronjob(obj: object) -> tuple[CronJob | None, tuple[FieldError, ...]]:
    """The CronJob in a manifest or an answer of the API server, and all that is wrong with it.

    None only for an object without a name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, CRON_JOB_SCHEMA, "", errors)
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
        labels=template_meta.texts_by_name("labels"),
        annotations=template_meta.texts_by_name("annotations"),
        template=template.mapping("spec"),
        job=read_job_spec(template.record("spec")),
        num_successful_kept=spec.integer("successfulJobsHistoryLimit"),
        num_failed_kept=spec.integer("failedJobsHistoryLimit"),
        active=tuple(_active(each) for each in status.records("active")),
        last_schedule_ms=status.time_ms("lastScheduleTime"),
        last_success_ms=status.time_ms("lastSuccessfulTime"),
        errors=tuple(errors),
    )
    return found, found.errors


def _active(reference: Fields) -> ActiveJob:
    return ActiveJob(
        name=reference.text("name"),
        namespace=reference.text("namespace"),
        uid=reference.text("uid"),
        kind=reference.text("kind"),
        api_version=reference.text("apiVersion"),
        resource_version=reference.text("resourceVersion"),
        field_path=reference.text("fieldPath"),
    )
