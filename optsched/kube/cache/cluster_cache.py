"""A cache of the cluster's state, built from watch events; does no I/O and reads no clock.

`apply` updates the cache from a watch event. The `assume_…` methods record changes that this
process has requested, before the server confirms them. A test checks that `snapshot` and
`formats.assemble` return equal snapshots for the same objects.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

from optsched.api import kinds
from optsched.api.json_fields import version_of
from optsched.cluster.bounded_cache import RecentCache
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.annotations import without_snapshot_annotations
from optsched.formats.snapshots.assembly import READ_KINDS, ClusterObjects
from optsched.formats.snapshots.assumptions import AssumedBind, AssumedNomination
from optsched.formats.snapshots.object_stores import STORAGE_KINDS, take_every_node
from optsched.kube.cache.reflector import Changed, Deleted, Listed
from optsched.units.quantity import parse_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.api.hypernode import NodeShard
    from optsched.api.kinds import Kind, Ref
    from optsched.api.podgroup import PodGroup
    from optsched.api.queue import Queue as ApiQueue
    from optsched.cluster.dra_devices import DeviceClass, DeviceGrant
    from optsched.cluster.node_resources import GpuShare, NumaPart
    from optsched.cluster.reasons import Flaw, Reason
    from optsched.cluster.selectors import NodeSelector
    from optsched.cluster.snapshot import Claim, Node, Snapshot
    from optsched.cluster.task import Task
    from optsched.formats.codec.gpu_shares import DeviceTable
    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.kube.cache.reflector import WatchEvent
    from optsched.kube.client.listing import Raw

_REMEMBERED: Final = 512
"""Number of recently deleted objects to remember: a late watch event must not restore them."""


def find_closures(node: Node | None) -> frozenset[str]:
    """Return the reasons why a node accepts no pods: some of `cordoned`, `not ready`, `gone`."""
    if node is None:
        return frozenset({"gone"})
    reasons = (("cordoned", node.unschedulable), ("not ready", not node.ready))
    return frozenset(reason for reason, holds in reasons if holds)


class ResourceVersions:
    """The newest resource version of each object of one kind, keyed by object key.

    Resource versions of a kind are compared as numbers (KEP-5504). A resource version that is not a
    number counts as newer than every other resource version.

    `known` holds the resource version of each object in the cluster, or -1 if it is not a number.
    `namespaces` counts the objects in `known` per namespace.
    """

    def __init__(self) -> None:
        self.namespaces: Counter[str] = Counter()
        self.known: dict[str, int] = {}
        self._deleted: RecentCache[str, int] = RecentCache(_REMEMBERED)

    def lookup(self, key: str) -> str:
        """Return an object's newest known resource version; empty if unknown or not a number."""
        known = self.known.get(key, -1)
        return "" if known < 0 else str(known)

    def replace(self, key: str, version: str) -> bool:
        """Record the resource version of a listed object; return whether this version is new."""
        number = parse_whole(version)
        if number is not None and self.known.get(key) == number:
            return False
        self._record(key, -1 if number is None else number)
        return True

    def change(self, key: str, version: str) -> bool:
        """Record a watch event's resource version; return whether it exceeds the known version."""
        number = parse_whole(version)
        if number is None:
            self._record(key, -1)
            return True
        newest = self.known.get(key)
        if newest is None:
            newest = self._deleted.get(key) or -1
        if number <= newest:
            return False
        self._record(key, number)
        return True

    def delete(self, key: str, version: str) -> bool:
        """Record an object's deletion; return False if it is unknown or was created again."""
        number, newest = parse_whole(version), self.known.get(key)
        if number is not None:
            self._deleted.add(key, max(number, self._deleted.get(key) or -1))
        if newest is None or (number is not None and number < newest):
            return False
        self.drop(key)
        return True

    def drop(self, key: str) -> None:
        """Forget the resource version of an object."""
        del self.known[key]
        if namespace := key.rpartition("/")[0]:
            self.namespaces[namespace] -= 1
            if not self.namespaces[namespace]:
                del self.namespaces[namespace]

    def _record(self, key: str, version: int) -> None:
        if key not in self.known and (namespace := key.rpartition("/")[0]):
            self.namespaces[namespace] += 1
        self.known[key] = version


_KEPT_RAW: Final = frozenset({kinds.NAMESPACE, kinds.PERSISTENT_VOLUME_CLAIM, *STORAGE_KINDS})

_FLAWED: Final = frozenset(
    {kinds.NODE, kinds.QUEUE, kinds.POD_GROUP, kinds.HYPER_NODE, kinds.POD_DISRUPTION_BUDGET}
)
"""Kinds whose validation errors (`Flaw`) are reported as events."""

_WITH_UID: Final = _FLAWED | {*kinds.SCHEDULING_POD_GROUPS}
"""Kinds for which the cache keeps UIDs, so that no event is written about a deleted object."""


class ClusterCache:
    """The state of a cluster, built from watch events and from changes that this process assumes.

    The number `version` grows with every change that may affect the next snapshot. `queues` and
    `shards` hold the queues and NodeShards that the server reported, keyed by name.
    """

    def __init__(
        self,
        options: DecodeOptions | None = None,
        takes_node: Callable[[Mapping[str, str]], bool] = take_every_node,
    ) -> None:
        """`takes_node` returns whether a node with the given labels belongs to this scheduler."""
        self.version = 0
        self._versions = {kind: ResourceVersions() for kind in READ_KINDS}
        self._listing: dict[Kind, set[str]] = {}
        """Maps each kind whose list is in progress to the keys of the objects listed so far."""
        self._synced: set[Kind] = set()
        self._objects = ClusterObjects(options, takes_node)
        self.queues: Mapping[str, ApiQueue] = self._objects.queues.by_key
        self.shards: Mapping[str, NodeShard] = self._objects.shards.by_key
        self._uids: dict[tuple[Kind, str], str] = {}

    # --- events ----------------------------------------------------------------------------------

    @property
    def is_synced(self) -> bool:
        """Whether every kind has been listed at least once."""
        return len(self._synced) == len(READ_KINDS)

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Apply a watch event, unless the cache already holds a newer state of the object."""
        versions = self._versions[kind]
        match event:
            case Listed():
                if event.is_first:
                    self._listing[kind] = set()
                listed = self._listing.setdefault(kind, set())
                keys = [_key(kind, obj) for obj in event.items]
                listed.update(keys)
                changed = [
                    (key, obj)
                    for key, obj in zip(keys, event.items, strict=True)
                    if versions.replace(key, version_of(obj))
                ]
                deleted: list[str] = []
                if event.is_last:
                    # Objects that are missing from the complete list no longer exist.
                    deleted = [key for key in versions.known if key not in listed]
                    for key in deleted:
                        versions.drop(key)
                    del self._listing[kind]
                    self._synced.add(kind)
                for key, obj in changed:
                    self._apply_object(kind, key, obj)
                for key in deleted:
                    self._apply_object(kind, key, None)
                self.version += event.is_last
            case Changed(obj):
                key = _key(kind, obj)
                is_created = key not in versions.known
                if versions.change(key, version_of(obj)):
                    self._apply_object(kind, key, obj, is_created=is_created)
            case Deleted(obj):
                key = _key(kind, obj)
                if versions.delete(key, version_of(obj)):
                    self._apply_object(kind, key, None)

    def _apply_object(
        self, kind: Kind, key: str, obj: Raw | None, *, is_created: bool = False
    ) -> None:
        """Replace the cached state of an object; None means that the object was deleted.

        `is_created` is true if the object was not cached and a watch, not a list, reported it.
        """
        self.version += 1
        if obj is None:
            self._uids.pop((kind, key), None)
        else:
            obj = without_snapshot_annotations(obj)
            if kind in _WITH_UID:
                self._uids[kind, key] = str(obj["metadata"].get("uid") or "")
            if kind in _KEPT_RAW:
                obj["metadata"].pop("managedFields", None)
        self._objects.apply(kind, key, obj, is_created=is_created)

    # --- assumptions -----------------------------------------------------------------------------

    def can_assume(self, task: str, node: str) -> bool:
        """Return whether the task is still pending and the node still exists."""
        pod = self._objects.pods.find_pod(task)
        is_pending = pod is not None and pod.task.status is TaskStatus.PENDING
        return is_pending and self._objects.find_node(node) is not None

    def assume_bound(
        self,
        task: str,
        node: str,
        shared_gpus: tuple[GpuShare, ...] = (),
        devices: tuple[DeviceGrant, ...] = (),
        numa: tuple[NumaPart, ...] = (),
    ) -> str:
        """Assume that a task is bound; return the task's UID.

        The assumption ends when a watch reports that the pod is bound or deleted, or with `forget`.
        """
        self.version += 1
        self._objects.gangs.assume_bound(self._objects.pods[task].task.gang)
        for grant in devices:
            if grant.devices:
                self._objects.devices.assume(task, node, grant)
        return self._objects.pods.assume(task, AssumedBind(node, shared_gpus, numa))

    def record_stored_devices(self, claim: str, version: str) -> None:
        """Record the resource version of a claim in which the server stored the assumed devices.

        If objects are listed again, the list may show only a later state of the claim. Any reported
        version that is newer than the recorded version therefore ends the assumption about the
        claim's devices.
        """
        kind, number = self.claim_kind(claim), parse_whole(version)
        if kind is None or number is None:
            return
        reported = parse_whole(self._versions[kind].lookup(claim))
        self.version += self._objects.devices.record_stored(claim, number, reported)

    def assume_evicted(self, task: str, node: str) -> str | None:
        """Assume that a task is terminating; return its UID, or None if it is not on `node`."""
        pod = self._objects.pods.find_pod(task)
        if pod is None or pod.task.node != node or not pod.task.status.is_standing:
            return None
        self.version += 1
        return self._objects.pods.assume_evicted(task)

    def record_shuffle(self, plugin: str, now_ms: int) -> None:
        """Record the time at which a plugin last moved pods to better nodes."""
        self.version += 1
        self._objects.gangs.shuffles.own[plugin] = now_ms

    def assume_nominated(self, task: str, node: str) -> bool:
        """Assume that a pending task is nominated to `node`, or to no node if `node` is empty.

        Returns whether the nomination changed.
        """
        pod = self._objects.pods.find_pod(task)
        if pod is None or pod.task.status is not TaskStatus.PENDING:
            return False
        if pod.task.nominated_node == node:
            return False
        self.version += 1
        self._objects.pods.assume(task, AssumedNomination(node))
        return True

    def forget_nominations(self) -> None:
        """Drop all assumed nominations and all assumed annotations about moved pods."""
        self.version += 1
        self._objects.pods.forget_nominations()
        self._objects.gangs.forget_moves()

    def assume_moves(self, gang: str, text: str) -> None:
        """Assume that a gang has an annotation about moved pods, until the server reports it."""
        self.version += 1
        self._objects.gangs.assume_moves(gang, text)

    def assume_enqueued(self, gang: str) -> None:
        """Assume that a gang is enqueued, until the server reports its PodGroup's phase.

        Without the assumption, the next session could enqueue another gang for the same capacity or
        quota.
        """
        # In every session, a gang without a PodGroup is enqueued again, so repeating the assumption
        # must not trigger another session.
        self.version += self._objects.gangs.assume_enqueued(gang)

    def forget_enqueued(self) -> None:
        """Drop the assumptions that gangs are enqueued."""
        self.version += 1
        self._objects.gangs.forget_enqueued()

    def revoke_enqueued(self, gang: str) -> bool:
        """Drop the assumption that a gang without pods is enqueued; return whether it existed.

        The server rejected the PodGroup's new phase, so no pods will be created for the gang.
        """
        is_revoked = self._objects.gangs.revoke_enqueued(gang)
        self.version += is_revoked
        return is_revoked

    def forget(self, task: str) -> None:
        """Drop all assumptions about a task."""
        self.version += 1
        self._objects.devices.forget(task)
        self._objects.pods.forget(task)

    def forget_eviction(self, task: str) -> None:
        """Drop the assumption that a task is terminating."""
        self.version += 1
        self._objects.pods.forget_eviction(task)

    def awaits_bind(self, task: str) -> bool:
        """Return whether a task is assumed evicted although its bind is not confirmed yet."""
        return self._objects.pods.awaits_bind(task)

    def set_device_table(self, table: DeviceTable) -> None:
        """Set the table of the GPU and NPU partitions that each device model supports."""
        self.version += self._objects.nodes.set_device_table(table)

    def hold_gang(self, gang: str, reason: Reason) -> None:
        """Exclude a gang from scheduling until `release_gang` is called for it."""
        self.version += 1
        self._objects.gangs.hold_gang(gang, reason)

    def release_gang(self, gang: str) -> None:
        """Allow a gang that `hold_gang` excluded to be scheduled again."""
        self.version += self._objects.gangs.release_gang(gang)

    # --- queries ----------------------------------------------------------------------------------

    def task(self, key: str) -> Task | None:
        """Return a task as the server reported it, or None if its pod does not exist."""
        pod = self._objects.pods.find_pod(key)
        return None if pod is None else pod.reported

    def pod_version(self, key: str) -> str:
        """Return the newest known resource version of a pod; empty if the pod is unknown."""
        return self._versions[kinds.POD].lookup(key)

    def grace_s(self, key: str) -> int:
        """Return a pod's termination grace period in seconds; 0 if the pod does not exist."""
        pod = self._objects.pods.find_pod(key)
        return 0 if pod is None else pod.grace_s

    def claim(self, key: str) -> Claim | None:
        """Return the state of a PersistentVolumeClaim, or None if the claim does not exist."""
        return self._objects.volumes.find_claim(key)

    def find_node(self, name: str) -> Node | None:
        """Return a node without its resident tasks, or None if it does not exist."""
        return self._objects.find_node(name)

    def selects(self, selector: NodeSelector, name: str) -> bool:
        """Return whether a node exists and matches a node selector."""
        node = self._objects.find_node(name)
        return node is not None and selector.matches(name, node.labels)

    def claim_kind(self, key: str) -> Kind | None:
        """Return the kind and API version of a ResourceClaim, or None if the claim is unknown."""
        return self._objects.devices.claim_kind(key)

    def device_class(self, name: str) -> DeviceClass | None:
        """Return a DeviceClass, or None if it does not exist."""
        return self._objects.devices.refresh().classes.get(name)

    def queue_of(self, gang: str) -> str:
        """Return a gang's queue in the last snapshot; empty if the snapshot lacks the gang."""
        known = self._objects.gangs.find_gang(gang)
        return "" if known is None else known.queue

    def group(self, key: str) -> PodGroup | None:
        """Return a PodGroup as the server reported it, or None if it does not exist."""
        return self._objects.gangs.groups.get(key)

    @property
    def flaws(self) -> tuple[Flaw, ...]:
        """The validation errors of pods and gangs, sorted by kind, key and code."""
        refused = self._objects.gangs.flaws.values()
        found = (*self._objects.pods.flaws.values(), *chain.from_iterable(refused))
        return tuple(sorted(found, key=lambda flaw: (str(flaw.kind), flaw.key, flaw.code)))

    def uid(self, kind: Kind, key: str) -> str:
        """Return the UID of an object about which events may be written; empty if unknown."""
        if kind == kinds.POD:
            pod = self._objects.pods.find_pod(key)
            return "" if pod is None else pod.reported.uid
        return self._uids.get((kind, key), "")

    def exists(self, ref: Ref, uid: str = "") -> bool:
        """Return whether an object exists; always True for kinds whose UIDs are not cached.

        An empty `uid` matches an object with any UID.
        """
        key = ref.key
        if ref.kind == kinds.POD:
            pod = self._objects.pods.find_pod(key)
            return pod is not None and uid in ("", pod.reported.uid)
        if ref.kind not in _WITH_UID:
            return True
        # Events name the newest API version of the upstream Kubernetes PodGroup, but a cluster may
        # serve another API version.
        served = kinds.SCHEDULING_POD_GROUPS
        uids = [self._uids.get((k, key)) for k in (served if ref.kind in served else (ref.kind,))]
        return any(known is not None and uid in ("", known) for known in uids)

    def snapshot(self, now_ms: int) -> Snapshot:
        """Build a snapshot of the current state; unchanged objects keep their previous values."""
        versions = self._versions.items()
        known = (each.namespaces for kind, each in versions if kind.namespaced)
        return self._objects.build(now_ms, set().union(*known))


def _key(kind: Kind, obj: Raw) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if kind.namespaced else str(meta["name"])
