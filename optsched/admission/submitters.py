"""On whose behalf a request is made, recorded by admission alone.

Users submit for themselves. Controllers of optsched are trusted: they copy the record of the object
that they act for. Kubernetes' own controllers make pods for whoever may run pods in a namespace, so
that such a pod counts as its service account.
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
    """Return the record of an object's submitters; empty if it has none."""
    text = get_mapping(get_mapping(obj, "metadata"), "annotations").get(SUBMITTER)
    return text if isinstance(text, str) else ""


def subjects_of(request: Request, settings: Settings) -> tuple[Subject, ...]:
    """Return the subjects, each of whom needs the right.

    Empty for a trusted controller whose object carries no record.
    """
    if request.user in settings.trusted:
        return parse_submitters(record_of(request.obj))
    if request.resource.plural == POD.plural and is_of_cluster(request.user):
        return (_service_account(request),)
    return (Subject(request.user, request.groups),)


def is_of_cluster(user: str) -> bool:
    """Return whether a user is one of Kubernetes' own controllers."""
    return user.startswith(_CLUSTER_ACCOUNTS) or user == _CLUSTER_MANAGER


def record_author(review: Review) -> None:
    """Record who submits an object of which jobs are made: they are created on that behalf."""
    record_submitter(review, is_changed=review.is_spec_changed)


def record_submitter(review: Review, *, is_changed: bool, joined: str | None = None) -> None:
    """Write into the object who submits it; is_changed: whether an update changes the work.

    joined: the PodGroup that a pod is let into, for its record; None to record none.

    Users' own values of the annotation are replaced. A change of the work makes its author the
    submitter; otherwise the record stays.
    """
    if review.request.user in review.settings.trusted or not review.request.user:
        return
    before = record_of(review.request.old) if review.request.action is Action.UPDATE else ""
    stays = review.request.action is Action.UPDATE and not is_changed
    if stays and not before and is_of_cluster(review.request.user):
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
    """Deny an update by which a user changes the record."""
    if review.request.user in review.settings.trusted or review.request.action is not Action.UPDATE:
        return
    if record_of(review.request.old) != record_of(review.request.obj):
        review.deny(f"metadata.annotations[{SUBMITTER}]: Forbidden: admission alone writes it")


def check_template(metadata: object, path: str, findings: Findings) -> None:
    """Deny a record in the metadata of a template: objects made of it get their own."""
    if SUBMITTER in get_mapping(metadata, "annotations"):
        findings.deny(
            f"{path}.annotations[{SUBMITTER}]: Forbidden: admission alone writes it; leave it out"
        )


def _service_account(request: Request) -> Subject:
    name = get_mapping(request.obj, "spec").get("serviceAccountName") or "default"
    space = request.namespace
    groups = {
        "system:authenticated",
        "system:serviceaccounts",
        f"system:serviceaccounts:{space}",
    }
    return Subject(f"system:serviceaccount:{space}:{name}", frozenset(groups))
