"""The objects of a server and the events of their changes, for tests of caches."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from optsched.api.kinds import find_kind
from optsched.formats.snapshots.assembly import READ_KINDS
from optsched.kube.cache.reflector import Changed, Deleted, Listed

if TYPE_CHECKING:
    from optsched.api.kinds import Kind
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.cache.reflector import WatchEvent


class Objects:
    """Objects as a server stores them; each change gets a new resource version."""

    def __init__(self) -> None:
        self.history: list[tuple[Kind, WatchEvent]] = []
        self._version = 100
        self._objects: dict[tuple[Kind, str], dict[str, Any]] = {}

    def put(self, obj: dict[str, Any]) -> tuple[Kind, WatchEvent]:
        """Create or change an object and return its event."""
        kind = kind_of(obj)
        key = key_of(obj)
        before = self._objects.get((kind, key))
        created = before["metadata"]["creationTimestamp"] if before else self._time()
        stored = copy.deepcopy(obj)
        stored["metadata"].setdefault("creationTimestamp", created)
        self._objects[kind, key] = self._stamped(stored)
        return self._told(kind, Changed(copy.deepcopy(stored)))

    def delete(self, kind: Kind, key: str) -> tuple[Kind, WatchEvent] | None:
        """Delete an object and return its event, or None if the object does not exist."""
        obj = self._objects.pop((kind, key), None)
        return None if obj is None else self._told(kind, Deleted(self._stamped(copy.deepcopy(obj))))

    def list(self, kind: Kind, size: int = 2) -> list[tuple[Kind, WatchEvent]]:
        """Return the events that list all objects of a kind, page by page."""
        found = [copy.deepcopy(obj) for (k, _), obj in self._objects.items() if k == kind]
        pages = [found[i : i + size] for i in range(0, len(found), size)] or [[]]
        last = len(pages) - 1
        return [(kind, Listed(tuple(p), i == 0, i == last)) for i, p in enumerate(pages)]

    def all(self) -> list[dict[str, Any]]:
        """Return every object."""
        return [copy.deepcopy(obj) for obj in self._objects.values()]

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        """Return one object, or None if it does not exist."""
        return self._objects.get((kind, key))

    def sync(self, cache: ClusterCache) -> None:
        """Pass all objects to a cache."""
        for kind in READ_KINDS:
            for event in self.list(kind):
                cache.apply(*event)

    def _stamped(self, obj: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        return obj

    def _told(self, kind: Kind, event: WatchEvent) -> tuple[Kind, WatchEvent]:
        self.history.append((kind, copy.deepcopy(event)))
        return kind, event

    def _time(self) -> str:
        return f"2026-01-01T00:{self._version // 60 % 60:02}:{self._version % 60:02}Z"


def kind_of(obj: dict[str, Any]) -> Kind:
    """Return the kind of an object."""
    kind = find_kind(obj["apiVersion"], obj["kind"])
    assert kind is not None
    return kind


def key_of(obj: dict[str, Any]) -> str:
    """Return `namespace/name`, or the bare name of an object without namespace."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])
