"""The metadata of API objects, and the types of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from optsched.units import FieldError, TimestampError, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOT_AN_OBJECT = "is not an object: write a mapping with metadata"
_NO_NAME = "is missing: every object needs a name"
NOT_A_MAPPING = "is not a mapping of field names to values"
_NOT_TEXT = "is not a string: write it in quotes"
_NOT_TEXTS = "is not a mapping from strings to strings"


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """A reference to the object that owns another object."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool = False


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """The name, timestamps, labels, annotations and owners of an object.

    `creation_ms` is 0 if the object has no creation time, for example in a manifest. `deletion_ms`
    is the deletion timestamp, or None. Timestamps are in milliseconds since 1970.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    creation_ms: int = 0
    deletion_ms: int | None = None
    owners: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> str:
        """The key `namespace/name`, or only the name for a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference with `controller: true`, or None."""
        return next((owner for owner in self.owners if owner.controller), None)


@dataclass(frozen=True, slots=True)
class ApiObject:
    """The metadata of an API object, and an error for each field that cannot be read.

    A field that cannot be read has its default value. The subclasses add the fields of their kinds.
    """

    meta: ObjectMeta
    errors: tuple[FieldError, ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.meta.name

    @property
    def key(self) -> str:
        """The key `namespace/name`, or only the name for a cluster-scoped object."""
        return self.meta.key


def parse_meta(obj: object, errors: list[FieldError]) -> ObjectMeta | None:
    """Return the metadata of an object, or None if the object has no name.

    Adds an error to `errors` for each unreadable field, which takes its default value.
    """
    if not isinstance(obj, dict):
        errors.append(FieldError("", obj, _NOT_AN_OBJECT))
        return None
    meta = obj.get("metadata")
    if meta is not None and not isinstance(meta, dict):
        errors.append(FieldError("metadata", meta, NOT_A_MAPPING))
        return None
    name = (meta or {}).get("name")
    if meta is None or not isinstance(name, str) or not name:
        problem = _NO_NAME if name is None or name == "" else _NOT_TEXT
        errors.append(FieldError("metadata.name", name, problem))
        return None
    owners = meta.get("ownerReferences")
    return ObjectMeta(
        name=name,
        namespace=_text(meta, "namespace", errors),
        uid=_text(meta, "uid", errors),
        resource_version=_text(meta, "resourceVersion", errors),
        labels=_texts(meta, "labels", errors),
        annotations=_texts(meta, "annotations", errors),
        creation_ms=_time_ms(meta, "creationTimestamp", errors) or 0,
        deletion_ms=_time_ms(meta, "deletionTimestamp", errors),
        owners=tuple(
            OwnerReference(
                api_version=str(reference.get("apiVersion") or ""),
                kind=str(reference.get("kind") or ""),
                name=str(reference.get("name") or ""),
                uid=str(reference.get("uid") or ""),
                controller=reference.get("controller") is True,
            )
            for reference in (owners if isinstance(owners, list) else ())
            if isinstance(reference, dict)
        ),
    )


def _text(meta: dict[str, object], name: str, errors: list[FieldError]) -> str:
    value = meta.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    errors.append(FieldError(f"metadata.{name}", value, _NOT_TEXT))
    return ""


def _texts(meta: dict[str, object], name: str, errors: list[FieldError]) -> dict[str, str]:
    value = meta.get(name)
    if not value:
        return {}
    if not isinstance(value, dict):
        errors.append(FieldError(f"metadata.{name}", value, _NOT_TEXTS))
        return {}
    if all(type(text) is str for text in value.values()):
        return value
    invalid = {key: text for key, text in value.items() if not isinstance(text, str | None)}
    errors += [FieldError(f"metadata.{name}[{key}]", v, _NOT_TEXT) for key, v in invalid.items()]
    return {key: text or "" for key, text in value.items() if key not in invalid}


def _time_ms(meta: dict[str, object], name: str, errors: list[FieldError]) -> int | None:
    value = meta.get(name)
    if value is None:
        return None
    try:
        return parse_time_ms(value)
    except TimestampError as error:
        errors.append(error.at_path(f"metadata.{name}"))
        return None


# --- events ---------------------------------------------------------------------------------------


class EventType(StrEnum):
    """The type of a Kubernetes event: normal or warning."""

    NORMAL = "Normal"
    WARNING = "Warning"
