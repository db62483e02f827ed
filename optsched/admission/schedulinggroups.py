"""PodGroups of Kubernetes itself: their queue is one that their user, and those of pods, may use.

Volcano does not know them. The queue is an annotation or a label, so that no other check sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.admission.findings import Findings, part
from optsched.admission.jobs import as_parsed
from optsched.admission.queue_access import can_use, check_access, is_restricted
from optsched.admission.review import Action, PodsQuestion
from optsched.admission.submitters import record_of
from optsched.api.schedulinggroup import group_named_by, parse_scheduling_group
from optsched.api.submitters import parse_submitters
from optsched.api.wellknown import DEFAULT_QUEUE

if TYPE_CHECKING:
    from optsched.admission.review import Raw, Request, Response
    from optsched.admission.world import Settings, World


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Whether a PodGroup of `scheduling.k8s.io` may be in the queue that it names."""
    findings = Findings()
    queue = world.queue(queue_of(request.obj))
    if request.action is Action.DELETE or queue is None or not is_restricted(queue, settings):
        return findings.response()
    if request.action is Action.UPDATE and queue_of(request.old) == queue.name:
        return findings.response()
    check_access(queue, request, settings, findings)
    name = part(as_parsed(request), "metadata").get("name")
    for pod in findings.answer(PodsQuestion(request.namespace), request, default=()):
        if group_named_by(part(pod, "spec")) != name:
            continue
        for subject in parse_submitters(record_of(pod)):
            if not can_use(queue, subject, request, settings, findings):
                findings.deny(
                    f"pod {part(pod, 'metadata').get('name')} of user {subject.user} names this "
                    f"PodGroup and may not use queue {queue.name}: delete the pod, or choose "
                    "another name or queue"
                )
    return findings.response()


def queue_of(obj: Raw | None) -> str:
    """The queue that such a PodGroup names; `default` where it names none."""
    named = {"metadata": {"name": "x", **part(obj, "metadata")}, "spec": part(obj, "spec")}
    group, _ = parse_scheduling_group(named)
    return (group.queue if group is not None else "") or DEFAULT_QUEUE
