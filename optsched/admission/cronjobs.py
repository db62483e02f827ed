"""CronJobs: their timetable can be read, and the jobs they make would be taken.

Source: pkg/webhooks/admission/cronjobs. This project checks the job inside too: its mistakes would
show only once the first job is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission import names
from optsched.admission.findings import Findings, get_mapping
from optsched.admission.job_defaults import fill_in
from optsched.admission.job_rules import check_job_spec
from optsched.admission.jobs import as_parsed
from optsched.admission.queue_access import check_access
from optsched.admission.review import Action
from optsched.admission.submitters import check_template, record_submitter
from optsched.api.jobflow import parse_cronjob
from optsched.units.cron import CronError, parse_timetable

if TYPE_CHECKING:
    from optsched.admission.review import Request, Response
    from optsched.admission.world import Settings, World
    from optsched.api.jobflow import CronJob

_MAX_NAME: Final = 52
"""Job names are made of it, a dash and ten digits."""
_SUFFIX: Final = "-0000000000"
_TEMPLATE: Final = "spec.jobTemplate.spec"


def mutate(request: Request, world: World, settings: Settings) -> Response:
    """Record who submits a CronJob: its jobs are created on that user's behalf."""
    del world
    findings = Findings()
    is_changed = (request.old or {}).get("spec") != (request.obj or {}).get("spec")
    record_submitter(request, settings, findings, is_changed=is_changed)
    return findings.response()


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Deny a CronJob that could not create jobs; updates of metadata alone are allowed."""
    findings = Findings()
    is_new = (request.old or {}).get("spec") != (request.obj or {}).get("spec")
    if request.action is Action.DELETE or not is_new:
        return findings.response()
    obj = as_parsed(request)
    cron, errors = parse_cronjob(obj)
    findings.errors(error for error in errors if not error.path.startswith(f"{_TEMPLATE}."))
    if cron is None:
        return findings.response()
    if len(cron.meta.name) > _MAX_NAME:
        findings.deny(
            f"cronJob name must be no more than {_MAX_NAME} characters to accommodate job name "
            f"suffix (max {names.MAX_LABEL} total): metadata.name has {len(cron.meta.name)}; "
            "shorten it"
        )
    _check_schedule(cron, findings)
    _check_zone(get_mapping(obj, "spec").get("timeZone"), settings, findings)
    template = get_mapping(get_mapping(obj, "spec"), "jobTemplate")
    check_template(template.get("metadata"), "spec.jobTemplate.metadata", findings)
    _check_job(cron, request, (world, settings), findings)
    return findings.response()


def _check_schedule(cron: CronJob, findings: Findings) -> None:
    if not cron.schedule:
        findings.deny(
            "schedule is required, but got empty: spec.schedule; write one such as */5 * * * *"
        )
    elif "TZ" in cron.schedule:
        findings.deny(
            "schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone "
            f"field: spec.schedule: {cron.schedule}; write the zone into spec.timeZone"
        )
    else:
        try:
            parse_timetable(cron.schedule)
        except CronError as error:
            findings.deny(f"schedule is not a valid cron expression: spec.schedule: {error}")


def _check_zone(zone: object, settings: Settings, findings: Findings) -> None:
    if zone is None or not isinstance(zone, str):
        return
    if not zone:
        findings.deny(
            "timeZone must be nil or non-empty string, got empty string: spec.timeZone; "
            "leave it out, or write one such as Asia/Shanghai"
        )
    elif zone.lower() == "local":
        findings.deny(
            "timeZone can't be Local, and must be defined in https://www.iana.org/time-zones: "
            f"spec.timeZone: {zone}; write one such as Asia/Shanghai"
        )
    elif settings.zones is not None and zone not in settings.zones:
        findings.deny(f"unknown timeZone: spec.timeZone: {zone}; write one such as Asia/Shanghai")


def _check_job(
    cron: CronJob, request: Request, around: tuple[World, Settings], findings: Findings
) -> None:
    world, settings = around
    filled = fill_in(dict(cron.template), settings, Findings())
    name = f"{cron.meta.name[:_MAX_NAME]}{_SUFFIX}"
    job = check_job_spec(filled, name, request, around, findings, _TEMPLATE)
    queue = world.queue(job.queue)
    if queue is None:
        findings.warn(
            f"{_TEMPLATE}.queue: there is no queue {job.queue}; no job can be made until it is"
        )
    else:
        check_access(queue, request, settings, findings)
