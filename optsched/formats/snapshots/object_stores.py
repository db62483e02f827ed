"""Stores of parsed objects, updated by watch events, for all kinds in a snapshot except pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from optsched.api import kinds
from optsched.api.hypernode import NodeShard, parse_hypernode, parse_nodeshard
from optsched.api.queue import parse_queue
from optsched.cluster.dra_devices import NO_DEVICES, DeviceAllocation, Devices
from optsched.formats.codec.gpu_shares import NO_TABLE, replace_geometries
from optsched.formats.codec.hypernodes import TopologyIndex
from optsched.formats.codec.nodes import parse_node, with_shards
from optsched.formats.codec.numatopologies import parse_numa
from optsched.formats.codec.queues import queue_of, read_usage, with_builtin_queues
from optsched.formats.codec.resource_claims import (
    OfferedDevices,
    collect_devices,
    parse_device_claim,
    parse_device_class,
    parse_slice,
)
from optsched.formats.codec.volumes import (
    Storage,
    class_nodes,
    parse_claim,
    parse_csi_node,
    volume_nodes,
)
from optsched.formats.snapshots.assumptions import AssumedAllocation, is_newer
from optsched.units.quantity import parse_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.api.kinds import Kind
    from optsched.api.queue import Queue as ApiQueue
    from optsched.cluster.amounts import Amounts, Usage
    from optsched.cluster.dra_devices import DeviceClaim, DeviceClass, DeviceGrant
    from optsched.cluster.node_resources import Numa, Sharding
    from optsched.cluster.snapshot import Claim, Queue
    from optsched.cluster.snapshot_builder import SnapshotBuilder
    from optsched.formats.codec.gpu_shares import DeviceTable
    from optsched.formats.codec.resource_claims import Slice
    from optsched.units import FieldError

Raw: TypeAlias = "dict[str, Any]"
"""A Kubernetes object in parsed JSON."""

Problems: TypeAlias = "dict[tuple[Kind, str], tuple[FieldError, ...]]"
"""Invalid fields of objects, keyed by kind and object key."""

T = TypeVar("T")
V = TypeVar("V")

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""Key of the label that every namespace has; its value is the namespace's name."""

STORAGE_KINDS: Final = (kinds.PERSISTENT_VOLUME, kinds.STORAGE_CLASS)


def store_or_drop(store: dict[Any, Any], key: object, value: object) -> None:
    """Store a value under a key, or remove the key if the value is None."""
    if value is None:
        store.pop(key, None)
    else:
        store[key] = value


def string_map(obj: Mapping[str, Any], field: str) -> dict[str, str]:
    """Return the labels or annotations of an object; values that are not strings are dropped."""
    found = obj.get("metadata", {}).get(field)
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


class ParsedStore(Generic[T]):
    """The valid objects of one kind.

    Attributes
    ----------
    by_key
        Valid objects, keyed by object key, in order of creation.
    values
        Valid objects in key order as of the last `refresh`; the same tuple until one changes.

    """

    def __init__(
        self,
        kind: Kind,
        parse: Callable[[Raw], tuple[T | None, tuple[FieldError, ...]]],
        problems: Problems,
    ) -> None:
        self.by_key: dict[str, T] = {}
        self.values: tuple[T, ...] = ()
        self._kind = kind
        self._parse = parse
        self._problems = problems
        self._is_stale = True

    def apply(self, key: str, obj: Raw | None) -> None:
        """Store an object, or remove it if `obj` is None."""
        value, errors = (None, ()) if obj is None else self._parse(obj)
        store_or_drop(self.by_key, key, value)
        store_or_drop(self._problems, (self._kind, key), errors or None)
        self._is_stale = True

    def refresh(self) -> bool:
        """Update `values`; return whether an event arrived since the last `refresh`."""
        if not self._is_stale:
            return False
        values = tuple(self.by_key[key] for key in sorted(self.by_key))
        if values != self.values:
            self.values = values
        self._is_stale = False
        return True


class QueueStore(ParsedStore["ApiQueue"]):
    """A store of Queues, both as API objects and as `snapshot.Queue` objects."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(kinds.QUEUE, _parse_queue, problems)
        self.shown: tuple[Queue, ...] = ()
        self.usage: Mapping[str, Usage] = {}

    def refresh(self) -> bool:
        """See `ParsedStore`."""
        if not super().refresh():
            return False
        known = {queue.name: queue for queue in self.shown}
        fresh = with_builtin_queues(map(queue_of, self.by_key.values()))
        shown = tuple(known[q.name] if known.get(q.name) == q else q for q in fresh)
        if shown != self.shown:
            self.shown = shown
        usage = ((q.name, read_usage(q.meta.annotations)[0]) for q in self.by_key.values())
        self.usage = {name: found for name, found in sorted(usage) if found is not None}
        return True


def _parse_queue(obj: Raw) -> tuple[ApiQueue | None, tuple[FieldError, ...]]:
    queue, errors = parse_queue(obj)
    remarks = () if queue is None else read_usage(queue.meta.annotations)[1]
    return queue, (*errors, *remarks)


class ShardStore(ParsedStore[NodeShard]):
    """A store of NodeShards, and the sharding that results from them."""

    def __init__(self, sharding: Sharding, problems: Problems) -> None:
        super().__init__(kinds.NODE_SHARD, parse_nodeshard, problems)
        self.sharding = sharding

    def refresh(self) -> bool:
        """See `ParsedStore`."""
        if not super().refresh():
            return False
        sharding = with_shards(self.sharding, self.by_key.values())
        if sharding != self.sharding:
            self.sharding = sharding
        return True


class NamespaceStore:
    """A store of namespaces, including namespaces that are known only from other objects.

    Attributes
    ----------
    labels
        Labels keyed by namespace, as of the last `refresh`; the same mapping until one changes.

    """

    def __init__(self) -> None:
        self.labels: Mapping[str, Mapping[str, str]] = {}
        self._raw: dict[str, Raw] = {}
        self._is_stale = True

    def apply(self, name: str, obj: Raw | None) -> None:
        """Store a Namespace, or remove it if `obj` is None."""
        store_or_drop(self._raw, name, obj)
        self._is_stale = True

    def annotations(self, name: str) -> dict[str, str]:
        """Return the annotations of a namespace; empty if it is unknown."""
        return string_map(self._raw.get(name, {}), "annotations")

    def refresh(self, used: set[str]) -> bool:
        """Update `labels`; return whether a namespace may have changed.

        `used` holds the names of the namespaces in which any object exists.
        """
        names = used | self._raw.keys()
        if not self._is_stale and names == self.labels.keys():
            return False
        labels = {
            name: {**string_map(self._raw.get(name, {}), "labels"), NAMESPACE_LABEL: name}
            for name in sorted(names)
        }
        if labels != self.labels:
            self.labels = labels
        self._is_stale = False
        return True


class VolumeStore:
    """A store of PersistentVolumeClaims, parsed again if a volume or storage class changes."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._raw_claims: dict[str, Raw] = {}
        self._raw_storage: dict[Kind, dict[str, Raw]] = {kind: {} for kind in STORAGE_KINDS}
        self._storage: Storage | None = None
        self._stale_claims: set[str] = set()
        self._is_storage_stale = False
        self._claims: Mapping[str, Claim] = {}

    def apply_claim(self, key: str, obj: Raw | None) -> None:
        """Store a PersistentVolumeClaim, or remove it if `obj` is None."""
        store_or_drop(self._raw_claims, key, obj)
        self._stale_claims.add(key)

    def apply_storage(self, kind: Kind, key: str, obj: Raw | None) -> None:
        """Store a volume or storage class, or remove it if `obj` is None."""
        store_or_drop(self._raw_storage[kind], key, obj)
        self._storage = None
        self._is_storage_stale = True

    def find_claim(self, key: str) -> Claim | None:
        """Return a claim in its current state, or None if there is none with this key."""
        obj = self._raw_claims.get(key)
        return None if obj is None else parse_claim(obj, self._current_storage())[0]

    def refresh(self) -> Mapping[str, Claim]:
        """Return all claims, keyed by claim key; until a claim changes, return the same mapping."""
        stale = (
            self._stale_claims | self._raw_claims.keys()
            if self._is_storage_stale
            else self._stale_claims
        )
        if not stale:
            return self._claims
        storage, claims = self._current_storage(), dict(self._claims)
        for key in stale:
            obj = self._raw_claims.get(key)
            claim, errors = (None, ()) if obj is None else parse_claim(obj, storage)
            store_or_drop(claims, key, claim)
            store_or_drop(
                self._problems, (kinds.PERSISTENT_VOLUME_CLAIM, key), tuple(errors) or None
            )
        if claims != self._claims:
            self._claims = claims
        self._stale_claims.clear()
        self._is_storage_stale = False
        return self._claims

    def storage_problems(self) -> Problems:
        """Return the invalid fields of volumes and storage classes."""
        volumes, classes = self._raw_storage.values()
        found: Problems = {}
        for key, obj in volumes.items():
            found[kinds.PERSISTENT_VOLUME, key] = tuple(volume_nodes(obj)[1])
        for key, obj in classes.items():
            found[kinds.STORAGE_CLASS, key] = tuple(class_nodes(obj)[2])
        return found

    def _current_storage(self) -> Storage:
        if self._storage is None:
            self._storage = Storage(*self._raw_storage.values())
        return self._storage


class DeviceStore:
    """A store of ResourceClaims, DeviceClasses and ResourceSlices in their newest API versions.

    Assumed device allocations are treated like allocations that the API server has stored.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._claims: dict[Kind, dict[str, DeviceClaim]] = {k: {} for k in kinds.RESOURCE_CLAIMS}
        self._classes: dict[Kind, dict[str, DeviceClass]] = {k: {} for k in kinds.DEVICE_CLASSES}
        self._slices: dict[Kind, dict[str, Slice]] = {k: {} for k in kinds.RESOURCE_SLICES}
        self._assumed: dict[str, AssumedAllocation] = {}
        self._shown = NO_DEVICES
        self._is_stale = False
        self._are_slices_stale = False

    def apply_object(self, kind: Kind, key: str, obj: Raw | None) -> None:
        """Store an object, or remove it if `obj` is None."""
        self._is_stale = True
        errors: tuple[FieldError, ...] = ()
        if kind in self._claims:
            claim, errors = (None, ()) if obj is None else parse_device_claim(obj)
            store_or_drop(self._claims[kind], key, claim)
            assumed = self._assumed.get(key)
            version = str((obj or {}).get("metadata", {}).get("resourceVersion") or "")
            if assumed is not None and not assumed.is_unconfirmed(claim, parse_whole(version)):
                del self._assumed[key]
        elif kind in self._classes:
            device_class, errors = (None, ()) if obj is None else parse_device_class(obj)
            store_or_drop(self._classes[kind], key, device_class)
        else:
            self._are_slices_stale = True
            device_slice, errors = (None, ()) if obj is None else parse_slice(obj)
            store_or_drop(self._slices[kind], key, device_slice)
        store_or_drop(self._problems, (kind, key), errors or None)

    def claim(self, key: str) -> DeviceClaim | None:
        """Return a claim in its newest served API version, or None if it is unknown."""
        known = (claims.get(key) for claims in self._claims.values())
        return next((claim for claim in known if claim is not None), None)

    def claim_kind(self, key: str) -> Kind | None:
        """Return the kind of a claim in its newest served API version, or None if it is unknown."""
        return next((kind for kind, claims in self._claims.items() if key in claims), None)

    def assume(self, task: str, node: str, grant: DeviceGrant) -> None:
        """Assume that devices are allocated to a claim until a watch confirms the allocation."""
        self._is_stale = True
        claim = self.claim(grant.claim)
        uid = "" if claim is None else claim.uid
        allocation = DeviceAllocation.on_node(node, grant.devices)
        self._assumed[grant.claim] = AssumedAllocation(task, uid, allocation)

    def record_stored(self, claim: str, version: int, reported: int | None) -> bool:
        """Record the resource version with which the server stored an assumed allocation.

        `reported` is the resource version in the newest report, if known. Returns True if the
        assumption is dropped: the report is newer and shows no allocation.
        """
        assumed = self._assumed.get(claim)
        if assumed is None:
            return False
        if not is_newer(reported, version):
            self._assumed[claim] = replace(assumed, stored_at=version)
            return False
        del self._assumed[claim]
        self._is_stale = True
        return True

    def forget(self, task: str) -> None:
        """Drop the assumed allocations for a task."""
        for claim in [c for c, assumed in self._assumed.items() if assumed.task == task]:
            del self._assumed[claim]
            self._is_stale = True

    def refresh(self) -> Devices:
        """Return all devices and claims; until one of them changes, return the same object."""
        if not self._is_stale:
            return self._shown
        claims = _newest(list(self._claims.values()))
        for key, assumed in self._assumed.items():
            if key in claims and claims[key].allocation is None:
                claims[key] = replace(claims[key], allocation=assumed.allocation)
        stock = OfferedDevices(self._shown.on_node, self._shown.elsewhere, self._shown.in_flux)
        if self._are_slices_stale:
            stock = collect_devices(_newest(list(self._slices.values())).values())
        found = Devices(claims, _newest(list(self._classes.values())), *stock)
        if found != self._shown:
            self._shown = found
        self._is_stale = self._are_slices_stale = False
        return self._shown


def _newest(versions: Sequence[Mapping[str, V]]) -> dict[str, V]:
    """Merge objects of several API versions: for each object key, the newest API version is used.

    `versions` lists one mapping per API version, newest first.
    """
    found: dict[str, V] = {}
    for each in reversed(versions):
        found.update(each)
    return {key: found[key] for key in sorted(found)}


def take_every_node(labels: Mapping[str, str]) -> bool:
    """Return True, as every node belongs to this scheduler."""
    del labels
    return True


class NodeStore:
    """A store of nodes, with NUMA cells and attach limits, and of the network topology.

    Attributes
    ----------
    topology_index
        The HyperNodes and nodes, and the tree that they form.

    """

    def __init__(
        self,
        builder: SnapshotBuilder,
        takes_node: Callable[[Mapping[str, str]], bool],
        problems: Problems,
    ) -> None:
        """`takes_node` returns whether a node with the given labels belongs to this scheduler."""
        self._builder = builder
        self._takes_node = takes_node
        self._problems = problems
        self._numa: dict[str, Numa] = {}
        self._attach_limits: dict[str, Amounts] = {}
        self._device_table = NO_TABLE
        self.topology_index = TopologyIndex()
        self._names: set[str] = set()

    def apply_node(self, name: str, obj: Raw | None) -> None:
        """Store a Node, or remove it if `obj` is None."""
        node, errors = (None, ()) if obj is None else parse_node(obj, self._device_table)
        store_or_drop(self._problems, (kinds.NODE, name), errors or None)
        if node is not None and self._takes_node(node.labels):
            self._names.add(name)
            numa, limits = self._numa.get(name), self._attach_limits.get(name, ())
            if numa is not None or limits:
                node = replace(node, numa=numa, attach_limits=limits)
            self._builder.store_node(node)
            self.topology_index.put_node(name, node.labels)
        else:
            self._names.discard(name)
            self._builder.remove_node(name)
            self.topology_index.drop_node(name)

    def apply_hypernode(self, name: str, obj: Raw | None) -> None:
        """Store a HyperNode, or remove it if `obj` is None."""
        hypernode, errors = (None, ()) if obj is None else parse_hypernode(obj)
        store_or_drop(self._problems, (kinds.HYPER_NODE, name), errors or None)
        if hypernode is None:
            self.topology_index.drop(name)
        else:
            self.topology_index.put_hypernode(hypernode)

    def apply_numatopology(self, name: str, obj: Raw | None) -> None:
        """Store a Numatopology, or remove it if `obj` is None."""
        _, numa, errors = ("", None, ()) if obj is None else parse_numa(obj)
        store_or_drop(self._problems, (kinds.NUMATOPOLOGY, name), tuple(errors) or None)
        if self._numa.get(name) != numa:
            store_or_drop(self._numa, name, numa)
            self._update_node(name, numa=numa)

    def apply_csi_node(self, name: str, obj: Raw | None) -> None:
        """Store a CSINode, or remove it if `obj` is None."""
        _, limits, errors = ("", None, ()) if obj is None else parse_csi_node(obj)
        store_or_drop(self._problems, (kinds.CSI_NODE, name), tuple(errors) or None)
        if self._attach_limits.get(name) != limits:
            store_or_drop(self._attach_limits, name, limits)
            self._update_node(name, attach_limits=limits or ())

    def set_device_table(self, table: DeviceTable) -> bool:
        """Set the tables of GPU and NPU partitions; return whether a table changed."""
        if table == self._device_table:
            return False
        self._device_table = table
        for name in self._names:
            node = self._builder.find_node(name)
            shared = () if node is None else node.shared_gpus
            replaced = tuple(replace_geometries(gpu, table) for gpu in shared)
            if replaced != shared:
                self._update_node(name, shared_gpus=replaced)
        return True

    def _update_node(self, name: str, **fields: Any) -> None:  # noqa: ANN401  fields of Node
        node = self._builder.find_node(name)
        if node is not None:
            self._builder.store_node(replace(node, **fields))
