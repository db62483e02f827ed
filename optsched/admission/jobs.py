"""Jobs: filled in when they are made, looked at then and when they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.admission.applied import declares
from optsched.admission.findings import Findings, part
from optsched.admission.job_defaults import fill_in, refill
from optsched.admission.job_rules import check_job_spec, check_task_minimum, check_totals
from optsched.admission.queue_access import JOB, check_access, check_leaf, check_queue
from optsched.admission.review import Action
from optsched.admission.sameness import difference
from optsched.admission.submitters import record_submitter
from optsched.admission.tenant_rules import check_annotations, check_priority, warn_of_lift
from optsched.api.job import parse_job
from optsched.units.errors import shown

if TYPE_CHECKING:
    from optsched.admission.review import Raw, Request, Response
    from optsched.admission.world import Settings, World
    from optsched.api.job import JobSpec

_MAY_CHANGE: Final = ("minAvailable", "priorityClassName")
_MAY_CHANGE_IN_TASKS: Final = ("replicas", "minAvailable")
_FIXED: Final = (
    "job updates may not change fields other than minAvailable, tasks[*].replicas under spec "
    "and PriorityClassName"
)


def mutate(request: Request, world: World, settings: Settings) -> Response:
    """Fill in a job that is to be made, or what a change of it has left out."""
    del world
    findings = Findings()
    old, spec = part(request.old, "spec"), (request.obj or {}).get("spec")
    is_changed = isinstance(spec, dict) and difference(old, spec) is not None
    if isinstance(spec, dict) and request.action is Action.CREATE:
        fill_in(spec, settings, findings)
    elif isinstance(spec, dict) and is_changed:
        is_whole = declares(request, "minAvailable") is False
        filled = refill(old, spec, settings, findings, is_whole=is_whole)
        is_changed = difference(old, filled) is not None
    record_submitter(request, settings, findings, is_changed=is_changed)
    return findings.response()


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Whether a job may be made, or changed."""
    findings = Findings()
    if request.action is not Action.DELETE:
        check_annotations(request, settings, findings, "tasks")
        name = part(request.obj, "spec").get("priorityClassName")
        if name != part(request.old, "spec").get("priorityClassName"):
            check_priority(name, request, settings, findings)
        if request.action is Action.CREATE and _has_other_classes(request, name):
            warn_of_lift(name, settings, findings)
    if request.action is Action.CREATE:
        _check_new(request, world, settings, findings)
    elif request.action is Action.UPDATE:
        _check_change(request, (world, settings), findings)
    return findings.response()


def _has_other_classes(request: Request, name: object) -> bool:
    """Whether a task names another PriorityClass than its job; pods of the others inherit it."""
    templates = (part(task, "template") for task in _records(part(request.obj, "spec"), "tasks"))
    named = (part(template, "spec").get("priorityClassName") for template in templates)
    return any(each and each != name for each in named)


def name_of(request: Request) -> str:
    """The object's name; one that the server makes up is taken as long as it will be."""
    meta = part(request.obj, "metadata")
    made_up = f"{meta.get('generateName') or ''}xxxxx"
    return request.name or str(meta.get("name") or made_up)


def as_parsed(request: Request) -> Raw:
    """The object as its parser wants it: with a name, and without what controllers wrote."""
    obj = {name: part for name, part in (request.obj or {}).items() if name != "status"}
    return {**obj, "metadata": {**part(obj, "metadata"), "name": name_of(request)}}


def check_submission(
    spec: JobSpec, request: Request, around: tuple[World, Settings], findings: Findings
) -> None:
    """Whether a job may be given to the queue that it names."""
    queue = check_queue(spec.queue, JOB, request, around, findings)
    if queue is not None:
        check_leaf(queue, around[0], findings)


def _check_new(request: Request, world: World, settings: Settings, findings: Findings) -> None:
    around = (world, settings)
    spec = check_job_spec(part(request.obj, "spec"), name_of(request), request, around, findings)
    check_submission(spec, request, around, findings)


def _check_change(request: Request, around: tuple[World, Settings], findings: Findings) -> None:
    old, new = part(request.old, "spec"), part(request.obj, "spec")
    if difference(old, new) is None:
        return
    job, errors = parse_job(as_parsed(request))
    findings.errors(errors)
    if job is None or findings.has_problems:
        return
    check_totals(job.spec, "spec", findings)
    for index, task in enumerate(job.spec.tasks):
        check_task_minimum(task, job.meta.name, f"spec.tasks[{index}]", findings)
    num_old, num_new = (len(_records(spec, "tasks")) for spec in (old, new))
    if num_old != num_new:
        findings.deny(
            f"job updates may not add or remove tasks: spec.tasks had {num_old}, {num_new} are "
            "new; make another job"
        )
        return
    world, settings = around
    # What admission fills in is no change: a manifest that is applied again does not have it.
    before, after = (_fixed(fill_in(spec, settings, Findings())) for spec in (old, new))
    found = difference(before, after)
    if found:
        path, was, is_new = found
        findings.deny(f"{_FIXED}: {path} was {shown(was)}, {shown(is_new)} is new")
    queue = world.queue(job.spec.queue)
    if queue is not None and not _only_shrinks(old, new):
        check_access(queue, request, settings, findings)


def _only_shrinks(old: Raw, new: Raw) -> bool:
    """Whether no number of pods grows, and nothing but numbers of pods changes."""
    if difference(old.get("priorityClassName"), new.get("priorityClassName")) is not None:
        return False
    pairs = [(old, new), *zip(_records(old, "tasks"), _records(new, "tasks"), strict=False)]
    return all(
        _number(after.get(name)) <= _number(before.get(name))
        for before, after in pairs
        for name in ("replicas", "minAvailable")
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _records(spec: Raw, name: str) -> list[Raw]:
    """The objects in a list of a spec; what of it is none is left out."""
    found = spec.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _fixed(spec: Raw) -> Raw:
    """The part of a spec that may not change."""
    kept = {name: value for name, value in spec.items() if name not in _MAY_CHANGE}
    tasks = [
        {name: value for name, value in task.items() if name not in _MAY_CHANGE_IN_TASKS}
        for task in _records(spec, "tasks")
    ]
    volumes = [_without_made_name(volume) for volume in _records(spec, "volumes")]
    return {**kept, "tasks": tasks, "volumes": volumes}


def _without_made_name(volume: dict[str, Any]) -> dict[str, Any]:
    # The controller writes the name of a claim that it makes into the spec.
    if volume.get("volumeClaim") is None:
        return volume
    return {name: value for name, value in volume.items() if name != "volumeClaimName"}
