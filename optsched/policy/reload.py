"""Reload a policy file that may change while the scheduler runs."""

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
    """The result of a poll that found no change."""


@dataclass(frozen=True, eq=False, slots=True)
class Reloaded:
    """The result of a poll that found a valid change; `policy` is now in force."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Rejected:
    """The result of a poll that found an invalid change; the last valid policy stays in force."""

    problems: tuple[Problem, ...]


Change: TypeAlias = Unchanged | Reloaded | Rejected

_Seen: TypeAlias = "tuple[str, Files] | tuple[Problem, ...]"
"""The file contents at the last poll, or the errors if the files could not be read."""

_EMPTY = Shelf()


class PolicyWatch:
    """The policy in force, reloaded when the policy file or a plugin file changes.

    Changes are detected by file contents, not by modification times or inodes, because Kubernetes
    updates a mounted ConfigMap by replacing symbolic links. A shipped model never changes.
    """

    def __init__(
        self, name_or_path: str, read: Callable[[Path], str], shelf: Shelf = _EMPTY
    ) -> None:
        """Load the policy, and raise `PolicyError` if it is invalid."""
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
        """Read the files again, and return what has changed since the last poll.

        An invalid change is returned only once; later polls return `Unchanged`.
        """
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
