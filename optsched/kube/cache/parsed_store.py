"""Objects of one kind as domain values, by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.kube.client.interfaces import Raw

T = TypeVar("T")


class ParsedStore(Generic[T]):
    """The objects of one kind that could be parsed.

    Attributes
    ----------
    by_key
        In the order in which they were created.
    values
        In the order of their keys, as of the last `refresh`; the very same tuple until one changes.

    """

    def __init__(self, parse: Callable[[Raw], tuple[T | None, object]]) -> None:
        self.by_key: dict[str, T] = {}
        self.values: tuple[T, ...] = ()
        self._parse = parse
        self._is_stale = True

    def apply(self, key: str, obj: Raw | None) -> None:
        """Store a state of an object; None for a deleted one."""
        store_or_drop(self.by_key, key, None if obj is None else self._parse(obj)[0])
        self._is_stale = True

    def refresh(self) -> bool:
        """Bring `values` up to date; returns whether an event came since the last time."""
        if not self._is_stale:
            return False
        values = tuple(self.by_key[key] for key in sorted(self.by_key))
        if values != self.values:
            self.values = values
        self._is_stale = False
        return True


def store_or_drop(store: dict[str, Any], key: str, value: object) -> None:
    """Store a value under a key; None removes the key."""
    if value is None:
        store.pop(key, None)
    else:
        store[key] = value
