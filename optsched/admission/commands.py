"""Validation of Commands: only a user who may patch a queue may open or close it.

Volcano does not review Commands, so any user who may create a Command in some namespace can close a
queue.
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
    """Deny a Command that targets a queue if the user may not patch that queue."""
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
            f"user {review.request.user} may not create a Command for queue {name}: needs the "
            f"right to patch queues.{QUEUE.group} {name}"
        )
