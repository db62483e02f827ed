"""Jobs: defaults on creation, validation on creation and update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.job_defaults import fill_in, refill
from optsched.admission.job_rules import check_job_spec, check_task_minimum, check_totals
from optsched.admission.queue_access import JOB, check_access, check_leaf, check_queue
from optsched.admission.review import Action
from optsched.admission.spec_difference import declares_field, find_difference
from optsched.admission.submitters import record_submitter
from optsched.admission.tenant_rules import (
    check_annotations,
    check_owner,
    check_priority,
    check_templates,
    warn_of_lift,
)
from optsched.api.job import parse_job
from optsched.api.json_fields import records
from optsched.api.kinds import CRON_JOB, JOB_FLOW
from optsched.units.unit_errors import quote

if TYPE_CHECKING:
    from optsched.admission.findings import Review
    from optsched.admission.review import Raw, Request

_MAY_CHANGE: Final = ("minAvailable", "priorityClassName")
_MAY_CHANGE_IN_TASKS: Final = ("replicas", "minAvailable")
_FIXED: Final = (
    "job updates may not change fields other than minAvailable, tasks[*].replicas under spec "
    "and PriorityClassName"
)


def mutate(review: Review) -> None:
    """Set a new job's defaults, or restore the defaults that an update dropped."""
    old, spec = get_mapping(review.request.old, "spec"), (review.request.obj or {}).get("spec")
    is_changed = isinstance(spec, dict) and find_difference(old, spec) is not None
    if isinstance(spec, dict) and review.request.action is Action.CREATE:
        fill_in(spec, review.settings, review)
    elif isinstance(spec, dict) and is_changed:
        is_whole = declares_field(review.request, "minAvailable") is False
        filled = refill(old, spec, review.settings, review, is_whole=is_whole)
        # A user who only scales down a job does not become its submitter, because `validate` does
        # not check that this user may use the queue.
        is_changed = find_difference(old, filled) is not None and not _only_shrinks(old, filled)
    record_submitter(review, is_changed=is_changed)


def validate(review: Review) -> None:
    """Deny a job that could never run, or an update that changes an immutable field."""
    if review.request.action is not Action.DELETE:
        check_annotations(review, "tasks")
        check_owner(review, CRON_JOB, JOB_FLOW)
        name = get_mapping(review.request.obj, "spec").get("priorityClassName")
        if name != get_mapping(review.request.old, "spec").get("priorityClassName"):
            check_priority(name, review)
        if review.request.action is Action.CREATE and _has_other_classes(review.request, name):
            warn_of_lift(name, review)
    if review.request.action is Action.CREATE:
        check_templates(review)
        spec = check_job_spec(
            get_mapping(review.request.obj, "spec"), name_of(review.request), review
        )
        queue = check_queue(spec.queue, JOB, review)
        if queue is not None:
            check_leaf(queue, review)
    elif review.request.action is Action.UPDATE:
        _check_change(review)


def _has_other_classes(request: Request, name: object) -> bool:
    """Return whether a task names a different PriorityClass than its job."""
    templates = (
        get_mapping(task, "template") for task in records(get_mapping(request.obj, "spec"), "tasks")
    )
    named = (get_mapping(template, "spec").get("priorityClassName") for template in templates)
    return any(each and each != name for each in named)


def name_of(request: Request) -> str:
    """Return the object's name, or a placeholder with the length of its generated name."""
    meta = get_mapping(request.obj, "metadata")
    made_up = f"{meta.get('generateName') or ''}xxxxx"
    return request.name or str(meta.get("name") or made_up)


def as_parsed(request: Request) -> Raw:
    """Return the requested object as parsers expect it: with a name and without status."""
    obj = {name: part for name, part in (request.obj or {}).items() if name != "status"}
    return {**obj, "metadata": {**get_mapping(obj, "metadata"), "name": name_of(request)}}


def _check_change(review: Review) -> None:
    old, new = get_mapping(review.request.old, "spec"), get_mapping(review.request.obj, "spec")
    if find_difference(old, new) is None:
        return
    job, errors = parse_job(as_parsed(review.request))
    review.errors(errors)
    if job is None or review.has_problems:
        return
    check_totals(job.spec, "spec", review)
    for index, task in enumerate(job.spec.tasks):
        check_task_minimum(task, job.meta.name, f"spec.tasks[{index}]", review)
    num_old, num_new = (len(records(spec, "tasks")) for spec in (old, new))
    if num_old != num_new:
        review.deny(
            f"job updates may not add or remove tasks: spec.tasks had {num_old}, the update has "
            f"{num_new}; create another job"
        )
        return
    # If a manifest without the defaults is applied again, admission sets them again. A missing
    # default is therefore no change.
    before, after = (
        _immutable_fields(fill_in(spec, review.settings, Findings())) for spec in (old, new)
    )
    found = find_difference(before, after)
    if found:
        path, was, is_new = found
        review.deny(f"{_FIXED}: {path} was {quote(was)}, the update has {quote(is_new)}")
    queue = review.world.queue(job.spec.queue)
    if queue is not None and not _only_shrinks(old, new):
        check_access(queue, review)


def _only_shrinks(old: Raw, new: Raw) -> bool:
    """Return whether a job update increases no pod count and keeps the PriorityClass."""
    if find_difference(old.get("priorityClassName"), new.get("priorityClassName")) is not None:
        return False
    pairs = [
        (old, new),
        *zip(records(old, "tasks"), records(new, "tasks"), strict=False),
    ]
    return all(
        _read_count(after.get(name)) <= _read_count(before.get(name))
        for before, after in pairs
        for name in ("replicas", "minAvailable")
    )


def _read_count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _immutable_fields(spec: Raw) -> Raw:
    """Return the fields of a job's spec that an update must not change."""
    kept = {name: value for name, value in spec.items() if name not in _MAY_CHANGE}
    tasks = [
        {name: value for name, value in task.items() if name not in _MAY_CHANGE_IN_TASKS}
        for task in records(spec, "tasks")
    ]
    # The controller writes `volumeClaimName` for each claim that it creates.
    volumes = [
        {
            name: value
            for name, value in volume.items()
            if name != "volumeClaimName" or volume.get("volumeClaim") is None
        }
        for volume in records(spec, "volumes")
    ]
    return {**kept, "tasks": tasks, "volumes": volumes}
