"""OpenAPI schemas of PriorityClasses, and of the custom resources in `deploy/crds`.

Groups, names, fields, defaults and limits are the same as in Volcano (staging/src/volcano.sh/apis:
scheduling v1beta1, batch, bus, flow, topology, nodeinfo, shard and config v1alpha1). Volcano's
clients can therefore decode every custom resource that optsched stores. The schemas differ from
those of Volcano as follows:
- The schema sets the default of `reclaimable`; in Volcano a webhook sets it.
- The schema accepts an empty state or phase.
- `kubectl get` prints more columns.
- The event `JobUnknown` is accepted as another name for `Unknown`.
- A task's `maxRetry` may be -1, which allows any number of restarts.
- `status.evictions` counts the restarts after evictions; these restarts do not count towards
  `maxRetry`.
- `status.deletions` lists deleted pods for which the timeout of a lifecycle policy has not expired.
- Unknown fields of a pod template are preserved.
- Durations must match a pattern, because a duration that Go cannot parse would break every Go
  client that watches jobs.
"""

from __future__ import annotations

import importlib.resources
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import yaml

from optsched.api import kinds
from optsched.api.fields import Schema, boolean, integer, record, text, whole_object
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterator

CUSTOM_KINDS: Final = (
    kinds.QUEUE,
    kinds.POD_GROUP,
    kinds.HYPER_NODE,
    kinds.NUMATOPOLOGY,
    kinds.NODE_SHARD,
    kinds.JOB,
    kinds.CRON_JOB,
    kinds.COMMAND,
    kinds.JOB_FLOW,
    kinds.JOB_TEMPLATE,
    kinds.COLOCATION_CONFIGURATION,
)
"""The custom resource kinds that the manifests in `deploy/crds` define."""

PRIORITY_CLASS_SCHEMA: Final = whole_object(
    "A name for a priority.",
    ("value",),
    value=integer("The priority; pods with a higher priority are scheduled first."),
    globalDefault=boolean("Whether pods that name no PriorityClass belong to this class."),
    description=text("When to use this class."),
    preemptionPolicy=text(
        "Whether pods of this class may preempt pods with a lower priority.",
        enum=["PreemptLowerPriority", "Never"],
        default="PreemptLowerPriority",
    ),
)

_CHECKED_KINDS: Final = frozenset(CUSTOM_KINDS) - {
    kinds.NODE_SHARD,
    kinds.COLOCATION_CONFIGURATION,
} | {kinds.PRIORITY_CLASS}
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
_META_SCHEMA: Final = record(**{name: {} for name in _META})


@cache
def custom_resource_definition(kind: kinds.Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one of CUSTOM_KINDS; callers must not change it."""
    folder = importlib.resources.files("optsched.deploy") / "crds"
    source = (folder / f"{kind.group}_{kind.plural}.yaml").read_text(encoding="utf-8")
    # PyYAML's C loader, if installed, is five times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Any] = yaml.load(source, Loader=loader)  # noqa: S506 - both loaders are safe
    return found


@cache
def schema_of(kind: kinds.Kind) -> Schema:
    """Return the structural schema of one of CUSTOM_KINDS; callers must not change it."""
    (version,) = custom_resource_definition(kind)["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def job_spec_schema() -> Schema:
    """Return the schema of a Job's spec, which JobTemplates and CronJobs also contain."""
    schema: Schema = schema_of(kinds.JOB)["properties"]["spec"]
    return schema


# --- fields that a kind does not have -------------------------------------------------------------


def unknown_fields(kind: kinds.Kind, obj: object) -> tuple[FieldError, ...]:
    """Return an error for each field of `obj` that the schema of `kind` does not declare.

    Each error suggests a similar field name, or lists the names of all declared fields. An API
    server silently drops undeclared fields. The result is empty for kinds without a schema in this
    package, such as Pod.
    """
    if kind not in _CHECKED_KINDS:
        return ()
    schema = PRIORITY_CLASS_SCHEMA if kind == kinds.PRIORITY_CLASS else schema_of(kind)
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    return (
        *find_unknown_fields(obj, schema, ""),
        *find_unknown_fields(metadata, _META_SCHEMA, "metadata"),
    )


def find_unknown_fields(value: object, schema: Schema, path: str = "") -> Iterator[FieldError]:
    """Yield an error for each field in `value` that the schema does not declare.

    `path` is the field path of `value`. Each error suggests a similar field name, or lists all
    field names.
    """
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict):
        fields: Schema | None = schema.get("properties")
        for name, part in value.items():
            if fields is None:
                yield from find_unknown_fields(
                    part, schema.get("additionalProperties", {}), f"{path}[{name}]"
                )
            elif name in fields:
                yield from find_unknown_fields(
                    part, fields[str(name)], f"{path}.{name}" if path else str(name)
                )
            else:
                close = get_close_matches(str(name), fields, n=1)
                known = f"known fields are {', '.join(sorted(fields))}"
                hint = f"did you mean {close[0]}?" if close else known
                problem = f"is the value of an unknown field; {hint}"
                yield FieldError(f"{path}.{name}" if path else str(name), part, problem)
    elif isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            yield from find_unknown_fields(item, schema["items"], f"{path}[{position}]")
