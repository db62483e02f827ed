"""Reviews by the API server (SubjectAccessReview, TokenReview), and pods of PodGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from optsched.api.kinds import POD, SUBJECT_ACCESS_REVIEW, Ref
from optsched.api.wellknown import GROUP_NAME_ANNOTATIONS, SUBMITTER
from optsched.kube.client.interfaces import PAGE_SIZE, Selection

if TYPE_CHECKING:
    from optsched.admission.review import AccessQuestion
    from optsched.api.kinds import Kind
    from optsched.kube.client.interfaces import Raw, SelectiveSource


class CreatingApi(Protocol):
    """The request that creates a review."""

    async def create(self, ref: Ref, body: Raw) -> Raw:
        """See `Api`."""


async def can_access(api: CreatingApi, question: AccessQuestion) -> bool:
    """Return whether a user may do something; raises KubeError if the server gives no answer."""
    kind, subject = question.kind, question.subject
    attributes = {
        "group": kind.group,
        "version": kind.version,
        "resource": kind.plural,
        "subresource": question.subresource,
        "verb": question.verb,
        "name": question.name,
        "namespace": question.namespace,
    }
    spec = {
        "user": subject.user,
        "groups": sorted(subject.groups),
        "resourceAttributes": {name: text for name, text in attributes.items() if text},
    }
    return (await review(api, SUBJECT_ACCESS_REVIEW, spec)).get("allowed") is True


async def review(api: CreatingApi, kind: Kind, spec: Raw) -> dict[str, Any]:
    """Return the status of a review such as a TokenReview; raises KubeError."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
    status = (await api.create(Ref(kind, "", ""), body)).get("status")
    return status if isinstance(status, dict) else {}


async def list_podgroup_members(source: SelectiveSource, namespace: str) -> tuple[Raw, ...]:
    """Return the pods of a namespace that name a PodGroup, reduced to the fields that count.

    Pods are read page by page, so that a large namespace takes little memory.
    """
    found: list[Raw] = []
    token = ""
    while True:
        page = await source.list_page(POD, PAGE_SIZE, token, Selection(namespace))
        found += [member for member in map(_member, page.items) if member is not None]
        token = page.token
        if not token:
            return tuple(found)


def _member(pod: Raw) -> Raw | None:
    meta = pod.get("metadata") or {}
    annotations = meta.get("annotations") or {}
    group = (pod.get("spec") or {}).get("schedulingGroup")
    if not group and not any(annotations.get(key) for key in GROUP_NAME_ANNOTATIONS):
        return None
    kept = {
        key: annotations[key] for key in (*GROUP_NAME_ANNOTATIONS, SUBMITTER) if key in annotations
    }
    spec = {"schedulingGroup": group} if group else {}
    return {"metadata": {"name": meta.get("name"), "annotations": kept}, "spec": spec}
