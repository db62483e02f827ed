"""Record the submitters of objects, and check which queues a submitter may use.

A user who creates an object is its submitter. optsched's controllers are trusted: if they create an
object for another object, they copy that object's submitters. The Kubernetes controllers create
pods for any user who may run pods in a namespace, so the submitter of such a pod is the pod's
service account.

Unlike in Volcano, a queue may have access lists: comma-separated names in its annotations
`optsched.io/users`, `optsched.io/groups` and `optsched.io/namespaces`. Every user may use a queue
without access lists, unless `Settings.checks_use` is true. With `checks_use`, an access list must
contain the user, or an RBAC role must grant the user the verb `use` on the queue.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from optsched.admission.findings import get_mapping
from optsched.admission.review import AccessQuestion, Action
from optsched.api.json_fields import annotations_of
from optsched.api.kinds import POD, QUEUE
from optsched.api.queue import QueueState
from optsched.api.wellknown import (
    QUEUE_NAMESPACES,
    ROOT_QUEUE,
    SUBMITTER,
    Subject,
    format_submitters,
    parse_submitters,
)

if TYPE_CHECKING:
    from optsched.admission.findings import Review
    from optsched.admission.review import Raw, Request
    from optsched.admission.world import Settings, World
    from optsched.api.queue import Queue

USE: Final = "use"
"""The RBAC verb that allows a user to submit to a queue."""

_MOST_NAMES: Final = 10
_CLUSTER_ACCOUNTS: Final = "system:serviceaccount:kube-system:"
_CLUSTER_MANAGER: Final = "system:kube-controller-manager"


def record_of(obj: Raw | None) -> str:
    """Return the annotation that records an object's submitters; empty if there is none."""
    text = annotations_of(obj or {}).get(SUBMITTER)
    return text if isinstance(text, str) else ""


def subjects_of(request: Request, settings: Settings) -> tuple[Subject, ...]:
    """Return the submitters of a request; each of them must have the required permissions.

    The result is empty if a trusted controller sends an object without recorded submitters.
    """
    if request.user in settings.trusted:
        return parse_submitters(record_of(request.obj))
    if request.resource.plural == POD.plural and is_of_cluster(request.user):
        name = get_mapping(request.obj, "spec").get("serviceAccountName") or "default"
        space = request.namespace
        groups = {
            "system:authenticated",
            "system:serviceaccounts",
            f"system:serviceaccounts:{space}",
        }
        return (Subject(f"system:serviceaccount:{space}:{name}", frozenset(groups)),)
    return (Subject(request.user, request.groups),)


def is_of_cluster(user: str) -> bool:
    """Return whether a user is one of the Kubernetes controllers."""
    return user.startswith(_CLUSTER_ACCOUNTS) or user == _CLUSTER_MANAGER


def record_author(review: Review) -> None:
    """Record the submitter of an object from which controllers create jobs."""
    record_submitter(review, is_changed=review.is_spec_changed)


def record_submitter(review: Review, *, is_changed: bool, joined: str | None = None) -> None:
    """Record the submitter of a request in an annotation of its object.

    If an update changes what the object runs, `is_changed` is true, and the user becomes the
    submitter. All other updates keep the recorded submitter. `joined` is the result of
    `format_joined` for a pod, or None.

    If a user wrote submitters into the annotation, they are replaced. An object that was created
    before the webhook was installed has no recorded submitter until an update changes what the
    object runs.
    """
    if review.request.user in review.settings.trusted or not review.request.user:
        return
    before = record_of(review.request.old) if review.request.action is Action.UPDATE else ""
    stays = review.request.action is Action.UPDATE and not is_changed
    if stays and not before and not record_of(review.request.obj):
        # The object was created before the webhook was installed. A user who changes only the
        # labels of an object is not its submitter.
        return
    text = (
        before
        if stays and before
        else format_submitters(subjects_of(review.request, review.settings), joined)
    )
    if text == record_of(review.request.obj):
        return
    metadata = (review.request.obj or {}).get("metadata")
    if not isinstance(metadata, dict):
        return
    if isinstance(metadata.get("annotations"), dict):
        review.change(("metadata", "annotations", SUBMITTER), text)
    else:
        review.change(("metadata", "annotations"), {SUBMITTER: text})


def check_record(review: Review) -> None:
    """Deny an update in which a user changes the recorded submitters."""
    if review.request.user in review.settings.trusted or review.request.action is not Action.UPDATE:
        return
    if record_of(review.request.old) != record_of(review.request.obj):
        review.deny(f"metadata.annotations[{SUBMITTER}]: Forbidden: only admission may write it")


def check_queue(name: str, noun: str, missing: str, review: Review) -> Queue | None:
    """Return a queue, or None if missing; deny requests for a missing, closed or forbidden queue.

    `noun` is the word for the submitted object in Volcano's message about a closed queue, and
    `missing` begins Volcano's message about a missing queue.
    """
    queue = review.world.queue(name)
    if queue is None:
        body = {"apiVersion": QUEUE.api_version, "kind": QUEUE.kind, "metadata": {"name": name}}
        manifest = json.dumps(body, separators=(",", ":"))
        review.deny(
            f"{missing}: {QUEUE.plural[:-1]}.{QUEUE.group} {json.dumps(name)} "
            f"not found: spec.queue; {_list_open_queues(review.world)}, or create it: "
            f"echo '{manifest}' | kubectl create -f -"
        )
        review.rests_on_queue(name)
        return None
    if queue.status.state is not QueueState.OPEN:
        review.deny(
            f"can only submit {noun} to queue with state Open, queue {name} status is "
            f"{queue.status.state.value}: spec.queue; {_list_open_queues(review.world)}"
        )
        review.rests_on_queue(name)
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
        review.rests_on_queue(queue.name)


def is_restricted(queue: Queue, settings: Settings) -> bool:
    """Return whether access to a queue is restricted by access lists or RBAC."""
    return settings.checks_use or any(queue.access_lists.values())


def has_restricted_queues(world: World, settings: Settings) -> bool:
    """Return whether access to any queue in the cluster is restricted."""
    return settings.checks_use or any(is_restricted(queue, settings) for queue in world.queues())


def check_access(queue: Queue, review: Review) -> None:
    """Deny a user if neither an access list nor RBAC allows the user to use a restricted queue."""
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
    review.rests_on_queue(queue.name)


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
