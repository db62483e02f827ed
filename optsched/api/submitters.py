"""Who submitted work, as admission records it in the annotation `optsched.io/submitter`.

The text is JSON: `{"user": "ann", "groups": ["lab-a"]}`, or a list of such where work has come
about by several users, each of whom must be allowed what the work asks for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Subject:
    """A user, and the groups that the API server has found him in."""

    user: str
    groups: frozenset[str] = frozenset()


def parse_submitters(text: object) -> tuple[Subject, ...]:
    """The subjects in an annotation; none where it is missing or has no reading."""
    if not isinstance(text, str) or not text:
        return ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    entries = found if isinstance(found, list) else [found]
    subjects = [_subject(entry) for entry in entries]
    # A part without a reading must not make the rest count for more.
    return tuple(s for s in subjects if s is not None) if all(subjects) else ()


def format_submitters(subjects: Iterable[Subject]) -> str:
    """The text of an annotation; equal subjects are written once, in the order of their names."""
    unique = sorted(set(subjects), key=lambda subject: (subject.user, sorted(subject.groups)))
    entries = [{"user": each.user, "groups": sorted(each.groups)} for each in unique]
    return json.dumps(entries[0] if len(entries) == 1 else entries, separators=(",", ":"))


def _subject(entry: object) -> Subject | None:
    if not isinstance(entry, dict):
        return None
    user, groups = entry.get("user"), entry.get("groups")
    if not isinstance(user, str) or not user or not isinstance(groups, list):
        return None
    return Subject(user, frozenset(group for group in groups if isinstance(group, str)))
