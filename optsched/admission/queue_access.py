"""Access to queues: a queue must exist and be open, and the user must have access to it.

Unlike in Volcano, a queue may have access lists: comma-separated names in its annotations
`optsched.io/users`, `optsched.io/groups` and `optsched.io/namespaces`. Every user has access to a
queue without access lists, unless `Settings.checks_use` is true. With `checks_use`, an access list
must contain the user, or an RBAC role must grant the user the verb `use` on the queue.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.admission.review import AccessQuestion
from optsched.admission.submitters import subjects_of
from optsched.api.kinds import QUEUE
from optsched.api.queue import QueueState
from optsched.api.wellknown import (
    QUEUE_NAMESPACES,
    ROOT_QUEUE,
    SUBMITTER,
)

if TYPE_CHECKING:
    from optsched.admission.findings import Review
    from optsched.admission.world import Settings, World
    from optsched.api.queue import Queue
    from optsched.api.wellknown import Subject

USE: Final = "use"
"""The RBAC verb that allows a user to submit to a queue."""

_MOST_NAMES: Final = 10


@dataclass(frozen=True, slots=True)
class Words:
    """What Volcano's messages call a kind, as in `can only submit {noun} to queue`."""

    missing: str
    noun: str


JOB: Final = Words("unable to find job queue", "job")
POD_GROUP: Final = Words("unable to find queue", "PodGroup")


def check_queue(name: str, words: Words, review: Review) -> Queue | None:
    """Return the queue, or None if it is missing; deny a missing, closed or forbidden queue."""
    queue = review.world.queue(name)
    if queue is None:
        body = {"apiVersion": QUEUE.api_version, "kind": QUEUE.kind, "metadata": {"name": name}}
        manifest = json.dumps(body, separators=(",", ":"))
        review.deny(
            f"{words.missing}: {QUEUE.plural[:-1]}.{QUEUE.group} {json.dumps(name)} "
            f"not found: spec.queue; {_list_open_queues(review.world)}, or create it: "
            f"echo '{manifest}' | kubectl create -f -"
        )
        review.rests_on(QUEUE, name)
        return None
    if queue.status.state is not QueueState.OPEN:
        review.deny(
            f"can only submit {words.noun} to queue with state Open, queue {name} status is "
            f"{queue.status.state.value}: spec.queue; {_list_open_queues(review.world)}"
        )
        review.rests_on(QUEUE, name)
    check_access(queue, review)
    return queue


def check_leaf(queue: Queue, review: Review) -> None:
    """Deny a job that names the root queue or a queue with child queues."""
    children = review.world.children(queue.name)
    if queue.name == ROOT_QUEUE:
        review.deny(
            f"cannot submit job to root queue: spec.queue; {_list_open_queues(review.world)}"
        )
    elif children:
        names = _join_names(sorted(child.name for child in children))
        review.deny(
            f"can only submit job to leaf queue, queue {queue.name} has {len(children)} child "
            f"queues: spec.queue; name one of them: {names}"
        )
        review.rests_on(QUEUE, queue.name)


def is_restricted(queue: Queue, settings: Settings) -> bool:
    """Return whether access to a queue is restricted by access lists or RBAC."""
    return settings.checks_use or any(queue.access_lists.values())


def has_restricted_queues(world: World, settings: Settings) -> bool:
    """Return whether access to any queue in the cluster is restricted."""
    return settings.checks_use or any(is_restricted(queue, settings) for queue in world.queues())


def check_access(queue: Queue, review: Review) -> None:
    """Deny a user who is in no access list of a restricted queue and may not `use` it by RBAC."""
    if not is_restricted(queue, review.settings):
        return
    subjects = subjects_of(review.request, review.settings)
    for subject in subjects:
        if not can_use_queue(queue, subject, review):
            _deny_access(queue, f"user {subject.user}", review)
    if not subjects and review.request.namespace not in queue.access_lists[QUEUE_NAMESPACES]:
        unknown = f"an unknown submitter (no annotation {SUBMITTER}: submit again)"
        _deny_access(queue, unknown, review)


def can_use_queue(queue: Queue, subject: Subject, review: Review) -> bool:
    """Return whether a subject may use a queue; True while the RBAC check is unanswered."""
    is_listed = queue.lists(subject, review.request.namespace)
    if is_listed or not is_restricted(queue, review.settings):
        return True
    if not review.settings.checks_use:
        return False
    question = AccessQuestion(subject, USE, QUEUE, queue.name, review.request.namespace)
    return bool(review.answer(question, default=True))


def _deny_access(queue: Queue, who: str, review: Review) -> None:
    lists = queue.access_lists
    admitted = "; ".join(f"{key}: {_join_names(sorted(lists[key]))}" for key in lists if lists[key])
    reasons = [f"its annotations admit {admitted}"] if admitted else []
    if review.settings.checks_use:
        reasons.append(f"no role grants the verb {USE} on queues.{QUEUE.group} {queue.name}")
    review.deny(
        f"{who} may not use queue {queue.name} from namespace "
        f"{review.request.namespace}: {'; '.join(reasons)}"
    )
    review.rests_on(QUEUE, queue.name)


def _list_open_queues(world: World) -> str:
    parents = {queue.parent for queue in world.queues()} | {ROOT_QUEUE}
    leaves = [
        queue.name
        for queue in world.queues()
        if queue.status.state is QueueState.OPEN and queue.name not in parents
    ]
    return f"open queues are {_join_names(sorted(leaves))}" if leaves else "no queue is open"


def _join_names(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown
