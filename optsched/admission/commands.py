"""Commands: a queue is opened or closed only by users who may patch that queue.

Volcano reviews no Commands, so that whoever may create one in a namespace closes any queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.admission.findings import get_mapping
from optsched.admission.review import AccessQuestion, Action
from optsched.api.kinds import QUEUE
from optsched.api.wellknown import Subject

if TYPE_CHECKING:
    from optsched.admission.findings import Review


def validate(review: Review) -> None:
    """Deny a Command for a queue to users who may not patch that queue."""
    target = get_mapping(review.request.obj, "target")
    group = str(target.get("apiVersion") or "").rpartition("/")[0]
    is_for_queue = (group, target.get("kind")) == (QUEUE.group, QUEUE.kind)
    if review.request.action is Action.DELETE or not is_for_queue:
        return
    name = str(target.get("name") or "")
    subject = Subject(review.request.user, review.request.groups)
    question = AccessQuestion(subject, "patch", QUEUE, name)
    if not review.answer(question, default=True):
        review.deny(
            f"user {review.request.user} may not give queue {name} a Command: it takes the right "
            f"to patch queues.{QUEUE.group} {name}"
        )
