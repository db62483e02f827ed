"""A map whose values are kept in the order of their keys, as snapshots need them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Generic, TypeVar

V = TypeVar("V")


class SortedMap(Generic[V]):
    """Values by name; an equal value does not replace the old object."""

    def __init__(self) -> None:
        self._by_name: dict[str, V] = {}
        self._names: list[str] = []
        self._values: tuple[V, ...] | None = ()

    def lookup(self, name: str) -> V | None:
        """Return the value of a name; None if there is none."""
        return self._by_name.get(name)

    def store(self, name: str, value: V) -> None:
        """Store a value under its name."""
        known = self._by_name.get(name)
        if known is None:
            insort(self._names, name)
        elif known == value:
            return
        self._by_name[name] = value
        self._values = None

    def remove(self, name: str) -> None:
        """Remove a name, if it is there."""
        if self._by_name.pop(name, None) is None:
            return
        del self._names[bisect_left(self._names, name)]
        self._values = None

    @property
    def values(self) -> tuple[V, ...]:
        """All values; the very same tuple until one changes."""
        if self._values is None:
            self._values = tuple(map(self._by_name.__getitem__, self._names))
        return self._values
