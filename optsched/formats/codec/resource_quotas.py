"""ResourceQuotas: how much the pods of a namespace may ask for together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Quota
from optsched.formats.codec.core_schemas import QUOTA

if TYPE_CHECKING:
    from optsched.units import FieldError


def parse_quota(obj: object) -> tuple[Quota | None, tuple[FieldError, ...]]:
    """The quota, and every field that has no reading; None without a name or with scopes.

    Scopes pick pods by fields that do not exist before the pods do, so that nothing can be said
    about them beforehand. Limits are those that the API server has taken over already.
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
