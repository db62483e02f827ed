"""Limits on reviewed objects, which keep the cost of a review proportional to the object's size.

An API server accepts objects of 3 MiB. Real objects have at most about one value per 20 bytes, so
they stay below these limits. `review.count_values` bounds the number of values before the JSON is
decoded. `check_shape` counts the values in the decoded object, and `check_count` checks the length
of a single list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.admission.review import MAX_VALUES

if TYPE_CHECKING:
    from optsched.admission.findings import Findings

MAX_DEPTH: Final = 32
"""Maximum nesting depth of lists and mappings; no pod field is deeper than 20 levels."""
MAX_FIELD_NAME: Final = 320
"""Maximum length of a field name; annotation keys are the longest, with at most 317 characters."""

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
            findings.end(f"{name} has too many values: at most {MAX_VALUES} are allowed")
        if depth > MAX_DEPTH + 1:
            findings.end(f"{name} is nested too deeply: at most {MAX_DEPTH} levels are allowed")
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
                f"at most {MAX_FIELD_NAME} are allowed"
            )
    if _MANAGED in value:
        # In managedFields, the API server derives field names from values. No rule reads them.
        return [each for field, each in value.items() if field != _MANAGED]
    return value.values()


def check_count(path: str, number: int, most: int, findings: Findings) -> None:
    """Deny a list that is too long, with the Kubernetes message; raises `ReviewEnded`."""
    if number > most:
        findings.end(f"{path}: Too many: {number}: must have at most {most} items")
