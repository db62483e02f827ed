"""Validation of JobFlows and JobTemplates.

Source: pkg/webhooks/admission/jobflows. Unlike in Volcano, patches and templates are also
validated. Otherwise, errors in them would appear only when the job is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.job_defaults import fill_in
from optsched.admission.job_rules import check_job_spec, find_cycle
from optsched.admission.jobs import as_parsed, name_of
from optsched.admission.limits import MAX_FLOWS, check_count
from optsched.admission.queue_access import check_access
from optsched.admission.review import Action
from optsched.api.crds import job_spec_schema
from optsched.api.fields import Fields
from optsched.api.job import read_job_spec
from optsched.api.jobflow import parse_jobflow

if TYPE_CHECKING:
    from optsched.admission.findings import Review
    from optsched.api.jobflow import Flow
    from optsched.units import FieldError

_NOT_DAG: Final = "jobflow flow is not dag"


def validate(review: Review) -> None:
    """Deny a JobFlow that could never finish; always allow metadata-only updates."""
    if review.request.action is Action.DELETE or not review.is_spec_changed:
        return
    flow, errors = parse_jobflow(as_parsed(review.request))
    review.errors(errors)
    if flow is None:
        return
    check_count("spec.flows", len(flow.flows), MAX_FLOWS, review)
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
    """Deny an invalid JobTemplate; its queue may be created later."""
    if review.request.action is Action.DELETE or not review.is_spec_changed:
        return
    filled = fill_in(get_mapping(review.request.obj, "spec"), review.settings, Findings())
    job = check_job_spec(filled, name_of(review.request), review)
    queue = review.world.queue(job.queue)
    if queue is None:
        review.warn(
            f"spec.queue: there is no queue {job.queue}; jobs can be created once it exists"
        )
    else:
        check_access(queue, review)


def _check_order(flows: tuple[Flow, ...], findings: Findings) -> None:
    """Check that all dependency targets exist and that the dependencies have no cycle.

    If several flows have the same name, only the last one is checked, as in Volcano.
    """
    waits: dict[str, tuple[str, ...]] = {flow.name: flow.targets for flow in flows}
    known = list(waits)
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
                    f"flow {target}; flows are {', '.join(known)}"
                )
    cycle = find_cycle(waits)
    if cycle:
        findings.deny(f"{_NOT_DAG}: spec.flows: {' waits for '.join(cycle)}; remove one target")
