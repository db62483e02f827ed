"""An API server in memory with lists, watches, writes and faults, on a `MemoryWorld`."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any

from optsched.controllers.effects import Create, Delete, Patch, PatchStatus, Propagation
from optsched.kube.client.errors import AlreadyExists, ApiError, Conflict, KubeError, NotFound
from optsched.kube.client.listing import EVERYTHING, Page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from optsched.api.kinds import Kind, Ref
    from optsched.kube.client.listing import Raw, Selection
    from tests.support.memory import MemoryWorld

_ERRORS: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "NotFound": NotFound,
}


class MemoryServer:
    """A client interface to a `MemoryWorld`.

    `before` and `after` are called around each write with its verb and object. They may raise an
    error, which the client receives. After `lag`, watches deliver no change until `catch_up`.
    """

    def __init__(self, world: MemoryWorld) -> None:
        self.world = world
        self.before: Callable[[str, Ref], None] = lambda verb, ref: None
        self.after: Callable[[str, Ref], None] = lambda verb, ref: None
        self.creations: list[Ref] = []
        self.asked: set[tuple[str, str, str]] = set()
        """The API group, the resource with its subresource, and the verb of every request."""
        self.absent: set[Kind] = set()
        self.num_writes = 0
        self._lag_from: int | None = None
        self._log: list[tuple[int, Kind, str, Any, Any]] = []
        """The version, the kind, the event type, and the object before and after each change."""
        self._last: dict[Ref, Any] = world.objects()
        self._news = asyncio.Condition()
        world.listeners.append(self._changed)

    def lag(self) -> None:
        """Let watches deliver no further change."""
        self._lag_from = self.world.version

    async def catch_up(self) -> None:
        """Let watches deliver all changes."""
        self._lag_from = None
        await self.news()

    async def news(self) -> None:
        """Wake the watches."""
        async with self._news:
            self._news.notify_all()

    def _changed(self, word: str, ref: Ref, obj: Any) -> None:
        before, after = self._last.pop(ref, None), copy.deepcopy(obj)
        self._log.append((self.world.version, ref.kind, word, before, after))
        if word != "DELETED":
            self._last[ref] = after
        if word == "ADDED":
            self.creations.append(ref)

    # --- Source ----------------------------------------------------------------------------------

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        await asyncio.sleep(0)
        self._check(kind, "list")
        start = int(token or 0)
        # Lists of built-in kinds omit apiVersion and kind from their items.
        items = [
            {name: value for name, value in obj.items() if name not in ("apiVersion", "kind")}
            for obj in copy.deepcopy(self.world.listed(kind))
            if is_selected(obj, selection)
        ]
        more = str(start + limit) if len(items) > start + limit else ""
        return Page(items[start : start + limit], str(self.world.version), more)

    async def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        self._check(kind, "watch")
        at, seen = 0, int(resource_version)
        while True:
            while at < len(self._log):
                version, changed, *event = self._log[at]
                if self._lag_from is not None and version > self._lag_from:
                    break
                at += 1
                line = _line(*event, selection) if changed == kind and version > seen else b""
                if line:
                    yield line
            async with self._news:
                await self._news.wait()

    def _check(self, kind: Kind, verb: str) -> None:
        self.asked.add((kind.group, kind.plural, verb))
        if kind in self.absent:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")

    # --- Api -------------------------------------------------------------------------------------

    async def read(self, ref: Ref) -> Raw:
        found = self.world.get(ref.kind, ref.namespace, ref.name)
        if found is None:
            raise NotFound(404, "NotFound", f"{ref}")
        return copy.deepcopy(dict(found))

    async def read_metadata(self, ref: Ref) -> Raw:
        self._check(ref.kind, "get")
        return {"kind": "PartialObjectMetadata", "metadata": (await self.read(ref))["metadata"]}

    async def create(self, ref: Ref, body: Raw) -> Raw:
        return await self._write("create", ref, Create(ref.kind, body))

    async def patch(self, ref: Ref, body: Raw, subresource: str = "") -> Raw:
        body = copy.deepcopy(body)
        meta = body.get("metadata") or {}
        guards = (meta.pop("uid", ""), meta.pop("resourceVersion", ""))
        kind = PatchStatus if subresource else Patch
        return await self._write(
            "patch", ref, kind(ref.kind, ref.namespace, ref.name, body, *guards)
        )

    async def delete(
        self, ref: Ref, uid: str = "", propagation: str = "Background", grace_s: int | None = None
    ) -> Raw:
        effect = Delete(ref.kind, ref.namespace, ref.name, uid, Propagation(propagation), grace_s)
        return await self._write("delete", ref, effect)

    async def _write(self, verb: str, ref: Ref, effect: Create | Patch | Delete) -> Raw:
        await asyncio.sleep(0)
        self.before(verb, ref)
        part = "/status" if isinstance(effect, PatchStatus) and ref.kind.has_status else ""
        self.asked.add((ref.kind.group, ref.kind.plural + part, verb))
        self.num_writes += 1
        if not self.world.apply((effect,)):
            reason = self.world.refused.pop().reason
            raise _ERRORS[reason](404 if reason == "NotFound" else 409, reason, f"{ref}")
        await self.news()
        self.after(verb, ref)
        found = self.world.get(ref.kind, ref.namespace, ref.name)
        return copy.deepcopy(dict(found)) if found is not None else {"kind": "Status"}


def is_selected(obj: Mapping[str, Any], selection: Selection) -> bool:
    """Return whether a selection matches an object by its namespace, a label, or its name."""
    meta = obj["metadata"]
    return (
        selection.namespace in ("", meta.get("namespace", ""))
        and (not selection.labels or selection.labels in meta.get("labels", {}))
        and selection.fields in ("", f"metadata.name={meta['name']}")
    )


def _line(word: str, before: Any, after: Any, selection: Selection) -> bytes:
    """Return the watch line for a change, or empty bytes if the watch sends nothing.

    If an object is no longer selected, the line is a DELETED event. The event has the old object
    and the new version.
    """
    was, now = before is not None and is_selected(before, selection), is_selected(after, selection)
    if not was and not now:
        return b""
    told = after
    if word == "MODIFIED" and not was:
        word = "ADDED"
    elif word == "MODIFIED" and not now:
        version = after["metadata"]["resourceVersion"]
        told = {**before, "metadata": {**before["metadata"], "resourceVersion": version}}
        word = "DELETED"
    return json.dumps({"type": word, "object": told}).encode()


class Killed(KubeError):
    """An error that stands for the kill of the requesting process, which receives no response."""
