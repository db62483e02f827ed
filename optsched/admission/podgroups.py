"""Defaults and validation of PodGroups on creation and update.

Source: pkg/webhooks/admission/podgroups. Unlike in Volcano, an update that changes the queue is
also validated. Without this validation, a user could bypass a queue's access lists by changing the
queue of a PodGroup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import get_mapping
from optsched.admission.job_rules import check_topology
from optsched.admission.jobs import as_parsed
from optsched.admission.review import Action, PodsQuestion
from optsched.admission.submitters import (
    can_use_queue,
    check_access,
    check_queue,
    is_restricted,
    record_of,
    record_submitter,
)
from optsched.admission.tenant_rules import (
    can_write_status,
    check_annotations,
    check_marks,
    check_priority,
    warn_of_ineffective_class,
)
from optsched.api.json_fields import annotations_of
from optsched.api.podgroup import group_named_by, parse_podgroup, parse_scheduling_group
from optsched.api.wellknown import (
    DEFAULT_QUEUE,
    GROUP_NAME_ANNOTATIONS,
    QUEUE_NAME,
    first_annotation,
    parse_submitters,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.admission.findings import Review
    from optsched.admission.review import Raw
    from optsched.api.queue import Queue


_TIER: Final = "highestTierName"


def mutate(review: Review) -> None:
    """Set a PodGroup's queue from its namespace, record its submitter, and protect its status.

    The status of a PodGroup is not a subresource, so a tenant could write the phase `Inqueue`,
    which admits the gang. The `minResources` of an admitted gang can prevent other gangs of the
    queue from being admitted.
    """
    obj = review.request.obj or {}
    old_status = (review.request.old or {}).get("status")
    if obj.get("status") != old_status and not can_write_status(review):
        review.change(("status",), old_status or {})
    spec, old = obj.get("spec"), (review.request.old or {}).get("spec")
    queue = review.world.namespace_annotations(review.request.namespace).get(QUEUE_NAME)
    # When the PodGroup was created, admission replaced the manifest's queue with the namespace's
    # queue. `kubectl apply` sends the manifest's queue again.
    is_filled = (
        review.request.action is Action.CREATE
        or get_mapping(review.request.old, "spec").get("queue") == queue
    )
    is_default = isinstance(spec, dict) and spec.get("queue") in (None, "", DEFAULT_QUEUE)
    if queue and is_filled and (spec is None or is_default):
        if spec is None:
            review.change(("spec",), {"queue": queue})
        else:
            review.change(("spec", "queue"), queue)
        spec = {**(spec or {}), "queue": queue}
    record_submitter(review, is_changed=old != spec)


def validate(review: Review) -> None:
    """Deny a PodGroup that has invalid fields or names a queue that its submitter may not use."""
    group, errors = parse_podgroup(as_parsed(review.request))
    old = parse_podgroup(review.request.old)[0] if review.request.action is Action.UPDATE else None
    if group is None:
        return
    is_trusted = review.request.user in review.settings.trusted
    check_annotations(review)
    check_marks(review)
    if old is None or old.priority_class != group.priority_class:
        check_priority(group.priority_class, review)
        if not is_trusted:
            warn_of_ineffective_class(group.priority_class, review)
    if old is None or old.queue != group.queue:
        queue = check_queue(group.queue, "PodGroup", "unable to find queue", review)
        # The PodGroups that controllers create have a UID in their name, so no pod can name such a
        # PodGroup before it exists.
        is_made = is_trusted and review.request.action is Action.CREATE
        if queue is not None and is_restricted(queue, review.settings) and not is_made:
            name = group.meta.name
            _check_members(
                queue,
                review,
                lambda pod: first_annotation(annotations_of(pod), GROUP_NAME_ANNOTATIONS) == name,
            )
    elif (
        record_of(review.request.old) != record_of(review.request.obj)
        if is_trusted
        else review.is_spec_changed
    ):
        queue = review.world.queue(group.queue)
        if queue is not None:
            check_access(queue, review)
    if old is None:
        review.errors(error for error in errors if not error.path.endswith(_TIER))
        check_topology(group.topology, "spec.networkTopology", review)
        for position, policy in enumerate(group.sub_groups):
            path = f"spec.subGroupPolicy[{position}].networkTopology"
            check_topology(policy.topology, path, review, f"in subGroupPolicy '{policy.name}': ")


def _check_members(queue: Queue, review: Review, is_member: Callable[[Raw], bool]) -> None:
    """Deny a PodGroup if the submitter of a member pod may not use the PodGroup's queue."""
    for pod in review.answer(PodsQuestion(review.request.namespace), default=()):
        for subject in parse_submitters(record_of(pod)) if is_member(pod) else ():
            if not can_use_queue(queue, subject, review):
                name = get_mapping(pod, "metadata").get("name")
                review.deny(
                    f"pod {name} of user {subject.user} names this PodGroup, but may not use queue "
                    f"{queue.name}: delete the pod, or choose another name or queue"
                )


def mutate_upstream(review: Review) -> None:
    """Record the submitter of a `scheduling.k8s.io` PodGroup."""
    old, obj = review.request.old, review.request.obj
    record_submitter(review, is_changed=review.is_spec_changed or queue_of(old) != queue_of(obj))


def validate_upstream(review: Review) -> None:
    """Deny a `scheduling.k8s.io` PodGroup that names a queue that its submitter may not use."""
    queue = review.world.queue(queue_of(review.request.obj))
    if queue is None or not is_restricted(queue, review.settings):
        return
    is_moved = queue_of(review.request.old) != queue.name
    if review.request.action is Action.UPDATE and not is_moved and not review.is_spec_changed:
        return
    check_access(queue, review)
    if review.request.action is Action.UPDATE and not is_moved:
        return
    name = get_mapping(as_parsed(review.request), "metadata").get("name")
    _check_members(queue, review, lambda pod: group_named_by(get_mapping(pod, "spec")) == name)


def queue_of(obj: Raw | None) -> str:
    """Return the queue that a `scheduling.k8s.io` PodGroup names, or `default`."""
    named = {
        "metadata": {"name": "x", **get_mapping(obj, "metadata")},
        "spec": get_mapping(obj, "spec"),
    }
    group, _ = parse_scheduling_group(named)
    return (group.queue if group is not None else "") or DEFAULT_QUEUE
