"""Execute the effects that controllers return; writes are concurrent and can be repeated."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from optsched.api.json_fields import controller_of
from optsched.api.kinds import Ref, kind_of
from optsched.api.meta import EventType
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
    from collections.abc import Awaitable, Callable

    from optsched.controllers.effects import Effects, Fabric, FabricAnswer, Question
    from optsched.kube.cache.object_store import Store
    from optsched.kube.client.client import Client
    from optsched.kube.controllers.metrics import ControllerMetrics
    from optsched.kube.runtime.events import EventRecorder

MAX_CONCURRENT: Final = 64
"""Maximum number of concurrent requests; more would slow down each request."""

MAX_CONCURRENT_PER_OBJECT: Final = 16
"""Maximum number of concurrent requests for one object.

Without this limit, the requests for a job with many pods would delay the requests for all other
objects.
"""

_Write: TypeAlias = Create | Patch | PatchStatus | Delete
_Executed: TypeAlias = _Write | Emit | AskQuestion | AskFabric | Then
_LEAVING: Final = "because it is being terminated"
_OTHER_UID: Final = "metadata.uid"

log = logging.getLogger(__name__)


class Stale(Exception):
    """Raised if a decision was based on an outdated state, or if another process may lead."""


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """Dependencies of an executor.

    `may_write` returns whether this process leads. `is_answered` probes a pod, and `ask_fabric`
    reads the links of a fabric from UFM.
    """

    events: EventRecorder
    metrics: ControllerMetrics
    may_write: Callable[[], bool]
    is_answered: Callable[[Question], Awaitable[bool]]
    ask_fabric: Callable[[Fabric], Awaitable[FabricAnswer]]


class Executor:
    """Executes effects, and stores the objects that the server returns."""

    def __init__(self, api: Client, store: Store, context: ExecutorContext) -> None:
        self._api = api
        self._store = store
        self._context = context
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def carry_out(self, effects: Effects) -> tuple[Again, ...]:
        """Execute all effects except the delayed requeues, which are returned.

        After all effects are attempted, raises the most severe error, such as Stale or KubeError.
        """
        requeues = tuple(effect for effect in effects if isinstance(effect, Again))
        others = [effect for effect in effects if not isinstance(effect, Again)]
        if len(others) == 1:
            await self._carry_out_effect(others[0])
            return requeues
        slots = asyncio.Semaphore(MAX_CONCURRENT_PER_OBJECT)

        async def carry_out_in_turn(effect: _Executed) -> None:
            async with slots:
                await self._carry_out_effect(effect)

        results = await asyncio.gather(*map(carry_out_in_turn, others), return_exceptions=True)
        errors = [result for result in results if result is not None]
        if errors:
            # Stale is the least severe error, followed by KubeError and other errors. Errors that
            # end the process, such as a cancellation, are the most severe.
            ranks = (Stale, KubeError, Exception)
            raise max(errors, key=lambda error: [not isinstance(error, rank) for rank in ranks])
        return requeues

    async def _carry_out_effect(self, effect: _Executed) -> None:
        if isinstance(effect, Then):
            for step in effect.steps:
                await self._carry_out_effect(step)
        elif isinstance(effect, AskQuestion):
            if await self._context.is_answered(effect.question):
                self._store.record_answer(effect.question)
        elif isinstance(effect, AskFabric):
            self._store.record_fabric(effect.fabric, await self._context.ask_fabric(effect.fabric))
        elif isinstance(effect, Emit):
            event = Note(
                effect.ref, effect.uid, effect.type, effect.reason, effect.message, effect.code
            )
            self._context.events.note(event)
        else:
            async with self._slots:
                if not self._context.may_write():
                    raise Stale("another process may lead by now")
                try:
                    verb = await self._request(effect)
                except KubeError as e:
                    is_taken = isinstance(effect, Create) and isinstance(e, AlreadyExists)
                    if is_taken and self._store.is_narrow(effect.kind):
                        # Perhaps no watch covers the existing object of this name.
                        with suppress(NotFound):
                            found = await self._api.read_metadata(effect.ref)
                            self._store.record_unwatched(effect.ref, found)
                    self._handle_refusal(effect, e)
                else:
                    log.debug("%s %s", verb, effect.ref)
                    self._context.metrics.writes.labels(verb, effect.kind.plural).inc()

    async def _request(self, effect: _Write) -> str:
        """Send a write, store the object that the server returns, and return the verb."""
        match effect:
            case Create():
                made = await self._api.create(effect.ref, dict(effect.manifest))
                self._store.record_written(effect.kind, made)
                return "create"
            case Delete():
                found = await self._api.delete(
                    effect.ref, effect.uid, effect.propagation.value, effect.grace_s
                )
                meta = found.get("metadata", {})
                is_object = found.get("kind") == effect.kind.kind and "resourceVersion" in meta
                # The server returns either a terminating object or the last state of a deleted
                # object.
                if is_object and "deletionTimestamp" in meta:
                    self._store.record_written(effect.kind, found)
                else:
                    self._store.record_deleted(effect.ref, effect.uid)
                return "delete"
            case Patch():
                has_own = isinstance(effect, PatchStatus) and effect.kind.has_status
                subresource = "status" if has_own else ""
                preconditions = {"uid": effect.uid, "resourceVersion": effect.resource_version}
                held = {name: value for name, value in preconditions.items() if value}
                body = dict(effect.body)
                if held:
                    body["metadata"] = {**(body.get("metadata") or {}), **held}
                found = await self._api.patch(effect.ref, body, subresource)
                self._store.record_written(effect.kind, found)
                return "patch"

    def _handle_refusal(self, effect: _Write, error: KubeError) -> None:
        """Handle a failed write; raises an error unless the write is no longer necessary."""
        if isinstance(effect, Delete) and isinstance(error, NotFound | Conflict):
            # The object was deleted, or another object now has its name.
            self._store.record_deleted(effect.ref, effect.uid)
            return
        if isinstance(error, NotFound) or (isinstance(error, Forbidden) and _LEAVING in str(error)):
            # The object was deleted, or its namespace is terminating.
            return
        # The server rejects a patch if the UID in the patch is not the object's UID.
        is_other_uid = (
            isinstance(effect, Patch)
            and effect.uid != ""
            and isinstance(error, Rejected)
            and _OTHER_UID in error.message
        )
        if isinstance(error, Conflict) or is_other_uid:
            raise Stale(f"{effect.ref}: {error}") from error
        if isinstance(error, ApiError):
            about, uid, reason, outcome = effect.ref, "", "FailedUpdate", "changed"
            if isinstance(effect, Create):
                # The event is about the owner, because the object itself does not exist.
                owner = controller_of(effect.manifest)
                kind = owner and kind_of(owner)
                if owner and kind:
                    namespace = effect.ref.namespace if kind.namespaced else ""
                    about = Ref(kind, namespace, str(owner.get("name")))
                    uid, reason, outcome = str(owner.get("uid")), "FailedCreate", "created"
            elif isinstance(effect, Patch) and isinstance(error, Forbidden):
                uid = effect.uid
            if uid:
                message = f"{effect.ref} was not {outcome}: {error.message or error.title}"
                self._context.events.note(
                    Note(about, uid, EventType.WARNING, reason, message, error.title)
                )
        raise error
