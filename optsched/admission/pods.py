"""Mutation of pods (resource groups, scheduling gates) and validation of pod annotations.

Source: pkg/webhooks/admission/pods. Unlike in Volcano, a queue's access lists also apply to bare
pods.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from optsched.admission.findings import get_mapping
from optsched.admission.podgroups import queue_of
from optsched.admission.review import Action, ObjectQuestion
from optsched.admission.submitters import (
    can_use_queue,
    check_access,
    check_record,
    has_restricted_queues,
    record_submitter,
    subjects_of,
)
from optsched.admission.tenant_rules import (
    check_annotations,
    check_owner,
    check_priority_of_pod,
    check_reserved,
)
from optsched.api.json_fields import annotations_of
from optsched.api.kinds import JOB, POD_GROUP, SCHEDULING_POD_GROUPS, Ref
from optsched.api.podgroup import group_named_by
from optsched.api.wellknown import (
    DEFAULT_QUEUE,
    GROUP_NAME_ANNOTATIONS,
    MADE_GROUP_PREFIX,
    MAX_UNAVAILABLE,
    MIN_AVAILABLE,
    QUEUE_ALLOCATION_GATE,
    QUEUE_NAME,
    first_annotation,
    format_joined,
)
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.admission.findings import Review

_BUDGETS: Final = (MIN_AVAILABLE, MAX_UNAVAILABLE)
_PERCENT: Final = 100
_MAX_DIGITS: Final = 18
_SHOWN: Final = 60
_MADE: Final = re.compile(
    rf"^{MADE_GROUP_PREFIX}|-[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$"
)
"""Matches the names of PodGroups that controllers create for jobs and for owners of pods."""


def mutate(review: Review) -> None:
    """Set the fields of a pod's resource group, add a scheduling gate and record the submitter."""
    annotations = annotations_of(review.request.obj or {})
    group = next(
        (
            each
            for each in review.settings.resource_groups
            if each.matches_pod(review.request.namespace, annotations)
        ),
        None,
    )
    spec = get_mapping(review.request.obj, "spec")
    name = (group.scheduler_name if group is not None else "") or spec.get("schedulerName")
    is_ours = name in review.settings.scheduler_names
    if is_ours:
        joined = _record_joined_group(annotations, review) if review.settings.checks_use else None
        record_submitter(review, is_changed=True, joined=joined)
    if is_ours and review.settings.gates_pods and annotations.get(QUEUE_ALLOCATION_GATE) == "true":
        # Only this scheduler's pods get a scheduling gate, because other schedulers would not
        # remove it.
        gate = {"name": QUEUE_ALLOCATION_GATE}
        current = spec.get("schedulingGates")
        gates = current if isinstance(current, list) else []
        if gate not in gates and not spec.get("nodeName"):
            review.change(("spec", "schedulingGates"), [*gates, gate])
    if group is not None and spec:
        if group.labels:
            selector = {**get_mapping(spec, "nodeSelector"), **group.labels}
            review.change(("spec", "nodeSelector"), selector)
        if group.affinity and not spec.get("affinity"):
            review.change(("spec", "affinity"), dict(group.affinity))
        if group.tolerations:
            current = spec.get("tolerations")
            kept = current if isinstance(current, list) else []
            review.change(("spec", "tolerations"), [*kept, *group.tolerations])
        if group.scheduler_name:
            review.change(("spec", "schedulerName"), group.scheduler_name)


def validate(review: Review) -> None:
    """Deny a pod with invalid annotations, or whose submitter may not use its queue or PodGroup."""
    scheduler = get_mapping(review.request.obj, "spec").get("schedulerName")
    if not isinstance(scheduler, str | None):
        review.deny("spec.schedulerName: is not a string: write the name of a scheduler")
        return
    if scheduler in review.settings.device_schedulers:
        check_reserved(review)
    check_owner(review, JOB)
    if scheduler not in review.settings.scheduler_names:
        return
    annotations = annotations_of(review.request.obj or {})
    if review.request.action is Action.CREATE:
        written = [key for key in _BUDGETS if key in annotations]
        for key in written:
            problem = _find_budget_problem(annotations[key])
            if problem:
                review.deny(
                    f'invalid value <"{str(annotations[key])[:_SHOWN]}"> for {key}, {problem}: '
                    f"metadata.annotations[{key}]"
                )
        if len(written) > 1:
            review.deny(
                f"not allow configure multiple annotations <[{' '.join(_BUDGETS)}]> at same time: "
                "metadata.annotations; keep one of them"
            )
    if review.request.action is Action.UPDATE or review.request.user not in review.settings.trusted:
        check_annotations(review)
        check_reserved(review)
    if (
        review.request.action is Action.CREATE
        and review.request.user not in review.settings.trusted
    ):
        check_priority_of_pod(get_mapping(review.request.obj, "spec"), review)
    check_record(review)
    if has_restricted_queues(review.world, review.settings):
        _check_queues(annotations, review)


def _check_queues(annotations: Mapping[str, str], review: Review) -> None:
    """Deny a pod whose submitter may not use its queue or its PodGroup's queue."""
    if review.request.action is Action.CREATE and review.request.user in review.settings.trusted:
        # A trusted controller created the pod for a job, and the job's PodGroup was reviewed.
        return
    before = annotations_of(review.request.old or {})
    group = first_annotation(annotations, GROUP_NAME_ANNOTATIONS)
    upstream = group_named_by(get_mapping(review.request.obj, "spec"))
    # A pod without a PodGroup belongs to the queue named by its annotation or by its namespace.
    has_left = bool(first_annotation(before, GROUP_NAME_ANNOTATIONS)) and not group
    is_new = review.request.action is Action.CREATE or has_left
    is_bare = not group and not upstream
    if annotations.get(QUEUE_NAME, "") != before.get(QUEUE_NAME, "") or (is_new and is_bare):
        name = _find_queue_name(annotations, review)
        queue = review.world.queue(name)
        if queue is not None:
            check_access(queue, review)
        elif has_left:
            # A controller created the pod for a job, so the pod has no recorded submitter. Without
            # a submitter, a check of access to the queue would be impossible once the queue exists.
            review.deny(
                f"metadata.annotations[{QUEUE_NAME}]: Forbidden: there is no queue {name}: a pod "
                "may leave its PodGroup only if its new queue exists"
            )
    if upstream and is_new and not group:
        for kind in SCHEDULING_POD_GROUPS:
            question = ObjectQuestion(Ref(kind, review.request.namespace, upstream))
            found = review.answer(question, default=None)
            queue = review.world.queue(queue_of(found)) if found is not None else None
            if queue is not None:
                check_access(queue, review)
    if group and group != first_annotation(before, GROUP_NAME_ANNOTATIONS):
        question = ObjectQuestion(Ref(POD_GROUP, review.request.namespace, group))
        found = review.answer(question, default={})
        if found is not None:
            queue = review.world.queue(
                str(get_mapping(found, "spec").get("queue") or DEFAULT_QUEUE)
            )
            if queue is not None:
                check_access(queue, review)
        elif review.request.user not in review.settings.trusted and _MADE.search(group):
            review.deny(
                f"there is no PodGroup {group}: only controllers create PodGroups with a UID in "
                "the name, and add the pods themselves; leave the annotation out"
            )


def _find_queue_name(annotations: Mapping[str, str], review: Review) -> str:
    space = review.world.namespace_annotations(review.request.namespace)
    return annotations.get(QUEUE_NAME) or space.get(QUEUE_NAME) or DEFAULT_QUEUE


def _record_joined_group(annotations: Mapping[str, str], review: Review) -> str:
    """Return a string with the UID of the PodGroup that a new pod joins, and the PodGroup's queue.

    The string is empty if the PodGroup does not exist. For a bare pod, the string names only the
    queue; it is empty if the queue does not exist or a submitter may not use the queue.

    RBAC roles may allow the submitter to use the queue, but the scheduler does not read RBAC roles.
    If another user creates the PodGroup at the same time, only the string shows that admission
    checked the RBAC roles.
    """
    space = review.request.namespace
    upstream = group_named_by(get_mapping(review.request.obj, "spec"))
    kinds, name = SCHEDULING_POD_GROUPS, upstream
    if not upstream:
        kinds, name = (POD_GROUP,), first_annotation(annotations, GROUP_NAME_ANNOTATIONS)
    if not name:
        bare_queue = review.world.queue(_find_queue_name(annotations, review))
        subjects = subjects_of(review.request, review.settings)
        if bare_queue is None or not all(
            can_use_queue(bare_queue, each, review) for each in subjects
        ):
            return ""
        return format_joined("", bare_queue.name)
    for kind in kinds:
        found = review.answer(ObjectQuestion(Ref(kind, space, name)), default=None)
        if found is not None:
            queue = get_mapping(found, "spec").get("queue") or DEFAULT_QUEUE
            uid = str(get_mapping(found, "metadata").get("uid") or "")
            return format_joined(uid, queue_of(found) if upstream else str(queue))
    return ""


def _find_budget_problem(text: object) -> str:
    if not isinstance(text, str):
        return "it must be a string"
    number = text.removesuffix("%")
    is_number = is_decimal(number, _MAX_DIGITS)
    if text.endswith("%"):
        fits = is_number and 0 < int(number) < _PERCENT
        return "" if fits else "it must be a valid percentage which between 1% ~ 99%"
    return "" if is_number and int(number) else "it must be a positive integer"
