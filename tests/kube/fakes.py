"""A clock, a timer and an API server that need no time, network or cluster."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from optsched.api.kinds import POD, Ref
from optsched.formats.snapshots.assembly import READ_KINDS
from optsched.kube.cache.reflector import Listed
from optsched.kube.client.errors import AlreadyExists, Conflict, KubeError, NotFound
from optsched.kube.client.listing import EVERYTHING, Page, Selection
from optsched.kube.runtime.timing import Timing
from tests.kube.cluster import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping

    from optsched.api.kinds import Kind
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.listing import Raw


class FakeClock:
    """A clock that advances only when a test sets it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return 1_750_000_000_000 + round(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


def waiting(clock: FakeClock, slept: list[float] | None = None) -> Timing:
    """Return a timing whose sleeps return immediately, advance the clock and have no jitter."""

    async def sleep(seconds: float) -> None:
        if slept is not None:
            slept.append(seconds)
        clock.seconds += seconds
        await asyncio.sleep(0)

    return Timing(sleep, lambda: 0.0)


def ref_of(obj: Raw) -> Ref:
    meta = obj["metadata"]
    return Ref(kind_of(obj), meta.get("namespace", ""), meta["name"])


class FakeApi:
    """An in-memory API server with resource versions and injected failures.

    `refuse` lets the next calls of a method fail before they take effect. `lose` lets the next
    calls take effect, and then drops their responses. `calls` are the requests, and `writes` are
    their bodies.
    """

    def __init__(self, *objects: Raw) -> None:
        self.objects: dict[Ref, Raw] = {}
        self.calls: list[str] = []
        self.writes: list[tuple[Ref, Raw]] = []
        self.validated: list[Raw] = []
        self._version = 0
        self._before: dict[str, deque[KubeError | None]] = defaultdict(deque)
        self._after: dict[str, deque[KubeError | None]] = defaultdict(deque)
        for obj in objects:
            self.put(obj)

    def put(self, obj: Raw) -> Raw:
        """Create or replace an object, as another client."""
        self._version += 1
        kept = copy.deepcopy(obj)
        kept["metadata"]["resourceVersion"] = str(self._version)
        kept["metadata"].setdefault("uid", f"uid-{kept['metadata']['name']}")
        kept["metadata"].setdefault("creationTimestamp", "2025-06-15T15:00:00Z")
        self.objects[ref_of(obj)] = kept
        return copy.deepcopy(kept)

    def refuse(self, method: str, *errors: KubeError | None) -> None:
        self._before[method].extend(errors)

    def lose(self, method: str, *errors: KubeError | None) -> None:
        self._after[method].extend(errors)

    def of(self, kind: Kind) -> list[Raw]:
        """Return the objects of a kind."""
        return [copy.deepcopy(obj) for ref, obj in self.objects.items() if ref.kind == kind]

    def tell(self, cache: ClusterCache) -> None:
        """Pass all objects to a cache."""
        for kind in READ_KINDS:
            cache.apply(kind, Listed(tuple(self.of(kind))))

    # --- see `ports` -----------------------------------------------------------------------------

    async def read(self, ref: Ref) -> Raw:
        await self._begin("read", ref)
        return copy.deepcopy(self._get(ref))

    async def create(self, ref: Ref, body: Raw) -> Raw:
        await self._begin("create", ref)
        if ref in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{ref.name} exists")
        self.writes.append((ref, copy.deepcopy(body)))
        made = self.put(body)
        self._end("create")
        return made

    async def patch(self, ref: Ref, body: Raw, subresource: str = "") -> Raw:
        await self._begin("patch", ref, subresource)
        known = self._get(ref)
        asked = body.get("metadata", {}).get("resourceVersion")
        if asked not in (None, known["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", "the object has been modified")
        self.writes.append((ref, copy.deepcopy(body)))
        made = self.put(merged(known, body))
        self._end("patch")
        return made

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        ref = Ref(POD, namespace, name)
        await self._begin("bind", ref, node)
        pod = self._get(ref)
        if pod["metadata"].get("uid", "") != uid:
            raise Conflict(409, "Conflict", "another uid")
        if bound_to := pod["spec"].get("nodeName"):
            raise Conflict(409, "Conflict", f"pod {name} is already assigned to node {bound_to}")
        if annotations:
            told = {**pod["metadata"].get("annotations", {}), **annotations}
            pod = {**pod, "metadata": {**pod["metadata"], "annotations": told}}
        self.put({**pod, "spec": {**pod["spec"], "nodeName": node}})
        self._end("bind")

    async def evict(
        self, namespace: str, name: str, uid: str, version: str = "", *, grace_s: int | None = None
    ) -> None:
        ref = Ref(POD, namespace, name)
        await self._begin("evict", ref)
        pod = self._get(ref)
        if pod["metadata"].get("uid", "") != uid:
            raise Conflict(409, "Conflict", "another uid")
        if version and pod["metadata"]["resourceVersion"] != version:
            raise Conflict(409, "Conflict", "the resourceVersion in the precondition")
        own_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
        leaves = {
            "deletionTimestamp": "2025-06-15T15:00:00Z",
            "deletionGracePeriodSeconds": own_s if grace_s is None else grace_s,
        }
        self.put({**pod, "metadata": {**pod["metadata"], **leaves}})
        self._end("evict")

    async def delete(
        self,
        ref: Ref,
        uid: str = "",
        propagation: str = "Background",
        grace_s: int | None = None,
        version: str = "",
    ) -> Raw:
        await self._begin("delete", ref)
        known = self._get(ref)
        for field, value in (("uid", uid), ("resourceVersion", version)):
            if value and known["metadata"].get(field, "") != value:
                raise Conflict(409, "Conflict", f"the {field} in the precondition")
        leaves = {
            "deletionTimestamp": "2025-06-15T15:00:00Z",
            "deletionGracePeriodSeconds": 30 if grace_s is None else grace_s,
        }
        made = self.put({**known, "metadata": {**known["metadata"], **leaves}})
        self._end("delete")
        return made

    async def validate(self, ref: Ref, body: Raw) -> tuple[str, ...]:
        """Accept every object; tests/e2e/test_pod_templates.py uses a real API server."""
        await self._begin("validate", ref)
        self.validated.append(copy.deepcopy(body))
        return ()

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        await self._begin("list", kind)
        found = self.of(kind)
        start = int(token or 0)
        more = str(start + limit) if len(found) > start + limit else ""
        return Page(found[start : start + limit], str(self._version), more)

    async def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        await self._begin("watch", kind, resource_version)
        await asyncio.Event().wait()
        yield b""

    async def _begin(self, method: str, *words: object) -> None:
        self.calls.append(" ".join(str(w) for w in (method, *words) if w != ""))
        await asyncio.sleep(0)
        error = self._before[method].popleft() if self._before[method] else None
        if error is not None:
            raise error

    def _end(self, method: str) -> None:
        error = self._after[method].popleft() if self._after[method] else None
        if error is not None:
            raise error

    def _get(self, ref: Ref) -> Raw:
        if ref not in self.objects:
            raise NotFound(404, "NotFound", f'{ref.kind.plural} "{ref.name}" not found')
        return self.objects[ref]


def merged(known: Any, patch: Any) -> Any:
    """Return the result of a JSON merge patch of a value (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    base = dict(known) if isinstance(known, dict) else {}
    for name, value in patch.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = merged(base.get(name), value)
    return base


@asynccontextmanager
async def running(*services: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run services while the context is open."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(service) for service in services]
        yield
        for task in tasks:
            task.cancel()
