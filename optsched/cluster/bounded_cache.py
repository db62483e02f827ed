"""Memories that stay small in a process that runs for months."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K")
V = TypeVar("V")


class RecentCache(Generic[K, V]):
    """Values by key; a value that is not read while `size` others are added is forgotten."""

    def __init__(self, size: int, count_used: Callable[[], int] = int) -> None:
        """count_used: the number of values in use; as many are kept where it is above `size`."""
        self._size = size
        self._count_used = count_used
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value, if it is still known."""
        value = self._young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self.add(key, value)
        return value

    def add(self, key: K, value: V) -> V:
        """Keep a value, and hand it back."""
        if len(self._young) >= max(self._size, self._count_used()):
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value


class Interned(Generic[V]):
    """One value for all that are equal, as long as anything else holds it."""

    def __init__(self) -> None:
        self._refs: WeakKeyDictionary[V, ref[V]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._refs)

    def intern(self, value: V) -> V:
        """Return the value that is known and equal; a new one is known from now on."""
        known = self._refs.get(value)
        kept = None if known is None else known()
        if kept is None:
            self._refs[value] = ref(value)
            return value
        return kept


class SharedObjects(Generic[V]):
    """One object for equal arguments, as long as anything else holds it."""

    def __init__(self, make: Callable[..., V]) -> None:
        """make: builds the object of arguments that are not known."""
        self._make = make
        self._objects: WeakValueDictionary[tuple[Hashable, ...], V] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._objects)

    def intern(self, *arguments: Hashable) -> V:
        """Return the object of these arguments; build it if no other code holds it."""
        known = self._objects.get(arguments)
        if known is None:
            known = self._objects[arguments] = self._make(*arguments)
        return known
