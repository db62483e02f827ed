"""Execute and count the effects that controllers return: writes, events and probes of endpoints.

Writes run concurrently, and repeating a write does no harm. Probes reach endpoints other than the
API server: pod ports, and NVIDIA UFM for fabric links.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import aiohttp
from prometheus_client.core import GaugeMetricFamily

from optsched.api.json_fields import controller_of
from optsched.api.kinds import SECRET, Ref, kind_of
from optsched.api.meta import EventType
from optsched.controllers.effects import (
    Again,
    AskFabric,
    AskQuestion,
    Create,
    Delete,
    Emit,
    FabricAnswer,
    Patch,
    PatchStatus,
    Then,
)
from optsched.controllers.ufm import PATH, UfmError, read_links
from optsched.kube.client.client import preconditions
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
from optsched.kube.serving.metrics_server import ProcessMetrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from optsched.api.podgroup import PodGroupPhase
    from optsched.controllers.effects import Effects, Fabric, Question
    from optsched.kube.cache.object_store import Store
    from optsched.kube.client.client import Client
    from optsched.kube.runtime.events import EventRecorder
    from optsched.session.ports import Clock


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
    """Raised if a write is based on an outdated state, or if another process may be the leader."""


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """Dependencies of an executor.

    `may_write` returns whether this process leads. `is_answered` returns whether a pod answers a
    probe. `ask_fabric` reads the links of a network fabric from UFM.
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
        """Execute all effects except delayed requeues; return the delayed requeues.

        All effects are attempted. If any effect fails, the most severe error is raised, such as
        Stale or KubeError.
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
                        # Perhaps no watch covers the existing object with this name.
                        with suppress(NotFound):
                            found = await self._api.read_metadata(effect.ref)
                            self._store.record_unwatched(effect.ref, found)
                    self._handle_refusal(effect, e)
                else:
                    log.debug("%s %s", verb, effect.ref)
                    self._context.metrics.writes.labels(verb, effect.kind.plural).inc()

    async def _request(self, effect: _Write) -> str:
        """Send a write, store the object that the server returns, and return the write's verb."""
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
                body = dict(effect.body)
                if held := preconditions(effect.uid, effect.resource_version):
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


ANSWER_S: Final = 1.0
"""Timeout of a pod probe in seconds, as in the kubelet (core/v1, Probe.timeoutSeconds)."""

_REFUSALS: Final = 400


async def is_answered(question: Question) -> bool:
    """Return whether a TCP probe connects, or an HTTP probe gets a status below 400."""
    try:
        async with asyncio.timeout(ANSWER_S):
            if not question.path:
                _, writer = await asyncio.open_connection(question.host, question.port)
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
                return True
            host = f"[{question.host}]" if ":" in question.host else question.host
            url = f"http://{host}:{question.port}/{question.path.removeprefix('/')}"
            name, value = question.header
            headers = {name: value} if name else {}
            async with (
                aiohttp.ClientSession() as session,
                session.get(url, headers=headers, allow_redirects=False) as answer,
            ):
                return answer.status < _REFUSALS
    except (OSError, TimeoutError, aiohttp.ClientError, ValueError):
        return False


FABRIC_ANSWER_S: Final = 30.0
"""Timeout of a UFM request in seconds, as in Volcano."""

MAX_BYTES: Final = 100 * 2**20
"""Maximum size of a UFM response in bytes, as in Volcano."""

_OK: Final = 200
_KEYS: Final = ("username", "password", "ca.crt")
"""Keys of the Secret for UFM; `ca.crt` holds PEM certificates of an additional CA, or is empty."""


class _NoAnswer(Exception):
    """Raised if UFM gives no usable response; the message contains no credentials."""


@dataclass(frozen=True, slots=True)
class UfmClient:
    """Reads fabric links from UFM; errors are returned, not raised."""

    api: Client
    clock: Clock

    async def read_fabric(self, fabric: Fabric) -> FabricAnswer:
        """Return the links of a network fabric, or the reason why UFM cannot report these links."""
        ref = Ref(SECRET, *fabric.secret)
        try:
            data = (await self.api.read(ref)).get("data") or {}
            try:
                texts = {key: b64decode(data.get(key) or "").decode() for key in _KEYS}
            except ValueError as e:
                raise _NoAnswer(f"{ref} cannot be read: a value is not UTF-8 text") from e
            lacking = [key for key in ("username", "password") if not texts[key]]
            if lacking:
                raise _NoAnswer(f"{ref} has no {' and no '.join(lacking)}")
            tls: ssl.SSLContext | bool = False
            if fabric.verifies:
                tls = ssl.create_default_context()
                if texts["ca.crt"]:
                    tls.load_verify_locations(cadata=texts["ca.crt"])
            # The Authorization header for basic authentication (RFC 7617).
            pair = b64encode(f"{texts['username']}:{texts['password']}".encode()).decode()
            body = bytearray()
            async with (
                asyncio.timeout(FABRIC_ANSWER_S),
                aiohttp.ClientSession() as session,
                session.get(
                    f"{fabric.url}{PATH}",
                    headers={"Authorization": f"Basic {pair}"},
                    ssl=tls,
                    allow_redirects=False,
                ) as answer,
            ):
                if answer.status != _OK:
                    raise _NoAnswer(f"UFM answers {answer.status} {answer.reason}")
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise _NoAnswer(f"the response is longer than {MAX_BYTES // 2**20} MiB")
            # Parsing the response takes a second for a fabric of thousands of hosts.
            links = await asyncio.to_thread(read_links, bytes(body))
        except TimeoutError:
            problem = f"no answer within {FABRIC_ANSWER_S:g} s"
        except (_NoAnswer, UfmError, KubeError, aiohttp.ClientError, OSError, ValueError) as e:
            problem = str(e) or type(e).__name__
        else:
            return FabricAnswer(self.clock.now_ms(), links)
        return FabricAnswer(self.clock.now_ms(), problem=f"{fabric.url}: {problem}")


_SECONDS: Final = tuple(0.0005 * 2**i for i in range(16))


class ControllerMetrics(ProcessMetrics):
    """The metrics of a controller process.

    `leading` is 1 while this process leads, else 0. `writes` counts writes by verb and resource.
    `watch_failures` counts failed lists and watches by resource. `depth` is the number of queued
    objects. `count_groups` returns the number of PodGroups by phase and queue; it is called
    whenever metrics are read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count_groups: Callable[[], Mapping[PodGroupPhase, Mapping[str, int]]] = dict
        self.registry.register(self)
        self.leading = self.gauge("optsched_controllers_leading", "Whether this process leads")
        name = "optsched_controller"
        self._looks = self.counter(
            f"{name}_looks",
            "Reconciliations of objects, by their result",
            "controller",
            "result",
        )
        self._seconds = self.histogram(
            f"{name}_look_seconds",
            "Seconds from the decision on an object until all its writes are done",
            _SECONDS,
            "controller",
        )
        self.writes = self.counter(
            f"{name}_writes", "Writes that the API server accepted", "verb", "resource"
        )
        self.watch_failures = self.counter(
            f"{name}_watch_failures", "Lists and watches that failed", "resource"
        )
        self.depth = self.gauge(f"{name}_waiting", "Objects that wait to be reconciled")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the number of PodGroups per queue, for each phase."""
        for phase, counts in self.count_groups().items():
            name = f"volcano_queue_pod_group_{phase.value.lower()}_count"
            meaning = f"PodGroups of the queue in phase {phase.value}."
            family = GaugeMetricFamily(name, meaning, labels=("queue_name",))
            for queue, number in counts.items():
                family.add_metric([queue], number)
            yield family

    def reconciled(self, controller: str, result: str, seconds: float | None = None) -> None:
        """Record a reconciliation; `result` is `done`, `stale`, `refused` or `error`."""
        self._looks.labels(controller, result).inc()
        if seconds is not None:
            self._seconds.labels(controller).observe(seconds)
