"""The objects of a cluster, from events or from files, as snapshots. No I/O, no clock.

`apply` takes states of objects in any order; `build` assembles what changed since its last call.
Whether objects come one by one or all together makes no difference; a test compares the two.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from optsched.api import kinds
from optsched.api.priorityclass import parse_priority_class
from optsched.cluster.node_parts import NO_SHARDING
from optsched.cluster.snapshot import Snapshot
from optsched.cluster.snapshot_builder import SnapshotBuilder
from optsched.formats.codec.pod_limits import parse_budget, parse_quota, priorities
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.codec.scheduling_groups import object_key
from optsched.formats.snapshots.gang_store import GangStore
from optsched.formats.snapshots.object_stores import (
    STORAGE_KINDS,
    DeviceStore,
    NamespaceStore,
    NodeStore,
    ParsedStore,
    Problems,
    QueueStore,
    ShardStore,
    VolumeStore,
    take_every_node,
)
from optsched.formats.snapshots.pod_store import PodStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.api.kinds import Kind
    from optsched.api.priorityclass import PriorityClass
    from optsched.cluster.snapshot import Budget, Quota
    from optsched.cluster.task import Task
    from optsched.formats.snapshots.object_stores import Raw

READ_KINDS: Final = (
    kinds.NODE,
    kinds.POD,
    kinds.POD_GROUP,
    *kinds.SCHEDULING_POD_GROUPS,
    kinds.QUEUE,
    kinds.PRIORITY_CLASS,
    kinds.NAMESPACE,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.PERSISTENT_VOLUME,
    kinds.STORAGE_CLASS,
    kinds.CSI_NODE,
    kinds.HYPER_NODE,
    kinds.NUMATOPOLOGY,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.RESOURCE_QUOTA,
    kinds.NODE_SHARD,
    *kinds.DEVICE_KINDS,
)
"""The kinds that a snapshot is made of."""

OPTIONAL_KINDS: Final = frozenset(
    {
        kinds.HYPER_NODE,
        kinds.NUMATOPOLOGY,
        kinds.NODE_SHARD,
        *kinds.SCHEDULING_POD_GROUPS,
        *kinds.DEVICE_KINDS,
    }
)
"""Those of them that a cluster may do without: where one is not installed, it has no objects."""


class ClusterObjects:
    """Parsed objects by kind, and the snapshots that they make.

    Attributes
    ----------
    pods, gangs, nodes, devices, volumes, queues, shards
        The content of objects of these kinds, with changes that are assumed but not yet seen.

    """

    def __init__(
        self,
        options: DecodeOptions | None = None,
        takes_node: Callable[[Mapping[str, str]], bool] = take_every_node,
    ) -> None:
        """takes_node: whether a node with these labels belongs to this scheduler."""
        options = options or DecodeOptions()
        problems: Problems = {}
        self._problems = problems
        self._builder = SnapshotBuilder()
        self._namespaces = NamespaceStore()
        self._classes: ParsedStore[PriorityClass] = ParsedStore(
            kinds.PRIORITY_CLASS, parse_priority_class, problems
        )
        self._budgets: ParsedStore[Budget] = ParsedStore(
            kinds.POD_DISRUPTION_BUDGET, parse_budget, problems
        )
        self._quotas: ParsedStore[Quota] = ParsedStore(kinds.RESOURCE_QUOTA, parse_quota, problems)
        self.pods = PodStore(options, self._builder, problems)
        self.gangs = GangStore(options, self._builder, self.pods, self._namespaces)
        self.nodes = NodeStore(self._builder, takes_node, problems)
        self.devices = DeviceStore(problems)
        self.volumes = VolumeStore(problems)
        self.queues = QueueStore(problems)
        self.shards = ShardStore(options.sharding or NO_SHARDING, problems)
        self._apply_by_kind: Mapping[Kind, Callable[[str, Raw | None], None]] = {
            kinds.NODE: self.nodes.apply_node,
            kinds.HYPER_NODE: self.nodes.apply_hypernode,
            kinds.NUMATOPOLOGY: self.nodes.apply_numatopology,
            kinds.CSI_NODE: self.nodes.apply_csi_node,
            kinds.POD_GROUP: self.gangs.apply_group,
            kinds.QUEUE: self.queues.apply,
            kinds.NODE_SHARD: self.shards.apply,
            kinds.PRIORITY_CLASS: self._classes.apply,
            kinds.POD_DISRUPTION_BUDGET: self._budgets.apply,
            kinds.RESOURCE_QUOTA: self._quotas.apply,
            kinds.NAMESPACE: self._namespaces.apply,
            kinds.PERSISTENT_VOLUME_CLAIM: self.volumes.apply_claim,
            **{kind: partial(self.volumes.apply_storage, kind) for kind in STORAGE_KINDS},
            **{
                kind: partial(self.gangs.apply_scheduling_group, kind)
                for kind in kinds.SCHEDULING_POD_GROUPS
            },
            **{kind: partial(self._apply_device_object, kind) for kind in kinds.DEVICE_KINDS},
        }

    def apply(self, kind: Kind, key: str, obj: Raw | None, *, is_created: bool = False) -> None:
        """Apply a state of an object; None for a deleted one.

        is_created: whether it is known to be the first state of a pod.
        """
        if kind != kinds.POD:
            self._apply_by_kind[kind](key, obj)
        elif obj is None:
            self.pods.delete_pod(key)
        else:
            self.pods.apply_pod(obj, is_created=is_created)

    def _apply_device_object(self, kind: Kind, key: str, obj: Raw | None) -> None:
        self.devices.apply_object(kind, key, obj)
        if kind in kinds.RESOURCE_CLAIMS:
            self.pods.apply_claim(key, self.devices.claim(key))

    def refresh_priorities(self) -> None:
        """Apply changed priority classes; pods that depend on them are decoded again."""
        if self._classes.refresh():
            self.gangs.set_priorities(priorities(self._classes.values))

    def build(self, taken_ms: int | None, used_namespaces: set[str]) -> Snapshot:
        """Return the snapshot of the objects; parts that did not change are the same objects.

        Parameters
        ----------
        taken_ms
            When; None for the latest creation of a gang or queue.
        used_namespaces
            Namespaces of any objects: they exist, whether they are listed or not.

        """
        self.refresh_priorities()
        if self._namespaces.refresh(used_namespaces):
            self.gangs.touch_without_group()
        for store in (self.queues, self._budgets, self._quotas, self.shards):
            store.refresh()
        self.gangs.refresh()
        shuffles = self.gangs.last_shuffle_ms(taken_ms)
        if taken_ms is None:
            gangs, queues = self._builder.gangs.values, self.queues.shown
            taken_ms = max((*(g.created_ms for g in gangs), *(q.created_ms for q in queues)))
        others = Snapshot(
            taken_ms,
            queues=self.queues.shown,
            claims=self.volumes.refresh(),
            namespaces=self._namespaces.labels,
            budgets=self._budgets.values,
            topology=self.nodes.topology(),
            quotas=self._quotas.values,
            sharding=self.shards.sharding,
            devices=self.devices.refresh(),
            priority_classes=self.gangs.table.values,
            last_shuffle_ms=shuffles,
            usage=self.queues.usage,
        )
        return self._builder.build(taken_ms, others)

    def has_node(self, name: str) -> bool:
        """Return whether a node exists and belongs to this scheduler."""
        return self._builder.find_node(name) is not None

    def is_closed(self, name: str) -> bool:
        """Return whether a node is cordoned, not ready or deleted."""
        node = self._builder.find_node(name)
        return node is None or node.unschedulable or not node.ready

    def node_labels(self, name: str) -> Mapping[str, str] | None:
        """Return the labels of a node; None where there is no such node."""
        node = self._builder.find_node(name)
        return None if node is None else node.labels

    def tasks_without_node(self) -> list[Task]:
        """Return the tasks on nodes that do not exist, in the order of their keys."""
        return self._builder.tasks_without_node()

    def problems(self) -> Problems:
        """Return every field that could not be read, as of the last snapshot."""
        found = {**self._problems, **self.volumes.storage_problems()}
        for gang, (kind, errors) in self.gangs.group_problems.items():
            found[kind, object_key(gang)] = errors
        for name, remarks in self.nodes.hypernode_remarks():
            about = (kinds.HYPER_NODE, name)
            found[about] = (*found.get(about, ()), *remarks)
        return found
