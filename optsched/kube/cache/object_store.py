"""A store of the objects that controllers read, filled by watches and by this process's writes.

The response to a write is stored before the controller that sent the write reconciles again. If a
watch later delivers an older state of the object, the older state is ignored. An object that this
process deleted is ignored until a watch confirms the deletion.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.json_fields import (
    controller_of,
    is_owned_as,
    name_of,
    namespace_of,
    uid_of,
    version_of,
)
from optsched.api.kinds import NODE, Ref
from optsched.cluster.bounded_cache import RecentCache
from optsched.controllers.controller import WHOLE
from optsched.kube.cache.reflector import Deleted, Listed, ReflectorState, reflect
from optsched.kube.client.errors import KubeError, NotFound
from optsched.kube.client.listing import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from optsched.api.kinds import Kind
    from optsched.controllers.controller import Index, Scope
    from optsched.controllers.effects import Fabric, FabricAnswer, Question
    from optsched.kube.cache.reflector import WatchEvent
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.kube.runtime.lifecycle import Outage
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

    OnChange = Callable[[Kind, Raw | None, Raw | None], None]

log = logging.getLogger(__name__)

MAX_ANSWERS: Final = 10_000
"""Maximum number of probe results to remember."""

MAX_REMEMBERED: Final = 2_000
"""Number of deleted objects to remember per kind, because responses to writes may arrive late."""

MAX_UNWATCHED: Final = 10_000
"""Maximum number of unwatched objects to remember; see `Store.record_unwatched`."""

UNWATCHED_MS: Final = 8000
"""Milliseconds for which an unwatched object is remembered; no watch reports its changes."""

_Key: TypeAlias = tuple[str, str]
"""Namespace and name of an object."""

_IndexEntry: TypeAlias = "tuple[dict[str, dict[_Key, Raw]], str]"
"""An index, as a mapping from index values to objects, and the index value of one object."""


class _Objects:
    """The objects of one kind, and their indexes."""

    def __init__(self, indexes: Iterable[Index], scopes: tuple[Scope, ...]) -> None:
        self.scopes = scopes
        self.by_namespace: dict[str, dict[str, Raw]] = {}
        self.by_owner: dict[str, dict[_Key, Raw]] = {}
        self.indexed: dict[Index, dict[str, dict[_Key, Raw]]] = {i: {} for i in indexes}
        self._entries_of: dict[_Key, tuple[_IndexEntry, ...]] = {}
        """Maps the key of each object to the index entries that contain the object."""
        self.deleted: set[str] = set()
        """UIDs of objects that this process has deleted, until a watch confirms the deletion."""
        self.ended: dict[str, None] = {}
        """UIDs of recently deleted objects, kept because responses to writes may arrive late."""
        self.listed: dict[Scope, set[_Key]] = {scope: set() for scope in scopes}
        """Maps each scope whose list is in progress to the keys of the objects listed so far."""
        self.unsynced = set(scopes)
        """The watched scopes that have not been listed yet."""

    def lookup(self, namespace: str, name: str) -> Raw | None:
        return self.by_namespace.get(namespace, {}).get(name)

    def store(self, obj: Raw) -> Raw | None:
        """Store an object; return the object that it replaces, or None if the name is new."""
        key = (namespace_of(obj), name_of(obj))
        before = self.lookup(*key)
        if before is not None:
            self._unindex(key)
        self.by_namespace.setdefault(key[0], {})[key[1]] = obj
        found: list[_IndexEntry] = []
        owner = controller_of(obj)
        if owner is not None:
            found.append((self.by_owner, str(owner.get("uid"))))
        for index, entries in self.indexed.items():
            try:
                values = tuple(index.values(obj))
            except Exception:
                log.exception("index %s of %s: %s is skipped", index.name, index.kind, name_of(obj))
            else:
                found.extend((entries, value) for value in values)
        self._entries_of[key] = tuple(found)
        for entries, value in found:
            entries.setdefault(value, {})[key] = obj
        return before

    def drop(self, namespace: str, name: str) -> None:
        self._unindex((namespace, name))
        del self.by_namespace[namespace][name]
        if not self.by_namespace[namespace]:
            del self.by_namespace[namespace]

    def _unindex(self, key: _Key) -> None:
        for entries, value in self._entries_of.pop(key, ()):
            found = entries.get(value)
            if found is not None:
                found.pop(key, None)
                if not found:
                    del entries[value]


class Store:
    """The objects of all kinds; implements `World`.

    `kinds` holds the stored kinds.
    """

    def __init__(
        self,
        kinds: Iterable[Kind],
        indexes: Iterable[Index],
        clock: Clock,
        on_change: OnChange,
        scopes: Mapping[Kind, tuple[Scope, ...]] | None = None,
    ) -> None:
        """`on_change` is called after every change, with the old and new state of one object.

        `scopes` lists the watched subsets of each kind that is not watched completely. The subsets
        may overlap.
        """
        every, narrow = tuple(dict.fromkeys(indexes)), scopes or {}
        self._objects = {
            kind: _Objects((i for i in every if i.kind == kind), narrow.get(kind, (WHOLE,)))
            for kind in dict.fromkeys(kinds)
        }
        self.kinds: Collection[Kind] = self._objects.keys()
        self._clock = clock
        self._on_change = on_change
        self._answered: RecentCache[Question, bool] = RecentCache(MAX_ANSWERS)
        self._fabric_answers: dict[Fabric, FabricAnswer] = {}
        self._unwatched: RecentCache[Ref, tuple[int, Raw]] = RecentCache(MAX_UNWATCHED)

    # --- World -----------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """See `World`."""
        return self._clock.now_ms()

    def get(self, kind: Kind, namespace: str, name: str) -> Raw | None:
        """See `World`."""
        return self._objects[kind].lookup(namespace, name)

    def listed(self, kind: Kind, namespace: str | None = None) -> Collection[Raw]:
        """See `World`."""
        spaces = self._objects[kind].by_namespace
        if namespace is not None:
            return tuple(spaces.get(namespace, {}).values())
        return tuple(chain.from_iterable(objs.values() for objs in spaces.values()))

    def owned_by(self, kind: Kind, owner: Kind, uid: str) -> Collection[Raw]:
        """See `World`."""
        return tuple(
            obj
            for obj in self._objects[kind].by_owner.get(uid, {}).values()
            if is_owned_as(controller_of(obj) or {}, owner)
        )

    def list_indexed(self, index: Index, value: str) -> Collection[Raw]:
        """See `World`."""
        return tuple(self._objects[index.kind].indexed[index].get(value, {}).values())

    def unfollowed_metadata(self, kind: Kind, namespace: str, name: str) -> Raw | None:
        """See `World`."""
        read_ms, obj = self._unwatched.get(Ref(kind, namespace, name)) or (0, None)
        return obj if self._clock.now_ms() < read_ms + UNWATCHED_MS else None

    def fabric_answer(self, fabric: Fabric) -> FabricAnswer | None:
        """See `World`."""
        return self._fabric_answers.get(fabric)

    def is_answered(self, question: Question) -> bool:
        """See `World`."""
        return self._answered.get(question) is not None

    # --- events and writes -----------------------------------------------------------------------

    def unsynced(self) -> list[str]:
        """Return the plural names of the kinds that have not been listed yet."""
        return [kind.plural for kind, objects in self._objects.items() if objects.unsynced]

    def is_narrow(self, kind: Kind) -> bool:
        """Return whether only some scopes of a kind are watched."""
        return kind in self._objects and WHOLE not in self._objects[kind].scopes

    def scopes(self, kind: Kind) -> tuple[Scope, ...]:
        """Return the watched scopes of a kind."""
        return self._objects[kind].scopes

    def apply(self, kind: Kind, event: WatchEvent, scope: Scope = WHOLE) -> None:
        """Apply an event from the watch of one scope of a kind.

        The watch of a scope also reports a deletion when an existing object leaves the scope. If
        another scope still selects the object, the stored object is at least as new as the event.
        If the object was deleted, the event has a newer resource version than the stored object.
        """
        if isinstance(event, Listed):
            self._apply_list(kind, event, scope)
            return
        if not isinstance(event, Deleted):
            self._store_object(kind, event.obj)
            return
        objects, obj = self._objects[kind], event.obj
        known = objects.lookup(namespace_of(obj), name_of(obj))
        is_same = known is not None and uid_of(known) == uid_of(obj)
        if known is not None and is_same and len(objects.scopes) > 1:
            is_selected = any(each.includes(known) for each in objects.scopes)
            if is_selected and _is_older(version_of(obj), known):
                return
        self._remove_object(kind, obj)

    def record_written(self, kind: Kind, obj: Raw) -> None:
        """Record an object as the server returned it after a write."""
        objects = self._objects.get(kind)
        if objects is None or uid_of(obj) in objects.ended:
            return
        if any(scope.includes(obj) for scope in objects.scopes):
            self._store_object(kind, obj)

    def record_unwatched(self, ref: Ref, obj: Raw) -> None:
        """Record the metadata of an unwatched object whose name prevented a creation."""
        if not any(scope.includes(obj) for scope in self._objects[ref.kind].scopes):
            self._unwatched.add(ref, (self._clock.now_ms(), obj))

    def record_answer(self, question: Question) -> None:
        """Record that a probed endpoint answered."""
        self._answered.add(question, value=True)

    def record_fabric(self, fabric: Fabric, answer: FabricAnswer) -> None:
        """Record the links of a network fabric, and forget the links of all other fabrics."""
        self._fabric_answers = {fabric: answer}

    def record_deleted(self, ref: Ref, uid: str) -> None:
        """Record that this process deleted an object; an empty `uid` matches any UID."""
        objects = self._objects.get(ref.kind)
        known = None if objects is None else objects.lookup(ref.namespace, ref.name)
        if objects is None or known is None or (uid and uid_of(known) != uid):
            return
        objects.deleted.add(uid_of(known))
        objects.drop(ref.namespace, ref.name)
        self._on_change(ref.kind, known, None)

    def _apply_list(self, kind: Kind, page: Listed, scope: Scope) -> None:
        objects = self._objects[kind]
        listed = objects.listed[scope]
        if page.is_first:
            listed.clear()
        for obj in page.items:
            listed.add((namespace_of(obj), name_of(obj)))
            self._store_object(kind, obj)
        if not page.is_last:
            return
        spaces = objects.by_namespace.items()
        for key in [(space, name) for space, named in spaces for name in named]:
            known = objects.lookup(*key)
            if known is None or key in listed or not scope.includes(known):
                continue
            # An object that is newer than the list may be missing from the list.
            if not page.resource_version or not _is_older(page.resource_version, known):
                self._remove_object(kind, known)
        listed.clear()
        objects.unsynced.discard(scope)

    def _store_object(self, kind: Kind, obj: Raw) -> None:
        objects = self._objects[kind]
        meta: dict[str, Any] = obj["metadata"]
        # managedFields take up half of an object's memory, and no controller reads them.
        meta.pop("managedFields", None)
        if kind == NODE:
            # The list of container images, which is part of the status, takes up most of a node
            # object.
            obj.pop("status", None)
        if uid_of(obj) in objects.deleted:
            return
        known = objects.lookup(namespace_of(obj), name_of(obj))
        if known is not None and _is_older(version_of(obj), known):
            return
        before = objects.store(obj)
        self._on_change(kind, before, obj)

    def _remove_object(self, kind: Kind, obj: Raw) -> None:
        """Remove an object that a watch or a list has reported as deleted."""
        objects = self._objects[kind]
        objects.deleted.discard(uid_of(obj))
        objects.ended[uid_of(obj)] = None
        if len(objects.ended) > MAX_REMEMBERED:
            del objects.ended[next(iter(objects.ended))]
        known = objects.lookup(namespace_of(obj), name_of(obj))
        if known is None or uid_of(known) != uid_of(obj):
            return
        objects.drop(namespace_of(obj), name_of(obj))
        self._on_change(kind, known, None)


def _is_older(version: str, known: Raw) -> bool:
    """Return whether a resource version is equal to, or older than, the version of a known object.

    The resource versions of a kind are increasing numbers (KEP-5504). Resource versions that are
    not numbers are only compared for equality.
    """
    other = version_of(known)
    if version.isdecimal() and other.isdecimal():
        return int(version) <= int(other)
    return version == other


# --- watches --------------------------------------------------------------------------------------

Watch: TypeAlias = "tuple[Kind, Scope]"


class StoreFollower:
    """Applies watch events to a store while the coroutines of `follow` run.

    `absent` holds the watches for kinds that are not installed. `stale` holds the watches whose
    objects must be listed again, completely.
    """

    def __init__(
        self,
        source: Client,
        store: Store,
        timing: Timing,
        outage: Outage,
        on_failure: Callable[[Kind], None],
    ) -> None:
        self.absent: set[Watch] = set()
        self.stale: set[Watch] = set()
        self._source = source
        self._store = store
        self._timing = timing
        self._outage = outage
        self._on_failure = on_failure

    async def follow(self, kind: Kind, scope: Scope = WHOLE, *, was_there: bool = False) -> None:
        """List and watch a scope of a kind until cancelled.

        `was_there` is true if the kind is known to be installed.
        """
        absent = () if was_there else (NotFound,)
        reflection = ReflectorState(self._timing.chance, absent=absent)
        failed = partial(self._record_failure, scope)
        fields = f"metadata.name={scope.name}" if scope.name else ""
        selection = Selection(scope.namespace, scope.label, fields)
        async for event in reflect(
            self._source, kind, reflection, self._timing.sleep, failed, selection
        ):
            self._store.apply(kind, event, scope)
            self._outage.record_watch_success((kind, scope), kind)
            self.absent.discard((kind, scope))
            if isinstance(event, Listed):
                if event.is_last:
                    self.stale.discard((kind, scope))
                # Let other asyncio tasks run between the pages of a long list.
                await asyncio.sleep(0)

    def _record_failure(self, scope: Scope, kind: Kind, error: KubeError) -> None:
        self._on_failure(kind)
        is_reported = self._outage.record_watch_failure((kind, scope), kind, error)
        if is_reported and isinstance(error, NotFound) and kind.plural in self._store.unsynced():
            # A kind that is not installed counts as a kind without objects, and the list is
            # retried. If a kind that was listed before is reported as not found, an API server is
            # starting.
            self.absent.add((kind, scope))
            self._store.apply(kind, Listed(()), scope)
