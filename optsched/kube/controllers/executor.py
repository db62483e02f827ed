"""Carrying out what controllers want: many writes at once, each of them safe to repeat."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from optsched.api.events import EventType
from optsched.api.kinds import Ref, find_kind
from optsched.controllers.effects import (
    Again,
    AskFabric,
    AskQuestion,
    Create,
    Delete,
    Emit,
    Patch,
    PatchStatus,
    Then,
)
from optsched.controllers.json_fields import controller_of
from optsched.kube.client.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    Rejected,
)
from optsched.kube.runtime.events import Note

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from optsched.controllers.effects import Effects, Fabric, FabricAnswer, Question
    from optsched.kube.client.interfaces import DeletingApi, Raw
    from optsched.kube.reflector.object_store import Store

AT_ONCE: Final = 64
"""Requests under way; more of them make none of them faster."""

_Write: TypeAlias = Create | Patch | PatchStatus | Delete
_LEAVING: Final = "because it is being terminated"
_OTHER_UID: Final = "metadata.uid"

log = logging.getLogger(__name__)


class Stale(Exception):
    """What was decided on is no longer so, or somebody else may write from now on: look again."""


class Listener(Protocol):
    """Whom an executor tells."""

    def wrote(self, verb: str, plural: str) -> None:
        """A write has been taken."""

    def note(self, note: Note) -> None:
        """Something to tell users."""


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """What an executor works with.

    may_write: whether this process leads. is_answered, ask_fabric: ask outside of the API server.
    """

    listener: Listener
    may_write: Callable[[], bool]
    is_answered: Callable[[Question], Awaitable[bool]]
    ask_fabric: Callable[[Fabric], Awaitable[FabricAnswer]]


class Executor:
    """Carries out effects, and keeps in the store what the server has made of them."""

    def __init__(self, api: DeletingApi, store: Store, context: ExecutorContext) -> None:
        self._api = api
        self._store = store
        self._context = context
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def carry_out(self, effects: Effects) -> tuple[Again, ...]:
        """Carry effects out, all that can be; returns when to look again.

        Raises Stale or KubeError, the worst of them, once everything has been tried.
        """
        agains = tuple(effect for effect in effects if isinstance(effect, Again))
        rest = [effect for effect in effects if not isinstance(effect, Again)]
        if len(rest) == 1:
            await self._carry_out_effect(rest[0])
            return agains
        results = await asyncio.gather(*map(self._carry_out_effect, rest), return_exceptions=True)
        _raise_worst([result for result in results if result is not None])
        return agains

    async def _carry_out_effect(
        self, effect: _Write | Emit | AskQuestion | AskFabric | Then
    ) -> None:
        if isinstance(effect, Then):
            for step in effect.steps:
                await self._carry_out_effect(step)
        elif isinstance(effect, AskQuestion):
            if await self._context.is_answered(effect.question):
                self._store.record_answer(effect.question)
        elif isinstance(effect, AskFabric):
            self._store.record_fabric(effect.fabric, await self._context.ask_fabric(effect.fabric))
        elif isinstance(effect, Emit):
            self._context.listener.note(_note(effect))
        else:
            await self._write(effect)

    async def _write(self, effect: _Write) -> None:
        async with self._slots:
            if not self._context.may_write():
                raise Stale("another process may lead by now")
            try:
                verb = await self._request(effect)
            except KubeError as e:
                if isinstance(effect, Create) and isinstance(e, AlreadyExists):
                    await self._read_stranger(effect.ref)
                self._handle_refusal(effect, e)
            else:
                log.debug("%s %s", verb, effect.ref)
                self._context.listener.wrote(verb, effect.kind.plural)

    async def _request(self, effect: _Write) -> str:
        match effect:
            case Create():
                made = await self._api.create(effect.ref, dict(effect.manifest))
                self._store.record_written(effect.kind, made)
                return "create"
            case Delete():
                await self._delete(effect)
                return "delete"
            case Patch():
                has_own = isinstance(effect, PatchStatus) and effect.kind.has_status
                subresource = "status" if has_own else ""
                found = await self._api.patch(effect.ref, _guarded(effect), subresource)
                self._store.record_written(effect.kind, found)
                return "patch"

    async def _delete(self, effect: Delete) -> None:
        found = await self._api.delete(
            effect.ref, effect.uid, effect.propagation.value, effect.grace_s
        )
        if found.get("kind") == effect.kind.kind and "resourceVersion" in found.get("metadata", {}):
            self._kept(effect, found)
        else:
            self._store.record_deleted(effect.ref, effect.uid)

    def _kept(self, effect: Delete, found: Raw) -> None:
        """The answer holds the object: as it was at its end, or as it waits for it."""
        if "deletionTimestamp" in found["metadata"]:
            self._store.record_written(effect.kind, found)
        else:
            self._store.record_deleted(effect.ref, effect.uid)

    async def _read_stranger(self, ref: Ref) -> None:
        """Look at who has a name, where no watch tells it."""
        if not self._store.is_narrow(ref.kind):
            return
        with suppress(NotFound):
            self._store.record_stranger(ref, await self._api.read_metadata(ref))

    def _handle_refusal(self, effect: _Write, error: KubeError) -> None:
        """What a refusal means; raises unless there is nothing left to do."""
        if isinstance(effect, Delete) and isinstance(error, NotFound | Conflict):
            # Gone, or another one has the name by now.
            self._store.record_deleted(effect.ref, effect.uid)
            return
        if isinstance(error, NotFound) or (isinstance(error, Forbidden) and _LEAVING in str(error)):
            # The object has gone, or the namespace in which it was to be.
            return
        if isinstance(error, Conflict) or _is_other_uid(effect, error):
            raise Stale(f"{effect.ref}: {error}") from error
        if isinstance(effect, Create) and isinstance(error, ApiError):
            self._report_failed_create(effect, error)
        if isinstance(effect, Patch) and isinstance(error, Forbidden) and effect.uid:
            message = f"{effect.ref} was not changed: {error.message or error.title}"
            self._context.listener.note(
                Note(
                    effect.ref,
                    effect.uid,
                    EventType.WARNING,
                    "FailedUpdate",
                    message,
                    error.title,
                )
            )
        raise error

    def _report_failed_create(self, effect: Create, error: ApiError) -> None:
        """Tell the object on whose behalf something could not be created."""
        owner = controller_of(effect.manifest)
        kind = owner and find_kind(str(owner.get("apiVersion")), str(owner.get("kind")))
        if not owner or not kind:
            return
        about = Ref(kind, effect.ref.namespace if kind.namespaced else "", str(owner.get("name")))
        message = f"{effect.ref} was not created: {error.message or error.title}"
        note = Note(
            about, str(owner.get("uid")), EventType.WARNING, "FailedCreate", message, error.title
        )
        self._context.listener.note(note)


def _is_other_uid(effect: _Write, error: KubeError) -> bool:
    """Whether a patch was refused because its object has another UID by now."""
    has_uid = isinstance(effect, Patch) and effect.uid != ""
    return has_uid and isinstance(error, Rejected) and _OTHER_UID in error.message


def _guarded(effect: Patch) -> dict[str, Any]:
    """The body, with what the object has to be."""
    guards = {"uid": effect.uid, "resourceVersion": effect.resource_version}
    held = {name: value for name, value in guards.items() if value}
    if not held:
        return dict(effect.body)
    return {**effect.body, "metadata": {**(effect.body.get("metadata") or {}), **held}}


def _note(effect: Emit) -> Note:
    return Note(effect.ref, effect.uid, effect.type, effect.reason, effect.message, effect.code)


def _raise_worst(errors: Sequence[BaseException]) -> None:
    """Raise a mistake of ours before a refusal, and that before what is only old news."""
    for error in sorted(errors, key=_badness, reverse=True)[:1]:
        raise error


def _badness(error: BaseException) -> int:
    kinds = (Stale, KubeError, Exception)
    return next((i for i, kind in enumerate(kinds) if isinstance(error, kind)), len(kinds))
