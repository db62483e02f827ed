"""The writes that precede a bind: to claims, node locks, device conditions and scheduling gates.

ResourceClaims are allocated and reserved as in kube-scheduler (KEP-4381). A finalizer is written
first, so that a claim in use cannot be deleted. After the finalizer, the allocation and the
reservation are written to the claim's status. Each write is conditional on the resource version
that was read. Writes that are already done are skipped, so the sequence of writes can be repeated.

A device plugin does not know for which pod the kubelet allocates devices. The plugin chooses the
pod whose `bind-phase` annotation is `allocating`. A node lock ensures that only one pod on a node
has the annotation `allocating`. The binder sets the lock as a node annotation, and the device
plugin removes the lock after the allocation. In Volcano (`pkg/scheduler/plugins/util/nodelock`), a
bind fails if its node is locked; in this scheduler, the bind waits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.json_fields import annotations_of, status_of, version_of, with_condition
from optsched.api.kinds import NODE, Ref
from optsched.cluster.dra_devices import DeviceAllocation, DeviceGrant
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.resource_claims import FINALIZER, granted_fields
from optsched.formats.snapshots.bound_devices import BOUND_DEVICES, device_condition
from optsched.kube.client.client import patch_current
from optsched.kube.client.errors import Conflict, KubeError, NotFound, Rejected
from optsched.kube.client.listing import ref_by_key
from optsched.kube.scheduler.status import UNSCHEDULABLE
from optsched.units import TimestampError, format_time, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.api.kinds import Kind
    from optsched.cluster.dra_devices import DeviceClass
    from optsched.cluster.snapshot import Snapshot
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

CLAIM_TRIES: Final = 8
"""Maximum number of attempts to reserve a claim; each conflict causes a new attempt."""


class ClaimReserver:
    """Reserves ResourceClaims for pods.

    `kind_of` returns the kind and API version under which a claim is watched. `class_of` returns a
    DeviceClass by name. `on_reserved` is called with a reserved claim and its resource version.
    """

    def __init__(
        self,
        api: Client,
        kind_of: Callable[[str], Kind | None],
        class_of: Callable[[str], DeviceClass | None],
        on_reserved: Callable[[str, str], None] = lambda _claim, _version: None,
    ) -> None:
        self._api = api
        self._kind_of = kind_of
        self._class_of = class_of
        self._on_reserved = on_reserved

    async def reserve(self, grant: DeviceGrant, pod: Ref, uid: str, node: str) -> str:
        """Reserve a claim with its devices for a pod; return the reason for a failure, or "".

        Raises KubeError on all other errors of the API server.
        """
        for _ in range(CLAIM_TRIES):
            kind = self._kind_of(grant.claim)
            if kind is None:
                return f"resource claim {grant.claim} no longer exists"
            ref = ref_by_key(kind, grant.claim)
            claim: Raw = {}
            try:
                claim = await self._api.read(ref)
                refusal = _refusal(claim, grant)
                if refusal:
                    return refusal
                if not _is_reserved(claim, uid):
                    claim = await self._write(ref, claim, grant, pod, uid, node)
            except NotFound:
                return f"resource claim {grant.claim} no longer exists"
            except Conflict:
                continue
            except Rejected as e:
                devices = (claim.get("spec") or {}).get("devices") or {}
                if devices.get("config"):
                    return f"resource claim {grant.claim} {_NOT_COMPACT}: {e.message}"
                raise
            self._on_reserved(grant.claim, version_of(claim))
            return ""
        return f"other clients keep changing resource claim {grant.claim}"

    async def release(self, grant: DeviceGrant, uid: str) -> None:
        """Undo `reserve` for a pod that was not bound; API server errors are ignored."""
        kind = self._kind_of(grant.claim)
        if kind is None or not grant.devices:
            return
        ref = ref_by_key(kind, grant.claim)
        with suppress(KubeError):
            claim = await self._api.read(ref)
            if not _is_reserved(claim, uid) or _refusal(claim, grant):
                return
            others = [r for r in status_of(claim).get("reservedFor") or () if r.get("uid") != uid]
            status = {"reservedFor": others} if others else _UNALLOCATED
            body = {"metadata": version_precondition(claim), "status": status}
            await self._api.patch(ref, body, "status")

    async def _write(
        self, ref: Ref, claim: Raw, grant: DeviceGrant, pod: Ref, uid: str, node: str
    ) -> Raw:
        """Write a claim's allocation and reservation; return the stored claim."""
        status = status_of(claim)
        reserved = [*(status.get("reservedFor") or ())]
        fresh: dict[str, Any] = {}
        if not status.get("allocation"):
            finalizers = claim["metadata"].get("finalizers") or []
            if FINALIZER not in finalizers:
                meta = {**version_precondition(claim), "finalizers": [*finalizers, FINALIZER]}
                claim = await self._api.patch(ref, {"metadata": meta})
            allocation = DeviceAllocation.on_node(node, grant.devices)
            fresh["allocation"] = granted_fields(claim, allocation, self._class_of)
        reserved.append({"resource": "pods", "name": pod.name, "uid": uid})
        status = {**fresh, "reservedFor": reserved}
        body = {"metadata": version_precondition(claim), "status": status}
        return await self._api.patch(ref, body, "status")


@dataclass(frozen=True, slots=True)
class ClaimDeallocation:
    """A claim to deallocate, because its allocated devices are on no existing node.

    `grant` holds the devices to deallocate, and `users` the UIDs of the pending pods that use the
    claim.
    """

    ref: Ref
    grant: DeviceGrant
    users: frozenset[str]


def find_stranded_claims(
    snapshot: Snapshot, kind_of: Callable[[str], Kind | None]
) -> Iterator[ClaimDeallocation]:
    """Yield the claims to deallocate: their pending pods wait for devices on deleted nodes.

    Kubernetes deallocates a claim only after its pods have terminated, but a pod that was never
    bound does not terminate. As in kube-scheduler (`PostFilter` of dynamicresources), a claim is
    deallocated unless another pod has reserved it.
    """
    users: dict[str, set[str]] = {}
    for gang in snapshot.gangs if snapshot.devices.claims else ():
        for task in gang.tasks:
            for key in task.device_claims if task.status is TaskStatus.PENDING else ():
                users.setdefault(key, set()).add(task.uid)
    for key, uids in users.items():
        claim, kind = snapshot.devices.claims.get(key), kind_of(key)
        if claim is None or claim.allocation is None or kind is None:
            continue
        reached = claim.allocation.nodes
        if reached is None or not uids.issuperset(claim.reserved_for):
            continue
        if not any(reached.matches(node.name, node.labels) for node in snapshot.nodes):
            grant = DeviceGrant(key, claim.allocation.devices)
            yield ClaimDeallocation(ref_by_key(kind, key), grant, frozenset(uids))


async def deallocate_claim(api: Client, stranded: ClaimDeallocation) -> None:
    """Deallocate a claim, unless its allocation changed or another pod reserved it."""
    claim = await api.read(stranded.ref)
    status = status_of(claim)
    reserved = {each.get("uid") for each in status.get("reservedFor") or ()}
    is_allocated = bool(status.get("allocation")) and not _refusal(claim, stranded.grant)
    if is_allocated and reserved <= stranded.users:
        body = {"metadata": version_precondition(claim), "status": _UNALLOCATED}
        await api.patch(stranded.ref, body, "status")


_UNALLOCATED: Final = {"reservedFor": None, "allocation": None}
"""The status patch that removes a claim's allocation and reservations; null removes a field."""

_NOT_COMPACT: Final = (
    "cannot be changed by JSON clients, because its driver parameters contain spaces between "
    "values: create the claim again without these spaces"
)
"""Part of an error message: the reason why a ResourceClaim cannot be patched.

A JSON client removes spaces from driver parameters, which the server treats as a change.
"""


def version_precondition(obj: Raw) -> dict[str, Any]:
    """Return metadata that makes a patch fail if the object's resource version has changed."""
    return {"resourceVersion": obj["metadata"].get("resourceVersion")}


def _is_reserved(claim: Raw, uid: str) -> bool:
    return any(each.get("uid") == uid for each in status_of(claim).get("reservedFor") or ())


def _refusal(claim: Raw, grant: DeviceGrant) -> str:
    """Return how a claim's state contradicts the plan, or an empty string if both agree."""
    allocation = status_of(claim).get("allocation")
    if not allocation:
        return "" if grant.devices else f"resource claim {grant.claim} is no longer allocated"
    if not grant.devices:
        return ""
    results = (allocation.get("devices") or {}).get("results") or ()
    found = {(r.get("request"), r.get("driver"), r.get("pool"), r.get("device")) for r in results}
    if found == {(request, *device) for request, device in grant.devices}:
        return ""
    return f"resource claim {grant.claim} is allocated to other devices"


LOCK: Final = "hamivgpu"
"""Name of the annotation that locks a node; defined by the device plugin (`DeviceName`)."""
EXPIRES_MS: Final = 5 * 60 * 1000
"""Age in milliseconds after which a node lock counts as abandoned."""
PATIENCE_S: Final = 30.0
"""Seconds for which a bind waits for a node lock that another process holds."""
POLL_S: Final = 0.5


@dataclass(slots=True)
class _NodeMutex:
    """The mutex of a node, and the number of binds that hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_binds: int = 0


class NodeLocks:
    """Node locks, which ensure that each node has at most one bind at a time."""

    def __init__(self, api: Client, clock: Clock, timing: Timing) -> None:
        self._api = api
        self._clock = clock
        self._timing = timing
        self._mutexes: dict[str, _NodeMutex] = {}

    async def acquire(self, node: str) -> str:
        """Wait for a node's lock; return why the node was not locked, or an empty string.

        Raises KubeError on all other errors of the API server.
        """
        mutex = self._mutexes.setdefault(node, _NodeMutex())
        mutex.num_binds += 1
        try:
            async with mutex.lock:
                until_s = self._clock.monotonic() + PATIENCE_S
                while True:
                    held = await self._try_acquire(node)
                    if held is None:
                        return ""
                    if self._clock.monotonic() >= until_s:
                        return f"node {node} is locked ({LOCK}) since {held} for another pod"
                    await self._timing.sleep(POLL_S)
        finally:
            mutex.num_binds -= 1
            if not mutex.num_binds:
                del self._mutexes[node]

    async def release(self, node: str) -> None:
        """Unlock a node after a failed bind; API server errors are ignored."""
        with suppress(KubeError):
            await self._api.patch(Ref(NODE, "", node), {"metadata": {"annotations": {LOCK: None}}})

    async def _try_acquire(self, node: str) -> str | None:
        """Try to lock a node; return None on success, else the time of the existing lock."""
        ref = Ref(NODE, "", node)
        obj = await self._api.read(ref)
        now_ms = self._clock.now_ms()
        held = str(annotations_of(obj).get(LOCK) or "")
        if held:
            try:
                is_expired = now_ms - parse_time_ms(held) > EXPIRES_MS
            except TimestampError:
                is_expired = True
            if not is_expired:
                return held
        meta = {**version_precondition(obj), "annotations": {LOCK: format_time(now_ms)}}
        try:
            await self._api.patch(ref, {"metadata": meta})
        except Conflict:
            return "just now"
        return None


_RECORD_TRIES: Final = 3
"""Maximum number of attempts to write a device condition; if all fail, a later session retries."""


async def record_devices(api: Client, ref: Ref, uid: str, message: str, now_ms: int) -> None:
    """Write the condition `optsched.io/BoundDevices` of the pod with this UID.

    If the pod is already bound or has another UID, nothing is written, and the bind fails later.
    The resource version is a precondition, so a scheduler that no longer leads cannot overwrite the
    current leader's condition.
    """

    def add_condition(pod: Raw) -> Raw | None:
        meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
        if meta.get("uid", "") != uid or spec.get("nodeName"):
            return None
        conditions = status.get("conditions") or ()
        known = [each for each in conditions if each.get("type") == BOUND_DEVICES]
        if [each.get("message") for each in known] == [message]:
            return None
        return {
            "metadata": {"uid": uid, **version_precondition(pod)},
            "status": {"conditions": with_condition(pod, device_condition(message, now_ms))},
        }

    await patch_current(api, ref, add_condition, _RECORD_TRIES, "status")


SCHEDULED = "PodScheduled"


@dataclass(frozen=True, slots=True)
class GateOpening:
    """A queue gate to open, because the pod fits no node.

    `message` explains why the pod fits no node.
    """

    ref: Ref
    uid: str
    now_ms: int
    message: str


async def open_gate(api: Client, ref: Ref, uid: str) -> Raw:
    """Remove the scheduling gates of the pod with this UID; return the stored pod.

    No gate can be added later, because the API server lets clients only remove gates.
    """
    return await api.patch(ref, {"metadata": {"uid": uid}, "spec": {"schedulingGates": None}})


async def open_gate_unplaced(api: Client, opening: GateOpening) -> None:
    """Remove the gates of a pod that fits no node, and set its condition PodScheduled to False.

    Cluster autoscalers read this condition.
    """
    pod = await open_gate(api, opening.ref, opening.uid)
    if (pod.get("spec") or {}).get("nodeName"):
        return
    condition = {
        "type": SCHEDULED,
        "status": "False",
        "reason": UNSCHEDULABLE,
        "message": opening.message,
        "lastTransitionTime": format_time(opening.now_ms),
    }
    meta = {"uid": opening.uid, **version_precondition(pod)}
    # On a conflict, the pod has changed and may be bound, so the condition is not written.
    with suppress(Conflict):
        status = {"conditions": with_condition(pod, condition)}
        await api.patch(opening.ref, {"metadata": meta, "status": status}, "status")
