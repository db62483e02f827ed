"""Finds the newest state of each object, in any order of arrival."""

from __future__ import annotations

from collections import Counter
from typing import Final

from optsched.cluster.bounded_cache import RecentCache

_REMEMBERED: Final = 512
"""Number of deleted objects to remember, so that an old state does not restore them.

An old state arrives within moments of the deletion.
"""


class ResourceVersions:
    """The newest resource version of each object of one kind, by key.

    Resource versions of a kind are comparable as numbers (KEP-5504); one that is no number counts
    as newer than all others.
    """

    def __init__(self) -> None:
        self.namespaces: Counter[str] = Counter()
        self._known: dict[str, int] = {}
        self._deleted: RecentCache[str, int] = RecentCache(_REMEMBERED)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    @property
    def keys(self) -> tuple[str, ...]:
        """The objects that exist."""
        return tuple(self._known)

    def lookup(self, key: str) -> str:
        """Return the newest version of an object; empty if unknown."""
        known = self._known.get(key, -1)
        return "" if known < 0 else str(known)

    def replace(self, key: str, version: str) -> bool:
        """Record a state from a list; returns False if it is known already."""
        number = _number(version)
        if number is not None and self._known.get(key) == number:
            return False
        self._record(key, -1 if number is None else number)
        return True

    def change(self, key: str, version: str) -> bool:
        """Record a state from a watch; returns False if it is not newer than the known one."""
        number = _number(version)
        if number is None:
            self._record(key, -1)
            return True
        newest = self._known.get(key)
        if newest is None:
            newest = self._deleted.get(key) or -1
        if number <= newest:
            return False
        self._record(key, number)
        return True

    def delete(self, key: str, version: str) -> bool:
        """Record a deletion; returns False if the object is unknown or was created again since."""
        number, newest = _number(version), self._known.get(key)
        if number is not None:
            self._deleted.add(key, max(number, self._deleted.get(key) or -1))
        if newest is None or (number is not None and number < newest):
            return False
        self.drop(key)
        return True

    def drop(self, key: str) -> None:
        """Remove an object."""
        del self._known[key]
        if namespace := _namespace(key):
            self.namespaces[namespace] -= 1
            if not self.namespaces[namespace]:
                del self.namespaces[namespace]

    def _record(self, key: str, version: int) -> None:
        if key not in self._known and (namespace := _namespace(key)):
            self.namespaces[namespace] += 1
        self._known[key] = version


def _namespace(key: str) -> str:
    return key.rpartition("/")[0]


def _number(version: str) -> int | None:
    return int(version) if version.isdecimal() and version.isascii() else None
