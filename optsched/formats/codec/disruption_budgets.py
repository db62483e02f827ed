"""PodDisruptionBudgets: how many of the pods that they select may be evicted now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.cluster.snapshot import Budget
from optsched.formats.codec.core_schemas import BUDGET
from optsched.formats.codec.selectors import label_selector

if TYPE_CHECKING:
    from optsched.units import FieldError


def parse_budget(obj: object) -> tuple[Budget | None, tuple[FieldError, ...]]:
    """The budget, and every field that has no reading; None only without a name.

    One that nobody has counted yet allows nothing, as the eviction API has it.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, BUDGET, "", errors)
    selector = label_selector(whole.record("spec").optional_record("selector"))
    allowed = whole.record("status").integer("disruptionsAllowed")
    return Budget(meta.key, selector, allowed), tuple(errors)
