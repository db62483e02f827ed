"""Values in the order of their names, as snapshots hold them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Generic, TypeVar

V = TypeVar("V")


class SortedMap(Generic[V]):
    """Values by name; what is equal to what it replaces is left as it is."""

    def __init__(self) -> None:
        self._by_name: dict[str, V] = {}
        self._names: list[str] = []
        self._values: tuple[V, ...] | None = ()

    def lookup(self, name: str) -> V | None:
        """The value of a name; None where there is none."""
        return self._by_name.get(name)

    def store(self, name: str, value: V) -> None:
        """Put a value in its place."""
        known = self._by_name.get(name)
        if known is None:
            insort(self._names, name)
        elif known == value:
            return
        self._by_name[name] = value
        self._values = None

    def remove(self, name: str) -> None:
        """Forget a name; nothing happens if it is not there."""
        if self._by_name.pop(name, None) is None:
            return
        del self._names[bisect_left(self._names, name)]
        self._values = None

    @property
    def values(self) -> tuple[V, ...]:
        """All values; the very same tuple as long as nothing changes."""
        if self._values is None:
            self._values = tuple(map(self._by_name.__getitem__, self._names))
        return self._values
