"""Jobs: defaults on creation, validation on creation and update."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.job_defaults import fill_in, refill
from optsched.admission.job_rules import check_job_spec, check_task_minimum, check_totals
from optsched.admission.review import Action
from optsched.admission.submitters import (
    check_access,
    check_leaf,
    check_queue,
    record_submitter,
)
from optsched.admission.tenant_rules import (
    check_annotations,
    check_owner,
    check_priority,
    check_templates,
    warn_of_ineffective_class,
)
from optsched.api.job import parse_job
from optsched.api.json_fields import records
from optsched.api.kinds import CRON_JOB, JOB_FLOW
from optsched.units import DurationError, QuantityError, parse_duration_ns, parse_quantity_field
from optsched.units.input_errors import quote

if TYPE_CHECKING:
    from optsched.admission.findings import Review
    from optsched.admission.review import Raw, Request

_MAY_CHANGE: Final = ("minAvailable", "priorityClassName")
_MAY_CHANGE_IN_TASKS: Final = ("replicas", "minAvailable")
_FIXED: Final = (
    "job updates may not change fields other than minAvailable, tasks[*].replicas under spec "
    "and PriorityClassName"
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CLIENT_SIDE_APPLY: Final = "kubectl-client-side-apply"
"""The field manager of `kubectl apply` and `kubectl diff`."""
_QUANTITY_MAPS: Final = frozenset({"requests", "limits", "overhead", "capacity"})
_QUANTITIES: Final = frozenset({"sizeLimit", "divisor"})
_MAPS: Final = frozenset({"annotations", "labels", "matchLabels", "nodeSelector", "plugins"})
"""Map-valued fields in which a key with a null or empty value differs from a missing key."""
_DURATIONS: Final = frozenset({"timeout", "runningEstimate"})
_POINTERS: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "allowPrivilegeEscalation",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "exitCode",
        "fsGroup",
        "highestTierAllowed",
        "hostUsers",
        "minAvailable",
        "minSuccess",
        "optional",
        "priority",
        "privileged",
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
        "ttlSecondsAfterFinished",
    }
)
"""Fields for which Go distinguishes zero or false from a missing field."""


def mutate(review: Review) -> None:
    """Set a new job's defaults, or restore the defaults that an update dropped."""
    old, spec = get_mapping(review.request.old, "spec"), (review.request.obj or {}).get("spec")
    is_changed = isinstance(spec, dict) and _find_difference(old, spec) is not None
    if isinstance(spec, dict) and review.request.action is Action.CREATE:
        fill_in(spec, review.settings, review)
    elif isinstance(spec, dict) and is_changed:
        has_default_minimum = _declares_minimum(review.request) is False
        filled = refill(old, spec, review.settings, review, has_default_minimum=has_default_minimum)
        # A user who only scales down a job does not become its submitter, because `validate` does
        # not check that this user may use the queue.
        is_changed = _find_difference(old, filled) is not None and not _only_shrinks(old, filled)
    record_submitter(review, is_changed=is_changed)


def validate(review: Review) -> None:
    """Deny a job that could never run, or an update that changes an immutable field."""
    check_annotations(review, "tasks")
    check_owner(review, CRON_JOB, JOB_FLOW)
    raw, old = (get_mapping(obj, "spec") for obj in (review.request.obj, review.request.old))
    name = raw.get("priorityClassName")
    if name != old.get("priorityClassName"):
        check_priority(name, review)
    if review.request.action is Action.CREATE:
        templates = (get_mapping(task, "template") for task in records(raw, "tasks"))
        classes = (get_mapping(each, "spec").get("priorityClassName") for each in templates)
        if any(each and each != name for each in classes):
            warn_of_ineffective_class(name, review)
        check_templates(review)
        spec = check_job_spec(raw, name_of(review.request), review)
        queue = check_queue(spec.queue, "job", "unable to find job queue", review)
        if queue is not None:
            check_leaf(queue, review)
    else:
        _check_change(old, raw, review)


def name_of(request: Request) -> str:
    """Return the object's name, or a placeholder with the length of its generated name."""
    meta = get_mapping(request.obj, "metadata")
    made_up = f"{meta.get('generateName') or ''}xxxxx"
    return request.name or str(meta.get("name") or made_up)


def as_parsed(request: Request) -> Raw:
    """Return the requested object as parsers expect it: with a name and without status."""
    obj = {name: value for name, value in (request.obj or {}).items() if name != "status"}
    return {**obj, "metadata": {**get_mapping(obj, "metadata"), "name": name_of(request)}}


def _check_change(old: Raw, new: Raw, review: Review) -> None:
    if _find_difference(old, new) is None:
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
    # If a manifest without the defaults is applied again, admission sets the defaults again, so a
    # default that the manifest does not contain is no change.
    before, after = (
        _immutable_fields(fill_in(spec, review.settings, Findings())) for spec in (old, new)
    )
    found = _find_difference(before, after)
    if found:
        path, was, is_new = found
        review.deny(f"{_FIXED}: {path} was {quote(was)}, the update has {quote(is_new)}")
    queue = review.world.queue(job.spec.queue)
    if queue is not None and not _only_shrinks(old, new):
        check_access(queue, review)


def _only_shrinks(old: Raw, new: Raw) -> bool:
    """Return whether a job update neither increases a pod count nor changes the PriorityClass."""
    if _find_difference(old.get("priorityClassName"), new.get("priorityClassName")) is not None:
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


def _find_difference(old: Any, new: Any, path: str = "spec") -> tuple[str, Any, Any] | None:  # noqa: ANN401  JSON
    """Return (path, old value, new value) of the first field that differs, or None.

    Go clients omit empty and zero values, and they normalise quantities and durations. A Go client
    that only changes an annotation may therefore send `cpu: "1"` instead of `cpu: 1000m`.
    """
    name = path.rpartition(".")[2]
    if isinstance(old, dict | None) and isinstance(new, dict | None):
        before_fields, after_fields = old or {}, new or {}
        for field in dict.fromkeys([*before_fields, *after_fields]):
            before, after = before_fields.get(field), after_fields.get(field)
            if name in _MAPS and (field in before_fields) != (field in after_fields):
                return f"{path}.{field}", before, after
            if name in _QUANTITY_MAPS and _is_same_quantity(before, after):
                continue
            difference = _find_difference(before, after, f"{path}.{field}")
            if difference:
                return difference
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        found = (
            _find_difference(one, other, f"{path}[{position}]")
            for position, (one, other) in enumerate(zip(old, new, strict=True))
        )
        return next((each for each in found if each), None)
    return None if _is_equivalent(old, new, name) else (path, old, new)


def _is_equivalent(old: object, new: object, name: str) -> bool:
    if old == new and type(old) is type(new):
        return True
    if name in _QUANTITIES:
        return _is_same_quantity(old, new)
    if name in _DURATIONS:
        try:
            return parse_duration_ns(old) == parse_duration_ns(new)
        except DurationError:
            return False
    return name not in _POINTERS and all(
        value is None or value in ("", 0, False) or value in ([], {}) for value in (old, new)
    )


def _is_same_quantity(old: object, new: object) -> bool:
    try:
        return parse_quantity_field(old) == parse_quantity_field(new)
    except QuantityError:
        return False


def _declares_minimum(request: Request) -> bool | None:
    """Return whether the applied manifest sets `minAvailable`; None if no manifest was applied.

    `kubectl apply` stores the manifest in an annotation. With `--server-side`, the API server
    records in `metadata.managedFields` which fields each manager applied.
    """
    old, new = get_mapping(request.old, "metadata"), get_mapping(request.obj, "metadata")
    text = get_mapping(new, "annotations").get(_LAST_APPLIED)
    is_new = text != get_mapping(old, "annotations").get(_LAST_APPLIED)
    # `kubectl diff` does not change the annotation of the last `kubectl apply`.
    if isinstance(text, str) and (is_new or request.manager == _CLIENT_SIDE_APPLY):
        try:
            applied = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(applied, dict) and "minAvailable" in get_mapping(applied, "spec")
    fields = [
        get_mapping(entry, "fieldsV1")
        for entry in records(new, "managedFields")
        if request.manager
        and entry.get("operation") == "Apply"
        and entry.get("manager") == request.manager
    ]
    return (
        any("f:minAvailable" in get_mapping(each, "f:spec") for each in fields) if fields else None
    )
