"""Validation of the schedules and job templates of CronJobs.

Source: pkg/webhooks/admission/cronjobs. Unlike in Volcano, the job template is also validated.
Otherwise, errors in the template would appear only when the first job is created.
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
from optsched.admission.submitters import check_template
from optsched.api.jobflow import parse_cronjob
from optsched.units.cron import CronError, parse_timetable

if TYPE_CHECKING:
    from optsched.admission.findings import Review

_MAX_NAME: Final = 52
"""Maximum length of a CronJob's name; the names of its jobs append a dash and ten digits."""
_SUFFIX: Final = "-0000000000"
_TEMPLATE: Final = "spec.jobTemplate.spec"


def validate(review: Review) -> None:
    """Deny a CronJob that could not create jobs; always allow metadata-only updates."""
    if review.request.action is Action.DELETE or not review.is_spec_changed:
        return
    obj = as_parsed(review.request)
    cron, errors = parse_cronjob(obj)
    review.errors(error for error in errors if not error.path.startswith(f"{_TEMPLATE}."))
    if cron is None:
        return
    if len(cron.meta.name) > _MAX_NAME:
        review.deny(
            f"cronJob name must be no more than {_MAX_NAME} characters to accommodate job name "
            f"suffix (max {names.MAX_LABEL} total): metadata.name has {len(cron.meta.name)}; "
            "shorten it"
        )
    if not cron.schedule:
        review.deny(
            "schedule is required, but got empty: spec.schedule; write one such as */5 * * * *"
        )
    elif "TZ" in cron.schedule:
        review.deny(
            "schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone "
            f"field: spec.schedule: {cron.schedule}; write the zone into spec.timeZone"
        )
    else:
        try:
            parse_timetable(cron.schedule)
        except CronError as error:
            review.deny(f"schedule is not a valid cron expression: spec.schedule: {error}")
    _check_zone(get_mapping(obj, "spec").get("timeZone"), review)
    template = get_mapping(get_mapping(obj, "spec"), "jobTemplate")
    check_template(template.get("metadata"), "spec.jobTemplate.metadata", review)
    filled = fill_in(dict(cron.template.spec), review.settings, Findings())
    name = f"{cron.meta.name[:_MAX_NAME]}{_SUFFIX}"
    job = check_job_spec(filled, name, review, _TEMPLATE)
    queue = review.world.queue(job.queue)
    if queue is None:
        review.warn(
            f"{_TEMPLATE}.queue: there is no queue {job.queue}; jobs can be created once it exists"
        )
    else:
        check_access(queue, review)


def _check_zone(zone: object, review: Review) -> None:
    if zone is None or not isinstance(zone, str):
        return
    if not zone:
        review.deny(
            "timeZone must be nil or non-empty string, got empty string: spec.timeZone; "
            "leave it out, or write one such as Asia/Shanghai"
        )
    elif zone.lower() == "local":
        review.deny(
            "timeZone can't be Local, and must be defined in https://www.iana.org/time-zones: "
            f"spec.timeZone: {zone}; write one such as Asia/Shanghai"
        )
    elif review.settings.zones is not None and zone not in review.settings.zones:
        review.deny(f"unknown timeZone: spec.timeZone: {zone}; write one such as Asia/Shanghai")
