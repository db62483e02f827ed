"""Which fields the manifest of a `kubectl apply` sets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.findings import get_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.admission.review import Raw, Request

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def declares_field(request: Request, field: str) -> bool | None:
    """Return whether the manifest sets a field of `spec`; None if the request is no apply.

    `kubectl apply` keeps the manifest in an annotation; with `--server-side` the API server notes
    the fields of each manager that applies (`metadata.managedFields`).
    """
    old, new = get_mapping(request.old, "metadata"), get_mapping(request.obj, "metadata")
    text = get_mapping(new, "annotations").get(_LAST_APPLIED)
    if isinstance(text, str) and text != get_mapping(old, "annotations").get(_LAST_APPLIED):
        return field in get_mapping(_decode_mapping(text), "spec")
    fields = [get_mapping(entry, "fieldsV1") for entry in _entries_applied_by(new, request.manager)]
    return any(f"f:{field}" in get_mapping(each, "f:spec") for each in fields) if fields else None


def _decode_mapping(text: str) -> Raw:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _entries_applied_by(meta: Raw, manager: str) -> Iterator[dict[str, Any]]:
    """Yield the `managedFields` entries that a field manager has applied."""
    entries = meta.get("managedFields")
    wanted = {"operation": "Apply", "manager": manager}
    for entry in entries if isinstance(entries, list) and manager else ():
        if isinstance(entry, dict) and wanted.items() <= entry.items():
            yield entry
