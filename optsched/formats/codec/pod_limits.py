"""PriorityClasses, ResourceQuotas and PodDisruptionBudgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from optsched.api.crds import PRIORITY_CLASS_SCHEMA
from optsched.api.fields import Fields
from optsched.api.meta import ApiObject, parse_meta
from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Budget, Quota
from optsched.formats.codec.annotations import YIELDS_TO_GUARANTEES
from optsched.formats.codec.core_schemas import BUDGET, QUOTA
from optsched.formats.codec.selectors import label_selector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.units import FieldError


class PreemptionPolicy(StrEnum):
    """Whether the pods with a PriorityClass may preempt pods of lower priority."""

    LOWER = "PreemptLowerPriority"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class PriorityClass(ApiObject):
    """A PriorityClass: a named priority for pods."""

    value: int
    global_default: bool = False
    preemption_policy: PreemptionPolicy = PreemptionPolicy.LOWER
    description: str = ""


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


SYSTEM: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
"""Values of the built-in priority classes (k8s.io/kubernetes, pkg/apis/scheduling)."""


@dataclass(frozen=True, slots=True)
class Priorities:
    """The values of priority classes, and which classes have `preemptionPolicy: Never`.

    Attributes
    ----------
    values
        Priority values, keyed by name of the priority class.
    default
        Priority of pods without a priority class: the value of the global default class, or 0.
    never_preempting
        Names of the priority classes with `preemptionPolicy: Never`. The empty name stands for the
        class that is the global default.
    """

    values: Mapping[str, int] = field(default_factory=lambda: SYSTEM)
    default: int = 0
    never_preempting: frozenset[str] = frozenset()

    def value_of(self, name: str) -> int | None:
        """Return a priority class's value, or None if unknown; "" selects the default class."""
        return self.values.get(name) if name else self.default


def priorities(classes: Iterable[PriorityClass]) -> Priorities:
    """Collect the values and preemption policies of priority classes.

    If several priority classes are global defaults, the one with the smallest value applies
    (upstream: `getDefaultPriorityClass`).
    """
    known = list(classes)
    default = min(
        (c for c in known if c.global_default), key=lambda c: (c.value, c.name), default=None
    )
    never = {c.name for c in known if c.preemption_policy is PreemptionPolicy.NEVER}
    if default is not None and default.name in never:
        never.add("")
    return Priorities(
        values={**SYSTEM, **{each.name: each.value for each in known}},
        default=0 if default is None else default.value,
        never_preempting=frozenset(never),
    )


def parse_quota(obj: object) -> tuple[Quota | None, tuple[FieldError, ...]]:
    """Parse a ResourceQuota; return it (None if it has scopes or no name) and all field errors.

    Scopes select pods by fields that are unknown before the pods exist, so a quota with scopes
    cannot be checked in advance. The limits come from the status, or from the spec if the
    status has none.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, QUOTA, "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    wanted, hard, used = spec.amounts("hard"), status.amounts("hard"), status.amounts("used")
    if spec.raw("scopes") or spec.raw("scopeSelector"):
        return None, tuple(errors)
    return Quota(meta.key, amounts(hard or wanted), amounts(used)), tuple(errors)


# --- disruption budgets ---------------------------------------------------------------------------


def parse_budget(
    obj: object, *, yields_to_guarantees: bool = False
) -> tuple[Budget | None, tuple[FieldError, ...]]:
    """Parse a PodDisruptionBudget; return it (None if it has no name) and all field errors.

    A budget without a status allows no disruption, as in the eviction API. Evictions for a queue
    guarantee override the budget if `yields_to_guarantees` is True, or if the budget has the
    annotation `YIELDS_TO_GUARANTEES` of a snapshot dump.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, BUDGET, "", errors)
    selector = label_selector(whole.record("spec").optional_record("selector"))
    allowed = whole.record("status").integer("disruptionsAllowed")
    yields = yields_to_guarantees or meta.annotations.get(YIELDS_TO_GUARANTEES) == "true"
    return Budget(meta.key, selector, allowed, yields), tuple(errors)
