"""Read objects in JSON with any fields missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import Ref
from optsched.api.wellknown import SUBMITTER, format_submitters, parse_submitters
from optsched.units import TimestampError, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.kinds import Kind
    from optsched.controllers.effects import Manifest

_NOTHING: Final[Mapping[str, Any]] = {}


def subobject(obj: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside of an object; empty where there is none."""
    found = obj.get(name)
    return found if isinstance(found, dict) else _NOTHING


def records(obj: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list of objects inside of an object; what of it is none is left out."""
    found = obj.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def meta_of(obj: Manifest) -> Mapping[str, Any]:
    """`metadata`."""
    return subobject(obj, "metadata")


def spec_of(obj: Manifest) -> Mapping[str, Any]:
    """`spec`."""
    return subobject(obj, "spec")


def status_of(obj: Manifest) -> Mapping[str, Any]:
    """`status`."""
    return subobject(obj, "status")


def name_of(obj: Manifest) -> str:
    """`metadata.name`."""
    return str(meta_of(obj).get("name") or "")


def namespace_of(obj: Manifest) -> str:
    """`metadata.namespace`; empty outside of namespaces."""
    return str(meta_of(obj).get("namespace") or "")


def uid_of(obj: Manifest) -> str:
    """`metadata.uid`."""
    return str(meta_of(obj).get("uid") or "")


def version_of(obj: Manifest) -> str:
    """`metadata.resourceVersion`."""
    return str(meta_of(obj).get("resourceVersion") or "")


def labels_of(obj: Manifest) -> Mapping[str, str]:
    """`metadata.labels`."""
    return subobject(meta_of(obj), "labels")


def annotations_of(obj: Manifest) -> Mapping[str, str]:
    """`metadata.annotations`."""
    return subobject(meta_of(obj), "annotations")


def acting_for(*manifests: Manifest) -> dict[str, str]:
    """The annotation that names on whose behalf an object is created from others.

    Admission has recorded it on them. Empty where one of them has no record, so that the object
    counts as submitted by an unknown user.
    """
    found = [parse_submitters(annotations_of(each).get(SUBMITTER)) for each in manifests]
    if not all(found):
        return {}
    return {SUBMITTER: format_submitters(subject for each in found for subject in each)}


def without_record(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations of a template, but for a record that its author has written there."""
    return {name: text for name, text in annotations.items() if name != SUBMITTER}


def is_terminating(obj: Manifest) -> bool:
    """Whether the deletion of the object was requested."""
    return bool(meta_of(obj).get("deletionTimestamp"))


def created_ms(obj: Manifest) -> int:
    """When the object was created; 0 where it does not say."""
    return time_ms(meta_of(obj).get("creationTimestamp")) or 0


def time_ms(text: object) -> int | None:
    """A time of the API, in milliseconds since 1970; None where there is none."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return parse_time_ms(text)
    except TimestampError:
        return None


def ref_of(kind: Kind, obj: Manifest) -> Ref:
    """Where the API server keeps the object."""
    return Ref(kind, namespace_of(obj), name_of(obj))


def controller_of(obj: Manifest) -> Mapping[str, Any] | None:
    """The reference to the owner that manages the object, if one does."""
    owners = meta_of(obj).get("ownerReferences")
    if not isinstance(owners, list):
        return None
    return next((o for o in owners if isinstance(o, dict) and o.get("controller") is True), None)


def owner_reference(kind: Kind, obj: Manifest) -> dict[str, Any]:
    """A reference that makes the object the controlling owner of another one."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name_of(obj),
        "uid": uid_of(obj),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def group_of(api_version: str) -> str:
    """The group in an `apiVersion`; empty for the core group."""
    return api_version.rpartition("/")[0]
