"""Caches of bounded size, for long-running processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K")
V = TypeVar("V")


class RecentCache(Generic[K, V]):
    """A cache that keeps each value for at least `size` additions after the value was last read."""

    def __init__(self, size: int, count_used: Callable[[], int] = int) -> None:
        """`count_used` returns how many values are in use; the cache keeps at least that many."""
        self._size = size
        self._count_used = count_used
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if the cache does not hold it."""
        value = self._young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self.add(key, value)
        return value

    def add(self, key: K, value: V) -> V:
        """Store a value under a key, and return the value."""
        if len(self._young) >= max(self._size, self._count_used()):
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value


class Interned(Generic[V]):
    """Replaces equal objects by one shared object, which is dropped once no caller uses it."""

    def __init__(self) -> None:
        self._refs: WeakKeyDictionary[V, ref[V]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._refs)

    def intern(self, value: V) -> V:
        """Return the stored object that equals `value`; if none exists, store `value` first."""
        known = self._refs.get(value)
        kept = None if known is None else known()
        if kept is None:
            self._refs[value] = ref(value)
            return value
        return kept


class SharedObjects(Generic[V]):
    """Builds one shared object per argument tuple, which is dropped once no caller uses it."""

    def __init__(self, make: Callable[..., V]) -> None:
        """`make` is called with the arguments and returns the object to share."""
        self._make = make
        self._objects: WeakValueDictionary[tuple[Hashable, ...], V] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._objects)

    def intern(self, *arguments: Hashable) -> V:
        """Return the object for the arguments; if none is stored, build the object first."""
        known = self._objects.get(arguments)
        if known is None:
            known = self._objects[arguments] = self._make(*arguments)
        return known
