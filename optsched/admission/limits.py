"""Limits on what one review may hold, so that its cost stays in proportion to its size.

An API server takes objects of 3 MiB. Most objects have a value for every 20 bytes or more, so
these limits refuse none that a cluster could run. `review.count_values` counts values of the text
before it is decoded, `check_shape` at the decoded object, `check_count` at single lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.admission.review import MAX_VALUES

if TYPE_CHECKING:
    from optsched.admission.findings import Findings

MAX_DEPTH: Final = 32
"""Lists and mappings inside of one another; no field of a pod is below the twentieth."""
MAX_FIELD_NAME: Final = 320
"""Characters of a field's name; Kubernetes' longest, that of an annotation, has 317."""

MAX_TASKS: Final = 1000
MAX_CONTAINERS: Final = 500
MAX_CLAIMS: Final = 500
MAX_FLOWS: Final = 1000
MAX_MEMBERS: Final = 10_000

_MANAGED: Final = "managedFields"


def check_shape(obj: object, name: str, findings: Findings) -> None:
    """Deny an object that is too large, too deep or has field names that are too long.

    name: of the object in the review. Raises `ReviewEnded` for the first problem.
    """
    num_values, depth, level = 0, 0, [obj]
    while level:
        num_values, depth = num_values + len(level), depth + 1
        if num_values > MAX_VALUES:
            findings.end(f"{name} has too many values: write at most {MAX_VALUES}")
        if depth > MAX_DEPTH + 1:
            findings.end(f"{name} is nested too deeply: write at most {MAX_DEPTH} levels")
        level = [each for value in level for each in _child_values(value, name, findings)]


def _child_values(value: object, name: str, findings: Findings) -> Any:  # noqa: ANN401  JSON
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return ()
    for field in value:
        if len(field) > MAX_FIELD_NAME:
            findings.end(
                f"{name}: a field name has {len(field)} characters: {field[:60]}…: "
                f"write at most {MAX_FIELD_NAME}"
            )
    if _MANAGED in value:
        # Names there are made of values, by the API server; no rule reads them.
        return [each for field, each in value.items() if field != _MANAGED]
    return value.values()


def check_count(path: str, number: int, most: int, findings: Findings) -> None:
    """Deny a list that is too long, worded as Kubernetes does; raises `ReviewEnded`."""
    if number > most:
        findings.end(f"{path}: Too many: {number}: must have at most {most} items")
