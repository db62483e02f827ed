"""PodGroups: defaults and checks when they are created or change their queue.

Source: pkg/webhooks/admission/podgroups. The check of a change of queue is optsched's own: without
it a user could get round the lists of a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.jobs import as_parsed
from optsched.admission.queue_access import (
    POD_GROUP,
    can_use_queue,
    check_access,
    check_queue,
    is_restricted,
)
from optsched.admission.review import Action, PodsQuestion
from optsched.admission.submitters import record_of, record_submitter
from optsched.admission.tenant_rules import (
    check_annotations,
    check_marks,
    check_priority,
    warn_of_lift,
)
from optsched.api.podgroup import group_named_by, parse_podgroup, parse_scheduling_group
from optsched.api.wellknown import (
    DEFAULT_QUEUE,
    GROUP_NAME_ANNOTATIONS,
    QUEUE_NAME,
    first_annotation,
    parse_submitters,
)

if TYPE_CHECKING:
    from optsched.admission.review import Raw, Request, Response
    from optsched.admission.world import Settings, World
    from optsched.api.podgroup import NetworkTopology, PodGroup
    from optsched.api.queue import Queue


_TWO_TIERS: Final = (
    "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"
)
_TIER: Final = "highestTierName"


def mutate(request: Request, world: World, settings: Settings) -> Response:
    """Give a PodGroup without a queue that of its namespace, and record who submits it."""
    findings = Findings()
    obj = request.obj or {}
    spec = obj.get("spec")
    is_changed = (request.old or {}).get("spec") != spec
    record_submitter(request, settings, findings, is_changed=is_changed)
    queue = world.namespace_annotations(request.namespace).get(QUEUE_NAME)
    if request.action is not Action.CREATE or not queue:
        return findings.response()
    if spec is None:
        findings.change(("spec",), {"queue": queue})
    elif isinstance(spec, dict) and spec.get("queue") in (None, "", DEFAULT_QUEUE):
        findings.change(("spec", "queue"), queue)
    return findings.response()


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Deny a PodGroup for a queue that its user may not use, and invalid fields."""
    findings = Findings()
    if request.action is Action.DELETE:
        return findings.response()
    group, errors = parse_podgroup(as_parsed(request))
    old = parse_podgroup(request.old)[0] if request.action is Action.UPDATE else None
    if group is None:
        return findings.response()
    around = (world, settings)
    check_annotations(request, settings, findings)
    check_marks(request, settings, findings)
    if old is None or old.priority_class != group.priority_class:
        check_priority(group.priority_class, request, settings, findings)
        if request.user not in settings.trusted:
            warn_of_lift(group.priority_class, settings, findings)
    if old is None or old.queue != group.queue:
        queue = check_queue(group.queue, POD_GROUP, request, around, findings)
        if queue is not None and is_restricted(queue, settings):
            _check_members(group, queue, request, settings, findings)
    elif _is_other_work(request, settings):
        queue = world.queue(group.queue)
        if queue is not None:
            check_access(queue, request, settings, findings)
    if old is None:
        findings.errors(error for error in errors if not error.path.endswith(_TIER))
        tiers = _two_tiers(group.topology)
        if tiers:
            findings.deny(f"{_TWO_TIERS}: spec.networkTopology has {tiers}; keep one of them")
        for position, policy in enumerate(group.sub_groups):
            tiers = _two_tiers(policy.topology)
            if tiers:
                findings.deny(
                    f"in subGroupPolicy '{policy.name}': {_TWO_TIERS}: "
                    f"spec.subGroupPolicy[{position}].networkTopology has {tiers}; keep one of them"
                )
    return findings.response()


def _is_other_work(request: Request, settings: Settings) -> bool:
    """Return whether an update changes the work, or on whose behalf controllers do it."""
    if request.user in settings.trusted:
        return record_of(request.old) != record_of(request.obj)
    return (request.old or {}).get("spec") != (request.obj or {}).get("spec")


def _check_members(
    group: PodGroup, queue: Queue, request: Request, settings: Settings, findings: Findings
) -> None:
    """Deny a PodGroup that pods name whose submitters may not use its queue.

    Controllers name the PodGroups that they make after UIDs, which pods can not name before.
    """
    if request.user in settings.trusted and request.action is Action.CREATE:
        return
    pods = findings.answer(PodsQuestion(request.namespace), request, default=())
    for pod in pods:
        meta = get_mapping(pod, "metadata")
        named = first_annotation(get_mapping(meta, "annotations"), GROUP_NAME_ANNOTATIONS)
        if named != group.meta.name:
            continue
        for subject in parse_submitters(record_of(pod)):
            if not can_use_queue(queue, subject, request, settings, findings):
                findings.deny(
                    f"pod {meta.get('name')} of user {subject.user} names this PodGroup and may "
                    f"not use queue {queue.name}: delete the pod, or choose another name or queue"
                )


def _two_tiers(topology: NetworkTopology | None) -> str:
    """Both tiers of a topology that names two; empty for others."""
    if topology is None or topology.highest_tier is None or not topology.highest_tier_name:
        return ""
    return f"{topology.highest_tier} and {topology.highest_tier_name}"


def validate_upstream(request: Request, world: World, settings: Settings) -> Response:
    """Deny a PodGroup of `scheduling.k8s.io` for a queue that its user may not use."""
    findings = Findings()
    queue = world.queue(queue_of(request.obj))
    if request.action is Action.DELETE or queue is None or not is_restricted(queue, settings):
        return findings.response()
    if request.action is Action.UPDATE and queue_of(request.old) == queue.name:
        return findings.response()
    check_access(queue, request, settings, findings)
    name = get_mapping(as_parsed(request), "metadata").get("name")
    for pod in findings.answer(PodsQuestion(request.namespace), request, default=()):
        if group_named_by(get_mapping(pod, "spec")) != name:
            continue
        for subject in parse_submitters(record_of(pod)):
            if not can_use_queue(queue, subject, request, settings, findings):
                name = get_mapping(pod, "metadata").get("name")
                findings.deny(
                    f"pod {name} of user {subject.user} names this "
                    f"PodGroup and may not use queue {queue.name}: delete the pod, or choose "
                    "another name or queue"
                )
    return findings.response()


def queue_of(obj: Raw | None) -> str:
    """Return the queue that such a PodGroup names, or `default`."""
    named = {
        "metadata": {"name": "x", **get_mapping(obj, "metadata")},
        "spec": get_mapping(obj, "spec"),
    }
    group, _ = parse_scheduling_group(named)
    return (group.queue if group is not None else "") or DEFAULT_QUEUE
