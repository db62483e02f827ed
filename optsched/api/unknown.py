"""Fields that a kind does not have, for files that no API server has looked at.

A server prunes what its schema does not know, so a misspelt field simply has no effect there. In
a file it is worth a message.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from optsched.api import kinds
from optsched.api.crds import POD_GROUP_SCHEMA, QUEUE_SCHEMA
from optsched.api.job_schemas import (
    COMMAND_SCHEMA,
    CRON_JOB_SCHEMA,
    JOB_FLOW_SCHEMA,
    JOB_SCHEMA,
    JOB_TEMPLATE_SCHEMA,
)
from optsched.api.priorityclass import PRIORITY_CLASS_SCHEMA
from optsched.api.schema import Schema, record
from optsched.api.topology_schemas import HYPER_NODE_SCHEMA, NUMATOPOLOGY_SCHEMA
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterator

_META: Final = (
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "selfLink",
)
_META_SCHEMA: Final = record("", **{name: {} for name in _META})
_SCHEMAS: Final = {
    kinds.QUEUE: QUEUE_SCHEMA,
    kinds.POD_GROUP: POD_GROUP_SCHEMA,
    kinds.HYPER_NODE: HYPER_NODE_SCHEMA,
    kinds.NUMATOPOLOGY: NUMATOPOLOGY_SCHEMA,
    kinds.PRIORITY_CLASS: PRIORITY_CLASS_SCHEMA,
    kinds.JOB: JOB_SCHEMA,
    kinds.CRON_JOB: CRON_JOB_SCHEMA,
    kinds.COMMAND: COMMAND_SCHEMA,
    kinds.JOB_FLOW: JOB_FLOW_SCHEMA,
    kinds.JOB_TEMPLATE: JOB_TEMPLATE_SCHEMA,
}


def unknown_fields(kind: kinds.Kind, obj: object) -> tuple[FieldError, ...]:
    """An error for each field that `kind` does not have, with the word that was likely meant.

    Empty for a kind whose schema is not ours to know, such as Pod.
    """
    schema = _SCHEMAS.get(kind)
    if schema is None:
        return ()
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    return (*_strangers(obj, schema, ""), *_strangers(metadata, _META_SCHEMA, "metadata"))


def _strangers(value: object, schema: Schema, path: str) -> Iterator[FieldError]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict):
        yield from _strangers_in_mapping(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            yield from _strangers(item, schema["items"], f"{path}[{position}]")


def _strangers_in_mapping(
    value: dict[object, object], schema: Schema, path: str
) -> Iterator[FieldError]:
    fields: Schema | None = schema.get("properties")
    for name, part in value.items():
        if fields is None:
            yield from _strangers(part, schema.get("additionalProperties", {}), f"{path}[{name}]")
        elif name in fields:
            yield from _strangers(part, fields[str(name)], f"{path}.{name}" if path else str(name))
        else:
            yield FieldError(f"{path}.{name}" if path else str(name), part, _hint(name, fields))


def _hint(name: object, fields: Schema) -> str:
    close = get_close_matches(str(name), fields, n=1)
    if close:
        return f"has no meaning here; did you mean {close[0]}?"
    return f"has no meaning here; known are {', '.join(sorted(fields))}"
