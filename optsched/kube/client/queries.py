"""Queries to an API server, such as complete lists and access reviews."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import POD, SUBJECT_ACCESS_REVIEW, Ref
from optsched.api.wellknown import GROUP_NAME_ANNOTATIONS, SUBMITTER
from optsched.kube.client.errors import Gone
from optsched.kube.client.listing import EVERYTHING, PAGE_SIZE, Selection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from optsched.admission.review import AccessQuestion
    from optsched.api.kinds import Kind
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Page, Raw


TRIES: Final = 3
"""Maximum number of attempts to read a list whose pages expire while it is read."""


async def list_objects(source: Client, kind: Kind, selection: Selection = EVERYTHING) -> list[Raw]:
    """Return all selected objects of a kind, in the server's order; raises `KubeError`."""
    left = TRIES
    while True:
        left -= 1
        try:
            return [obj async for page in _pages(source, kind, selection) for obj in page.items]
        except Gone:
            if not left:
                raise


async def _pages(source: Client, kind: Kind, selection: Selection) -> AsyncIterator[Page]:
    token = ""
    while True:
        page = await source.list_page(kind, PAGE_SIZE, token, selection)
        yield page
        token = page.token
        if not token:
            return


async def can_access(api: Client, question: AccessQuestion) -> bool:
    """Return whether RBAC allows a user's request; raises KubeError if the review fails."""
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


async def review(api: Client, kind: Kind, spec: Raw) -> dict[str, Any]:
    """Create a review, such as a TokenReview, and return its status; raises KubeError."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
    status = (await api.create(Ref(kind, "", ""), body)).get("status")
    return status if isinstance(status, dict) else {}


async def list_podgroup_members(source: Client, namespace: str) -> tuple[Raw, ...]:
    """Return a namespace's pods that belong to a PodGroup, with only the fields about the PodGroup.

    Each page is reduced immediately, so a large namespace takes little memory.
    """
    members: list[Raw] = []
    async for page in _pages(source, POD, Selection(namespace)):
        for pod in page.items:
            meta = pod.get("metadata") or {}
            annotations = meta.get("annotations") or {}
            group = (pod.get("spec") or {}).get("schedulingGroup")
            if not group and not any(annotations.get(key) for key in GROUP_NAME_ANNOTATIONS):
                continue
            keys = (*GROUP_NAME_ANNOTATIONS, SUBMITTER)
            kept = {key: annotations[key] for key in keys if key in annotations}
            spec = {"schedulingGroup": group} if group else {}
            members.append(
                {"metadata": {"name": meta.get("name"), "annotations": kept}, "spec": spec}
            )
    return tuple(members)
