"""Find differences between specs; equivalent notations of a value count as equal.

Go clients omit empty and zero values and normalise quantities and durations. A Go client that only
changes an annotation may therefore send `cpu: "1"` instead of `cpu: 1000m`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.findings import get_mapping
from optsched.api.json_fields import records
from optsched.units import DurationError, QuantityError, parse_duration_ns, parse_quantity_field

if TYPE_CHECKING:
    from optsched.admission.review import Request


_AMOUNTS: Final = frozenset({"requests", "limits", "overhead", "capacity"})
_AMOUNT_FIELDS: Final = frozenset({"sizeLimit", "divisor"})
_MAPS: Final = frozenset({"annotations", "labels", "matchLabels", "nodeSelector", "plugins"})
"""Map-valued fields in which a key with a null or empty value differs from a missing key."""
_DURATIONS: Final = frozenset({"timeout", "runningEstimate"})
_POINTERS: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "allowPrivilegeEscalation",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "exitCode",
        "fsGroup",
        "highestTierAllowed",
        "hostUsers",
        "minAvailable",
        "minSuccess",
        "optional",
        "priority",
        "privileged",
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
        "ttlSecondsAfterFinished",
    }
)
"""Fields for which Go distinguishes zero or false from a missing field."""


def find_difference(old: Any, new: Any, path: str = "spec") -> tuple[str, Any, Any] | None:  # noqa: ANN401  JSON
    """Return (path, old value, new value) of the first differing field; None if equivalent."""
    name = path.rpartition(".")[2]
    if isinstance(old, dict | None) and isinstance(new, dict | None):
        before_fields, after_fields = old or {}, new or {}
        for field in dict.fromkeys([*before_fields, *after_fields]):
            before, after = before_fields.get(field), after_fields.get(field)
            if name in _MAPS and (field in before_fields) != (field in after_fields):
                return f"{path}.{field}", before, after
            if name in _AMOUNTS and _same_amount(before, after):
                continue
            difference = find_difference(before, after, f"{path}.{field}")
            if difference:
                return difference
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        found = (
            find_difference(one, other, f"{path}[{position}]")
            for position, (one, other) in enumerate(zip(old, new, strict=True))
        )
        return next((each for each in found if each), None)
    return None if _is_equivalent(old, new, name) else (path, old, new)


def _is_equivalent(old: object, new: object, name: str) -> bool:
    if old == new and type(old) is type(new):
        return True
    if name in _AMOUNT_FIELDS:
        return _same_amount(old, new)
    if name in _DURATIONS:
        try:
            return parse_duration_ns(old) == parse_duration_ns(new)
        except DurationError:
            return False
    return name not in _POINTERS and _is_zero(old) and _is_zero(new)


def _is_zero(value: object) -> bool:
    return value is None or value in ("", 0, False) or value in ([], {})


def _same_amount(old: object, new: object) -> bool:
    try:
        return parse_quantity_field(old) == parse_quantity_field(new)
    except QuantityError:
        return False


_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CLIENT_SIDE_APPLY: Final = "kubectl-client-side-apply"
"""The field manager of `kubectl apply` and `kubectl diff`."""


def declares_field(request: Request, field: str) -> bool | None:
    """Return whether the applied manifest sets a field of `spec`, or None if none was applied.

    `kubectl apply` stores the manifest in an annotation. With `--server-side`, the API server
    records in `metadata.managedFields` which fields each manager applied.
    """
    old, new = get_mapping(request.old, "metadata"), get_mapping(request.obj, "metadata")
    text = get_mapping(new, "annotations").get(_LAST_APPLIED)
    is_new = text != get_mapping(old, "annotations").get(_LAST_APPLIED)
    # `kubectl diff` does not change the annotation of the last `kubectl apply`.
    if isinstance(text, str) and (is_new or request.manager == _CLIENT_SIDE_APPLY):
        try:
            applied = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(applied, dict) and field in get_mapping(applied, "spec")
    fields = [
        get_mapping(entry, "fieldsV1")
        for entry in records(new, "managedFields")
        if request.manager
        and entry.get("operation") == "Apply"
        and entry.get("manager") == request.manager
    ]
    return any(f"f:{field}" in get_mapping(each, "f:spec") for each in fields) if fields else None
