"""A policy file that may change while the scheduler runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from optsched.policy.catalogue import Shelf
from optsched.policy.diagnostic import PolicyError
from optsched.policy.load import (
    is_shipped,
    load_policy,
    parse_policy,
    read_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optsched.policy.catalogue import Files
    from optsched.policy.diagnostic import Problem
    from optsched.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The files have not changed since the last poll."""


@dataclass(frozen=True, eq=False, slots=True)
class Reloaded:
    """The file has changed, or is back at its last valid content, and is in force."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Rejected:
    """The file has changed and cannot be used; the last valid policy stays in force."""

    problems: tuple[Problem, ...]


Change: TypeAlias = Unchanged | Reloaded | Rejected

_Seen: TypeAlias = "tuple[str, Files] | tuple[Problem, ...]"
"""The contents that were read last, or the problems that kept them from being read."""

_EMPTY = Shelf()


class PolicyWatch:
    """The policy in force, and the files that it and its plugins were read from.

    Contents are compared, not times or inodes: a mounted ConfigMap is updated by symbolic links.
    A shipped model never changes.
    """

    def __init__(
        self, name_or_path: str, read: Callable[[Path], str], shelf: Shelf = _EMPTY
    ) -> None:
        """Load the policy for the first time; raise `PolicyError` if that fails."""
        self._path = None if is_shipped(name_or_path) else name_or_path
        self._read = read
        self._shelf = shelf
        self._seen: _Seen = ("", ())
        if self._path is None:
            self._policy = load_policy(name_or_path, read, shelf)
        else:
            text = read_text(self._path, read)
            self._policy = parse_policy(text, self._path, shelf)
            self._seen = (text, self._policy.plugin_files)

    @property
    def policy(self) -> Policy:
        """The last valid policy."""
        return self._policy

    def poll(self) -> Change:
        """Read the files again and return the change; the same problems are reported once."""
        if self._path is None:
            return Unchanged()
        try:
            text = read_text(self._path, self._read)
            seen = (text, self._shelf.contents())
        except PolicyError as e:
            return self._reject(e.problems, e.problems)
        if seen == self._seen:
            return Unchanged()
        try:
            self._policy = parse_policy(text, self._path, self._shelf)
        except PolicyError as e:
            return self._reject(seen, e.problems)
        self._seen = (text, self._policy.plugin_files)
        return Reloaded(self._policy)

    def _reject(self, seen: _Seen, problems: tuple[Problem, ...]) -> Unchanged | Rejected:
        if seen == self._seen:
            return Unchanged()
        self._seen = seen
        return Rejected(problems)
