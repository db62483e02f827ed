"""ColocationConfiguration: how pods share memory on a node, read from `config.volcano.sh/v1alpha1`.

Source of names, defaults and limits: Volcano's config/v1alpha1/types.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.api.fields import Fields
from optsched.api.job_schemas import COLOCATION_CONFIGURATION_SCHEMA
from optsched.api.meta import parse_meta
from optsched.api.selectors import LabelSelector, read_selector

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class MemoryQos:
    """Limits of memory, as hundredths of what a pod may have."""

    high: int = 100
    low: int = 0
    min: int = 0


@dataclass(frozen=True, slots=True)
class ColocationCondition:
    """One fact and since when it holds, in milliseconds since 1970, or None."""

    type: str
    status: str
    generation: int = 0
    transition_ms: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ColocationConfiguration:
    """How pods share memory. selector: None where no pods are named. errors: unreadable fields."""

    meta: ObjectMeta
    selector: LabelSelector | None = None
    memory: MemoryQos | None = None
    conditions: tuple[ColocationCondition, ...] = ()
    errors: tuple[FieldError, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.meta.key


def parse_colocation(obj: object) -> tuple[ColocationConfiguration | None, tuple[FieldError, ...]]:
    """The configuration in a manifest or an answer of the API server, and what is wrong with it.

    None only for an object without a name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, COLOCATION_CONFIGURATION_SCHEMA, "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    selector, memory = spec.optional_record("selector"), spec.optional_record("memoryQos")
    found = ColocationConfiguration(
        meta=meta,
        selector=read_selector(selector) if selector else None,
        memory=_memory(memory) if memory else None,
        conditions=tuple(_condition(each) for each in status.records("conditions")),
        errors=tuple(errors),
    )
    return found, found.errors


def _memory(memory: Fields) -> MemoryQos:
    return MemoryQos(
        high=memory.integer("highRatio"),
        low=memory.integer("lowRatio"),
        min=memory.integer("minRatio"),
    )


def _condition(fields: Fields) -> ColocationCondition:
    return ColocationCondition(
        type=fields.text("type"),
        status=fields.text("status"),
        generation=fields.integer("observedGeneration"),
        transition_ms=fields.time_ms("lastTransitionTime"),
        reason=fields.text("reason"),
        message=fields.text("message"),
    )
