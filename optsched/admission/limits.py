"""Limits on reviewed objects, so that the cost of a review is proportional to its size.

An API server accepts objects of 3 MiB. Most objects have at most one value per 20 bytes, so these
limits reject no object that a cluster could run. `review.count_values` counts the values in the
text before it is decoded. `check_shape` counts the values in the decoded object, and `check_count`
checks the length of a single list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.admission.review import MAX_VALUES

if TYPE_CHECKING:
    from optsched.admission.findings import Findings

MAX_DEPTH: Final = 32
"""Maximum nesting depth of lists and mappings; no pod field is deeper than 20 levels."""
MAX_FIELD_NAME: Final = 320
"""Maximum characters of a field name; the longest names, those of annotations, have 317."""

MAX_TASKS: Final = 1000
MAX_CONTAINERS: Final = 500
MAX_CLAIMS: Final = 500
MAX_FLOWS: Final = 1000
MAX_MEMBERS: Final = 10_000

_MANAGED: Final = "managedFields"


def check_shape(obj: object, name: str, findings: Findings) -> None:
    """Deny an object that is too large, is nested too deeply or has field names that are too long.

    `name` is the object's name in messages. Raises `ReviewEnded` at the first problem.
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
        # The API server derives the field names in managedFields from values, and no rule reads
        # them.
        return [each for field, each in value.items() if field != _MANAGED]
    return value.values()


def check_count(path: str, number: int, most: int, findings: Findings) -> None:
    """Deny a list that is too long, with the Kubernetes message; raises `ReviewEnded`."""
    if number > most:
        findings.end(f"{path}: Too many: {number}: must have at most {most} items")
