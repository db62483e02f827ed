"""Commands: a queue is opened or closed only by users who may patch that queue.

Volcano reviews no Commands, so that whoever may create one in a namespace closes any queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.review import AccessQuestion, Action
from optsched.api.kinds import QUEUE
from optsched.api.wellknown import Subject

if TYPE_CHECKING:
    from optsched.admission.review import Request, Response
    from optsched.admission.world import Settings, World


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Deny a Command for a queue to users who may not patch that queue."""
    del world, settings
    findings = Findings()
    target = get_mapping(request.obj, "target")
    group = str(target.get("apiVersion") or "").rpartition("/")[0]
    is_for_queue = (group, target.get("kind")) == (QUEUE.group, QUEUE.kind)
    if request.action is Action.DELETE or not is_for_queue:
        return findings.response()
    name = str(target.get("name") or "")
    subject = Subject(request.user, request.groups)
    question = AccessQuestion(subject, "patch", QUEUE, name)
    if not findings.answer(question, request, default=True):
        findings.deny(
            f"user {request.user} may not give queue {name} a Command: it takes the right to patch "
            f"queues.{QUEUE.group} {name}"
        )
    return findings.response()
