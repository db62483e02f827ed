"""The submitters on whose behalf a request is made; only admission records them.

A user who creates an object is its submitter. optsched's controllers are trusted: if they create an
object for another object, they copy that object's submitters. The Kubernetes controllers create
pods for any user who may run pods in a namespace, so the submitter of such a pod is the pod's
service account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import get_mapping
from optsched.admission.review import Action
from optsched.api.kinds import POD
from optsched.api.wellknown import SUBMITTER, Subject, format_submitters, parse_submitters

if TYPE_CHECKING:
    from optsched.admission.findings import Findings, Review
    from optsched.admission.review import Raw, Request
    from optsched.admission.world import Settings

_CLUSTER_ACCOUNTS: Final = "system:serviceaccount:kube-system:"
_CLUSTER_MANAGER: Final = "system:kube-controller-manager"


def record_of(obj: Raw | None) -> str:
    """Return the annotation that records an object's submitters; empty if there is none."""
    text = get_mapping(get_mapping(obj, "metadata"), "annotations").get(SUBMITTER)
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

    `is_changed` is true if an update changes what the object runs. The updating user then becomes
    the submitter; other updates keep the recorded submitter. `joined` is the result of
    `format_joined` for a pod, or None.

    A record that a user wrote into the object is replaced. An object that was created before the
    webhook was installed has no record until an update with `is_changed`.
    """
    if review.request.user in review.settings.trusted or not review.request.user:
        return
    before = record_of(review.request.old) if review.request.action is Action.UPDATE else ""
    stays = review.request.action is Action.UPDATE and not is_changed
    if stays and not before and not record_of(review.request.obj):
        # The object was created before the webhook was installed. A user who only changes its
        # labels did not submit it.
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


def check_template(metadata: object, path: str, findings: Findings) -> None:
    """Deny a template whose annotations record submitters; only admission may write this record."""
    if SUBMITTER in get_mapping(metadata, "annotations"):
        findings.deny(
            f"{path}.annotations[{SUBMITTER}]: Forbidden: only admission may write it; leave it out"
        )
