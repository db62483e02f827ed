"""What the manifest of `kubectl apply` says, as far as the API server tells it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.findings import part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.admission.review import Raw, Request

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def declares(request: Request, field: str) -> bool | None:
    """Whether the manifest names a field of `spec`; None where the request applies no manifest.

    `kubectl apply` keeps the manifest in an annotation; with `--server-side` the API server notes
    the fields of each manager that applies (`metadata.managedFields`).
    """
    old, new = part(request.old, "metadata"), part(request.obj, "metadata")
    text = part(new, "annotations").get(_LAST_APPLIED)
    if isinstance(text, str) and text != part(old, "annotations").get(_LAST_APPLIED):
        return field in part(_decode(text), "spec")
    fields = [part(entry, "fieldsV1") for entry in _applied(new, request.manager)]
    return any(f"f:{field}" in part(each, "f:spec") for each in fields) if fields else None


def _decode(text: str) -> Raw:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _applied(meta: Raw, manager: str) -> Iterator[dict[str, Any]]:
    """What a manager has applied, where it is the one that asks."""
    entries = meta.get("managedFields")
    wanted = {"operation": "Apply", "manager": manager}
    for entry in entries if isinstance(entries, list) and manager else ():
        if isinstance(entry, dict) and wanted.items() <= entry.items():
            yield entry
