"""Functions that read fields of parsed JSON objects, in which any field may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import Ref
from optsched.api.wellknown import SUBMITTER, format_submitters, parse_submitters
from optsched.units import TimestampError, parse_time_ms

if TYPE_CHECKING:
    from optsched.api.kinds import Kind

Manifest: TypeAlias = Mapping[str, Any]
"""A Kubernetes object as parsed JSON; callers never change it in place."""

_NOTHING: Final[Mapping[str, Any]] = {}


def subobject(obj: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a nested object; empty if the field is missing or not an object."""
    found = obj.get(name)
    return found if isinstance(found, dict) else _NOTHING


def records(obj: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the objects in a list field; items of other types are skipped."""
    found = obj.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def replacement_patch(before: object, after: Any) -> Any:  # noqa: ANN401 any JSON value
    """Return a merge patch that turns `before` into `after`.

    A null value in the patch removes a key that `after` does not have.
    """
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    removed = dict.fromkeys(sorted(before.keys() - after.keys()))
    return {**removed, **{k: replacement_patch(before.get(k), v) for k, v in after.items()}}


def meta_of(obj: Manifest) -> Mapping[str, Any]:
    """Return the `metadata` of an object."""
    return subobject(obj, "metadata")


def spec_of(obj: Manifest) -> Mapping[str, Any]:
    """Return the `spec` of an object."""
    return subobject(obj, "spec")


def status_of(obj: Manifest) -> Mapping[str, Any]:
    """Return the `status` of an object."""
    return subobject(obj, "status")


def job_phase_of(job: Manifest) -> str:
    """Return the `status.state.phase` of a Job; empty if no phase is stored."""
    return str(subobject(status_of(job), "state").get("phase") or "")


def name_of(obj: Manifest) -> str:
    """Return the `metadata.name` of an object."""
    return str(meta_of(obj).get("name") or "")


def namespace_of(obj: Manifest) -> str:
    """Return the `metadata.namespace` of an object; empty for cluster-scoped objects."""
    return str(meta_of(obj).get("namespace") or "")


def uid_of(obj: Manifest) -> str:
    """Return the `metadata.uid` of an object."""
    return str(meta_of(obj).get("uid") or "")


def version_of(obj: Manifest) -> str:
    """Return the `metadata.resourceVersion` of an object."""
    return str(meta_of(obj).get("resourceVersion") or "")


def with_condition(obj: Manifest, condition: Manifest) -> list[Manifest]:
    """Return an object's conditions; `condition` replaces all conditions of its type."""
    listed = (obj.get("status") or {}).get("conditions") or ()
    return [*(each for each in listed if each.get("type") != condition["type"]), condition]


def labels_of(obj: Manifest) -> Mapping[str, str]:
    """Return the `metadata.labels` of an object."""
    return subobject(meta_of(obj), "labels")


def annotations_of(obj: Manifest) -> Mapping[str, str]:
    """Return the `metadata.annotations` of an object."""
    return subobject(meta_of(obj), "annotations")


def acting_for(*manifests: Manifest) -> dict[str, str]:
    """Return the submitter annotation for an object that a controller creates from `manifests`.

    The created object gets every submitter that admission recorded on any of the source objects.
    The result is empty if a source object has no recorded submitters.
    """
    found = [parse_submitters(annotations_of(each).get(SUBMITTER)) for each in manifests]
    if not all(found):
        return {}
    return {SUBMITTER: format_submitters(subject for each in found for subject in each)}


def without_record(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return a template's annotations without the submitter annotation, which users could forge."""
    return {name: text for name, text in annotations.items() if name != SUBMITTER}


def is_terminating(obj: Manifest) -> bool:
    """Return whether an object has a deletion timestamp."""
    return bool(meta_of(obj).get("deletionTimestamp"))


def created_ms(obj: Manifest) -> int:
    """Return the creation time of an object in ms since 1970; 0 if the time is missing."""
    return time_ms(meta_of(obj).get("creationTimestamp")) or 0


def time_ms(text: object) -> int | None:
    """Return an API time in ms since 1970, or None if the time is missing or invalid."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return parse_time_ms(text)
    except TimestampError:
        return None


def ref_of(kind: Kind, obj: Manifest) -> Ref:
    """Return a reference to an object of the given kind."""
    return Ref(kind, namespace_of(obj), name_of(obj))


def controller_of(obj: Manifest) -> Mapping[str, Any] | None:
    """Return the owner reference with `controller: true`, or None."""
    owners = meta_of(obj).get("ownerReferences")
    if not isinstance(owners, list):
        return None
    return next((o for o in owners if isinstance(o, dict) and o.get("controller") is True), None)


def is_owned_as(owner: Mapping[str, Any], kind: Kind) -> bool:
    """Return whether an owner reference has the API group and kind of `kind`."""
    group = group_of(str(owner.get("apiVersion") or ""))
    return (group, owner.get("kind")) == (kind.group, kind.kind)


def is_controlled_by(obj: Manifest, kind: Kind, uid: str) -> bool:
    """Return whether the controlling owner of an object has this kind and UID.

    The kind of the owner must match, because admission does not check references to other kinds.
    """
    owner = controller_of(obj)
    return owner is not None and is_owned_as(owner, kind) and owner.get("uid") == uid


def owner_reference(kind: Kind, obj: Manifest) -> dict[str, Any]:
    """Return the owner reference that makes `obj` the controller of another object."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name_of(obj),
        "uid": uid_of(obj),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def group_of(api_version: str) -> str:
    """Return the API group of an `apiVersion` string; empty for the core group."""
    return api_version.rpartition("/")[0]
