"""The nodes of a cluster with the tasks that they run, and the topology above them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.api.hypernode import parse_hypernode
from optsched.formats.codec.gpu_shares import replace_geometries
from optsched.formats.codec.hypernodes import TopologyIndex
from optsched.formats.codec.nodes import parse_node
from optsched.formats.codec.numatopologies import parse_numa
from optsched.formats.codec.partition_tables import NO_TABLE
from optsched.formats.codec.volumes import parse_csi_node
from optsched.kube.cache.parsed_store import store_or_drop
from optsched.kube.cache.sorted_map import SortedMap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.numa import Numa
    from optsched.cluster.snapshot import Node
    from optsched.cluster.topology import Topology
    from optsched.formats.codec.partition_tables import DeviceTable
    from optsched.kube.cache.pod_store import PodStore
    from optsched.kube.client.interfaces import Raw


def take_every_node(labels: Mapping[str, str]) -> bool:
    """Accept all nodes."""
    del labels
    return True


class NodeStore:
    """Nodes by name; `refresh` adds tasks, NUMA cells and attach limits to those that changed."""

    def __init__(self, pods: PodStore, takes_node: Callable[[Mapping[str, str]], bool]) -> None:
        """takes_node: whether a node with these labels belongs to this scheduler."""
        self._pods = pods
        self._takes_node = takes_node
        self._bare: dict[str, Node] = {}
        self._numa: dict[str, Numa] = {}
        self._attach_limits: dict[str, Amounts] = {}
        self._device_table = NO_TABLE
        self._topology = TopologyIndex()
        self._nodes: SortedMap[Node] = SortedMap()

    def __contains__(self, name: str) -> bool:
        return name in self._bare

    # --- events ----------------------------------------------------------------------------------

    def apply_node(self, name: str, obj: Raw | None) -> None:
        """Store a state of a Node; None for a deleted one."""
        node = None if obj is None else parse_node(obj, self._device_table)[0]
        if node is not None and self._takes_node(node.labels):
            self._bare[name] = node
            self._topology.put_node(name, node.labels)
        else:
            self._bare.pop(name, None)
            self._topology.drop_node(name)
        self._pods.touched_nodes.add(name)

    def apply_hypernode(self, name: str, obj: Raw | None) -> None:
        """Store a state of a HyperNode; None for a deleted one."""
        hypernode = None if obj is None else parse_hypernode(obj)[0]
        if hypernode is None:
            self._topology.drop(name)
        else:
            self._topology.put_hypernode(hypernode)

    def apply_numatopology(self, name: str, obj: Raw | None) -> None:
        """Store a state of a Numatopology; None for a deleted one."""
        self._store_detail(self._numa, name, None if obj is None else parse_numa(obj)[1])

    def apply_csi_node(self, name: str, obj: Raw | None) -> None:
        """Store a state of a CSINode; None for a deleted one."""
        limits = None if obj is None else parse_csi_node(obj)[1]
        self._store_detail(self._attach_limits, name, limits)

    def _store_detail(
        self, store: dict[str, Numa] | dict[str, Amounts], name: str, value: object
    ) -> None:
        if store.get(name) != value:
            store_or_drop(store, name, value)
            self._pods.touched_nodes.add(name)

    def set_device_table(self, table: DeviceTable) -> bool:
        """Set how GPUs and NPUs may be partitioned; returns whether that is another way."""
        if table == self._device_table:
            return False
        self._device_table = table
        for name, node in self._bare.items():
            shared_gpus = tuple(replace_geometries(card, table) for card in node.shared_gpus)
            if shared_gpus != node.shared_gpus:
                self._bare[name] = replace(node, shared_gpus=shared_gpus)
                self._pods.touched_nodes.add(name)
        return True

    # --- queries ---------------------------------------------------------------------------------

    def labels(self, name: str) -> Mapping[str, str] | None:
        """Return the labels of a node; None where there is no such node."""
        node = self._bare.get(name)
        return None if node is None else node.labels

    def is_closed(self, name: str) -> bool:
        """Whether a node is cordoned, not ready or deleted."""
        node = self._bare.get(name)
        return node is None or node.unschedulable or not node.ready

    def topology(self) -> Topology:
        """Return the topology of the nodes; the very same object until it changes."""
        return self._topology.topology()

    def refresh(self) -> tuple[Node, ...]:
        """Return all nodes in the order of their names; those that did not change are the same."""
        for name in self._pods.touched_nodes:
            node = self._bare.get(name)
            if node is None:
                self._nodes.remove(name)
                continue
            residents = tuple(sorted(self._pods.node_tasks(name), key=lambda task: task.key))
            numa, limits = self._numa.get(name), self._attach_limits.get(name, ())
            self._nodes.store(
                name, replace(node, residents=residents, numa=numa, attach_limits=limits)
            )
        self._pods.touched_nodes.clear()
        return self._nodes.values
