"""PriorityClass: a named priority, read from `scheduling.k8s.io/v1`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from optsched.api.fields import Fields, boolean, integer, record, text
from optsched.api.meta import parse_meta

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError

PRIORITY_CLASS_SCHEMA: Final = record(
    "A name for a priority.",
    ("value",),
    apiVersion=text("Group and version of the kind."),
    kind=text("Name of the kind."),
    metadata={"type": "object"},
    value=integer("The priority; pods with a higher priority are scheduled first."),
    globalDefault=boolean("Whether this is the class of pods that name none."),
    description=text("When to use this class."),
    preemptionPolicy=text(
        "Whether pods of this class may preempt pods with a lower priority.",
        enum=["PreemptLowerPriority", "Never"],
        default="PreemptLowerPriority",
    ),
)


class PreemptionPolicy(StrEnum):
    """Whether the pods of a PriorityClass may preempt pods of lower priority."""

    LOWER = "PreemptLowerPriority"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass: a named priority for pods."""

    meta: ObjectMeta
    value: int
    global_default: bool = False
    preemption_policy: PreemptionPolicy = PreemptionPolicy.LOWER
    description: str = ""
    errors: tuple[FieldError, ...] = ()

    @property
    def name(self) -> str:
        """The name that pods and PodGroups use to refer to the PriorityClass."""
        return self.meta.name


def parse_priority_class(obj: object) -> tuple[PriorityClass | None, tuple[FieldError, ...]]:
    """Parse a PriorityClass from a manifest or API object; return it with its field errors.

    The PriorityClass is None only if the object has no name. `value` is 0 if the field cannot be
    read.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    fields = Fields(obj, PRIORITY_CLASS_SCHEMA, "", errors)
    found = PriorityClass(
        meta=meta,
        value=fields.integer("value"),
        global_default=fields.boolean("globalDefault"),
        preemption_policy=PreemptionPolicy(fields.text("preemptionPolicy")),
        description=fields.text("description"),
        errors=tuple(errors),
    )
    return found, found.errors
