"""Count the entries of an object's containers, by path."""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import Any

_PLAIN = (str, bytes, int, float, bool, type(None), type, ModuleType)
_FIXED = (tuple, frozenset)
_CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def container_sizes(root: object, package: str = "optsched") -> dict[str, int]:
    """Return the number of entries of all mutable containers in objects of a package, by path.

    Nested containers are added to the path of the outermost container. Each object is visited once,
    on the shortest path from the root.
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    queue: deque[tuple[str, Any]] = deque([(type(root).__name__, root)])
    while queue:
        path, value = queue.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _CONTAINERS):
            if not isinstance(value, _FIXED):
                found[path] = found.get(path, 0) + len(value)
            parts = (*value.keys(), *value.values()) if isinstance(value, dict) else value
            queue.extend((path, part) for part in parts)
            continue
        if not type(value).__module__.startswith(package):
            continue
        queue.extend((f"{path}.{name}", part) for name, part in _attributes(value))
    return found


def _attributes(value: object) -> list[tuple[str, Any]]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    named = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return sorted({**getattr(value, "__dict__", {}), **named}.items())
