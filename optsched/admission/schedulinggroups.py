"""PodGroups of Kubernetes itself: their queue is one that their user, and those of pods, may use.

Volcano does not know them. The queue is an annotation or a label, so that no other check sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.jobs import as_parsed
from optsched.admission.queue_access import can_use_queue, check_access, is_restricted
from optsched.admission.review import Action, PodsQuestion
from optsched.admission.submitters import record_of
from optsched.api.podgroup import group_named_by, parse_scheduling_group
from optsched.api.wellknown import DEFAULT_QUEUE, parse_submitters

if TYPE_CHECKING:
    from optsched.admission.review import Raw, Request, Response
    from optsched.admission.world import Settings, World


def validate(request: Request, world: World, settings: Settings) -> Response:
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
