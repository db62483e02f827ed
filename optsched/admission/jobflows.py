"""Validation of the kinds from which controllers create jobs: JobFlow, JobTemplate and CronJob.

Source: pkg/webhooks/admission/jobflows and cronjobs. Unlike in Volcano, patches and job templates
are also validated. Otherwise, errors in patches and templates would appear only when a controller
creates the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission import names
from optsched.admission.findings import MAX_FLOWS, Findings, get_mapping
from optsched.admission.job_defaults import fill_in
from optsched.admission.job_rules import check_job_spec, find_cycle
from optsched.admission.jobs import as_parsed, name_of
from optsched.admission.submitters import check_access
from optsched.api.crds import job_spec_schema
from optsched.api.fields import Fields
from optsched.api.job import read_job_spec
from optsched.api.jobflow import parse_cronjob, parse_jobflow
from optsched.api.json_fields import annotations_of
from optsched.api.wellknown import SUBMITTER
from optsched.units.cron import CronError, parse_timetable

if TYPE_CHECKING:
    from optsched.admission.findings import Review
    from optsched.admission.review import Raw
    from optsched.api.jobflow import Flow
    from optsched.units import FieldError

_NOT_DAG: Final = "jobflow flow is not dag"
_MAX_NAME: Final = 52
"""Maximum length of a CronJob's name; the names of its jobs add a dash and ten digits."""
_SUFFIX: Final = "-0000000000"
_TEMPLATE: Final = "spec.jobTemplate.spec"


def validate(review: Review) -> None:
    """Deny a JobFlow that could never finish; always allow updates that change only metadata."""
    if not review.is_spec_changed:
        return
    flow, errors = parse_jobflow(as_parsed(review.request))
    review.errors(errors)
    if flow is None:
        return
    review.check_count("spec.flows", len(flow.flows), MAX_FLOWS)
    _check_order(flow.flows, review)
    for index, each in enumerate(flow.flows):
        patch_errors: list[FieldError] = []
        path = f"spec.flows[{index}].patch.jobSpec"
        read_job_spec(Fields(dict(each.patch), job_spec_schema(), path, patch_errors))
        review.errors(error for error in patch_errors if error.value is not None)
        queue_name = review.world.template_queue(review.request.namespace, each.name)
        if queue_name is None:
            review.warn(
                f"spec.flows[{index}].name: there is no JobTemplate {each.name}; "
                "the job waits for this template"
            )
        queue = review.world.queue(str(each.patch.get("queue") or queue_name or ""))
        if queue is not None:
            check_access(queue, review)


def validate_template(review: Review) -> None:
    """Deny an invalid JobTemplate; always allow updates that change only metadata."""
    if not review.is_spec_changed:
        return
    filled = fill_in(get_mapping(review.request.obj, "spec"), review.settings, Findings())
    _check_template(filled, name_of(review.request), "spec", review)


def _check_template(spec: Raw, job: str, path: str, review: Review) -> None:
    """Deny an invalid job template; the queue that the template names need not exist yet.

    `job` is the longest name that a job created from the template can have. `path` is the path of
    the job's spec in messages.
    """
    queue_name = check_job_spec(spec, job, review, path).queue
    queue = review.world.queue(queue_name)
    if queue is None:
        review.warn(
            f"{path}.queue: there is no queue {queue_name}; jobs can be created once it exists"
        )
    else:
        check_access(queue, review)


def _check_order(flows: tuple[Flow, ...], findings: Findings) -> None:
    """Check that all dependency targets exist and that the dependencies have no cycle.

    If several flows have the same name, only the last one is checked, as in Volcano.
    """
    waits: dict[str, tuple[str, ...]] = {flow.name: flow.targets for flow in flows}
    flow_names = list(waits)
    last = {flow.name: index for index, flow in enumerate(flows)}
    for index, flow in enumerate(flows):
        if index != last[flow.name]:
            findings.warn(
                f"duplicated flow name {flow.name}: spec.flows[{index}].name; only one job is "
                "created, as soon as all targets of one of these flows are completed"
            )
            continue
        for position, target in enumerate(flow.targets):
            if target not in waits:
                findings.deny(
                    f"{_NOT_DAG}: spec.flows[{index}].dependsOn.targets[{position}]: there is no "
                    f"flow {target}; flows are {', '.join(flow_names)}"
                )
    cycle = find_cycle(waits)
    if cycle:
        findings.deny(f"{_NOT_DAG}: spec.flows: {' waits for '.join(cycle)}; remove one target")


def validate_cronjob(review: Review) -> None:
    """Deny a CronJob that could not create jobs; always allow updates that change only metadata."""
    if not review.is_spec_changed:
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
    if SUBMITTER in annotations_of(template):
        review.deny(
            f"spec.jobTemplate.metadata.annotations[{SUBMITTER}]: Forbidden: only admission may "
            "write it; leave it out"
        )
    filled = fill_in(dict(cron.template.spec), review.settings, Findings())
    name = f"{cron.meta.name[:_MAX_NAME]}{_SUFFIX}"
    _check_template(filled, name, _TEMPLATE, review)


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
